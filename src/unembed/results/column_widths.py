"""Choose the widths of a table's columns on a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def column_blocks(least: Sequence[int], width: int, gap: int) -> list[range]:
    """Group adjacent columns that fit the width without breaking a word; a wider column forms a group alone.

    Args:
        least: the width at which no word breaks, by column.
        gap: cells that each column takes in addition to its text.
    """
    starts, used = [0], 0
    for column, cells in enumerate(least):
        if used and used + cells + gap > width:
            starts.append(column)
            used = 0
        used += cells + gap
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(least)], strict=True)]


def column_widths(natural: Sequence[int], least: Sequence[int], room: int) -> list[int | None]:
    """Return widths for columns that together exceed the room.

    Every column gets the width of its longest word. The remaining room is given to wider columns, one character at a
    time to the one that needs most.

    Args:
        natural: the width at which nothing breaks, by column.
        least: the width at which no word breaks.
        room: what all columns may take together, gaps not counted.

    Returns:
        A width by column; None for each where all fit, or where words must break anyway.
    """
    if sum(natural) <= room or sum(least) > room:
        return [None] * len(natural)
    widths = list(least)
    for _ in range(room - sum(least)):
        lacking = [wanted - width for wanted, width in zip(natural, widths, strict=True)]
        most = lacking.index(max(lacking))
        widths[most] += 1
    return list[int | None](widths)
