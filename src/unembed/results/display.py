"""How results are displayed: as a short table, or as a drawing once `unembed.notebook` is imported."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unembed.errors import ExtraMissing
from unembed.results.table import Table


@dataclass(frozen=True)
class Drawer:
    """Draws results of one class: as HTML, and as a widget that reports what was selected."""

    html: Callable[[Any], str]
    widget: Callable[[Any], Any]


_DRAWERS: dict[str, Drawer] = {}


def register_drawer(result_class: str, drawer: Drawer) -> None:
    """Let a drawer show all results of a class, by the class's name; notebooks sit above the results they draw."""
    _DRAWERS[result_class] = drawer


class Displayed:
    """A result with a tabular form, which is what `print`, `repr` and notebooks show."""

    @abstractmethod
    def to_table(self) -> Table:
        """The result as a table with its provenance; through it pandas, polars, CSV, JSON and Parquet."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result, tensors included, to a file that `unembed.open_result` reads.

        Raises:
            Unsupported: the result holds a live model, as a trace does.
        """
        from unembed.results.result_files import save_result  # imports torch

        save_result(self, path)

    def __repr__(self) -> str:
        """The first rows of the table."""
        return repr(self.to_table()).replace("Table", type(self).__name__, 1)

    def __str__(self) -> str:
        """The first rows of the table."""
        return repr(self)

    def _repr_html_(self) -> str:
        """The drawing where a drawer is registered, else the table."""
        drawer = _DRAWERS.get(type(self).__name__)
        return self.to_table()._repr_html_() if drawer is None else drawer.html(self)

    def widget(self) -> Any:
        """The drawing as a Jupyter widget (needs `unembed[notebook]`).

        Raises:
            ExtraMissing: `unembed.notebook` is not imported, or anywidget is not installed.
        """
        drawer = _DRAWERS.get(type(self).__name__)
        if drawer is None:
            raise ExtraMissing(
                f"a widget of {type(self).__name__}",
                why="no drawer is registered for it",
                instead="Run `import unembed.notebook` first",
            )
        return drawer.widget(self)
