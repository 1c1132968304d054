"""Records are a sequence that shows itself as a table of the same rows."""

from __future__ import annotations

import pytest

from unembed.errors import InvalidInput
from unembed.results import Provenance, Records

ROWS = ["a", "b", "c"]
RECORDS = Records.of("Letters", ROWS, {"letter": ROWS, "code": [97, 98, 99]}, Provenance("wren", None, "float32"))


def test_they_are_indexed_sliced_and_compared_as_a_list_is() -> None:
    assert len(RECORDS) == 3 and RECORDS[0] == "a" and RECORDS[-1] == "c" and list(RECORDS) == ROWS
    assert RECORDS == ROWS and tuple(ROWS) == RECORDS and ROWS[:2] != RECORDS and RECORDS != "abc"
    assert RECORDS[1:] == ["b", "c"] and RECORDS[1:].to_table()["code"] == [98, 99]
    assert "b" in RECORDS and RECORDS.index("c") == 2
    assert not Records.of("None", [], {"letter": []}, RECORDS.provenance)


def test_they_print_as_a_table() -> None:
    assert repr(RECORDS).startswith("Records: 3 rows x 2 columns") and "Letters" in repr(RECORDS)
    assert "<table>" in RECORDS._repr_html_()


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match="unequal length"):
        Records.of("Letters", ROWS, {"letter": ROWS, "code": [97]}, RECORDS.provenance)
