"""Column widths: whole words where they fit, all of the room where it is short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unembed.results.column_widths import column_blocks, column_widths

COLUMNS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), min_size=1, max_size=8)


@given(COLUMNS, st.integers(0, 200))
def test_no_word_breaks_where_it_need_not_and_no_room_is_lost(columns: list[tuple[int, int]], room: int) -> None:
    least, natural = [a for a, _ in columns], [a + more for a, more in columns]
    widths = column_widths(natural, least, room)
    if sum(natural) <= room or sum(least) > room:
        assert widths == [None] * len(columns)
        return
    given_ = [width for width in widths if width is not None]
    assert len(given_) == len(columns) and sum(given_) == room
    assert all(a <= width <= b for a, width, b in zip(least, given_, natural, strict=True))


def test_the_column_that_lacks_most_gets_what_is_left() -> None:
    assert column_widths([10, 40, 5], [5, 8, 5], 30) == [5, 20, 5]
    assert column_widths([10, 12], [5, 5], 16) == [7, 9]


def test_columns_that_do_not_fit_continue_in_another_block() -> None:
    assert column_blocks([5, 5, 5], 21, gap=2) == [range(0, 3)]
    assert column_blocks([5, 5, 5], 20, gap=2) == [range(0, 2), range(2, 3)]
    assert column_blocks([50, 5, 50], 20, gap=2) == [range(0, 1), range(1, 2), range(2, 3)]
