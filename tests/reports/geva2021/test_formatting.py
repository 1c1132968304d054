"""A table of published numbers holds one unit."""

from __future__ import annotations

import pytest

from unembed.document.intervals import Measured
from unembed.reports.geva2021.formatting import ComparisonTable
from unembed.results import Provenance


def test_each_unit_has_a_table_of_its_own() -> None:
    comparison = ComparisonTable("keys", "Keys: here and published")
    comparison.add("patterns per key", Measured(2.5, 2.0, 3.0, 40), 3.6, "Sec. 3.2", unit="patterns")
    comparison.add("keys with a pattern", Measured(0.9, 0.8, 1.0, 40), 100, "Sec. 3.2")
    comparison.add("prefixes in a pattern", Measured(0.4, 0.3, 0.5, 90))
    shares, patterns = comparison.exhibits(Provenance("model", None, "float32"), "A note.")
    assert (shares.name, patterns.name, shares.note, patterns.note) == ("keys", "keys_patterns", "A note.", "")
    assert shares.percent == ("here",) and patterns.percent == ()
    assert [row["here"] for row in shares.table.rows()] == [0.9, 0.4]
    assert [row["here_published"] for row in shares.table.rows()] == [1.0, None]
    (row,) = patterns.table.rows()
    assert (row["quantity_text"], row["here"], row["here_published"]) == ("patterns per key", 2.5, pytest.approx(3.6))
    assert patterns.table.title.endswith(", patterns")
    assert "unit" not in shares.table.column_names
