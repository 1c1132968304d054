"""Choose the widths of a table's columns on a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def column_blocks(least: Sequence[int], width: int, gap: int) -> list[range]:
    """Group adjacent columns so that each group fits in `width` without breaking words.

    A column that is wider than `width` forms a group by itself.

    Args:
        least: for each column, the length of its longest word.
        width: the available width in characters.
        gap: number of characters that each column needs in addition to its text.

    Returns:
        The groups, as ranges of column numbers.
    """
    starts, used = [0], 0
    for column, cells in enumerate(least):
        if used and used + cells + gap > width:
            starts.append(column)
            used = 0
        used += cells + gap
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(least)], strict=True)]


def column_widths(natural: Sequence[int], least: Sequence[int], room: int) -> list[int | None]:
    """Choose the widths of columns that are together wider than `room`.

    Every column gets at least the width of its longest word. The remaining width is distributed one character at a
    time, each to the column that lacks most.

    Args:
        natural: for each column, the length of its longest cell.
        least: for each column, the length of its longest word.
        room: the available width of all columns together, without gaps.

    Returns:
        A width for each column. All are None if no column needs to be narrowed, or if words must be broken anyway.
    """
    if sum(natural) <= room or sum(least) > room:
        return [None] * len(natural)
    widths = list(least)
    for _ in range(room - sum(least)):
        lacking = [wanted - width for wanted, width in zip(natural, widths, strict=True)]
        most = lacking.index(max(lacking))
        widths[most] += 1
    return list[int | None](widths)
