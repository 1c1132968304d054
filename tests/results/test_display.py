"""Results show themselves as short tables, and as drawings once a drawer is registered."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unembed.errors import ExtraMissing
from unembed.results import Provenance, Table
from unembed.results.display import Displayed, Drawer, register_drawer


class Numbers(Displayed):
    """A result with 100 rows."""

    def to_table(self) -> Table:
        return Table("Numbers", {"n": list(range(100))}, Provenance("wren", None, "float32"))


def test_a_result_shows_its_first_rows() -> None:
    assert repr(Numbers()).startswith("Numbers: 100 rows x 1 columns") and "92 more rows" in repr(Numbers())
    assert "<table>" in Numbers()._repr_html_()
    with pytest.raises(ExtraMissing, match=r"import unembed\.notebook"):
        Numbers().widget()


def test_a_registered_drawer_replaces_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unembed.results.display._DRAWERS", {})
    register_drawer("Numbers", Drawer(lambda result: "drawn", lambda result: 7))
    assert Numbers()._repr_html_() == "drawn" and Numbers().widget() == 7


def test_drawings_are_registered_where_ipython_runs() -> None:
    script = (
        "import sys, types; sys.modules['IPython'] = types.ModuleType('IPython'); import unembed; unembed.Edit; "
        "from unembed.results.display import _DRAWERS; from unembed.notebook.result_drawings import DRAWINGS; "
        "print(set(_DRAWERS) == {'Trace', *DRAWINGS})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
