"""Results show themselves as short tables, and as drawings once `unembed.notebook` is imported."""

from __future__ import annotations

import builtins
import subprocess
import sys

import pytest

from unembed.errors import ExtraMissing, Unsupported
from unembed.results import Provenance, Table
from unembed.results.display import Displayed


class Numbers(Displayed):
    """A result with 100 rows."""

    def to_table(self) -> Table:
        return Table("Numbers", {"n": list(range(100))}, Provenance("wren", None, "float32"))


def test_a_result_shows_its_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Displayed, "draw", staticmethod(lambda result: None))
    monkeypatch.delitem(sys.modules, "unembed.notebook", raising=False)
    assert repr(Numbers()).startswith("Numbers: 100 rows x 1 columns") and "92 more rows" in repr(Numbers())
    assert "<table>" in Numbers()._repr_html_()
    with pytest.raises(ExtraMissing, match=r"import unembed\.notebook"):
        Numbers().widget()


class Drawn:
    """A drawing."""

    def _repr_html_(self) -> str:
        return "drawn"

    def widget(self) -> int:
        return 7


def test_a_drawing_replaces_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Displayed, "draw", staticmethod(lambda result: Drawn()))
    assert Numbers()._repr_html_() == "drawn" and Numbers().widget() == 7


def test_a_result_without_a_drawing_has_no_widget() -> None:
    import unembed.notebook  # noqa: F401

    assert "<table>" in Numbers()._repr_html_()
    with pytest.raises(Unsupported, match="shown as tables"):
        Numbers().widget()


def test_results_draw_themselves_where_ipython_runs() -> None:
    script = (
        "import sys, types; sys.modules['IPython'] = types.ModuleType('IPython'); import unembed; unembed.Edit; "
        "from unembed.results import Displayed; from unembed.notebook import card_of; "
        "print(Displayed.draw is card_of)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_in_a_jupyter_kernel_the_text_of_a_table_is_returned_and_not_displayed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("t", {"word": ["unlikely"]}, Provenance("wren", "abc", "float32"))
    expected = table.to_text()
    shell = type("ZMQInteractiveShell", (), {})()  # by this name rich knows the kernel
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    assert table.to_text() == expected and "unlikely" in repr(table)
