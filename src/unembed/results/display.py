"""Display results as short tables; in notebooks, as drawings if `unembed.notebook` is imported."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from unembed.errors import ExtraMissing, Unsupported
from unembed.results.table import Table


class Drawing(Protocol):
    """A drawing of a result, for notebooks."""

    def _repr_html_(self) -> str: ...

    def widget(self) -> Any:
        """Return the drawing as a Jupyter widget."""


class Displayed:
    """Base class of results that `print`, `repr` and notebooks show as a table."""

    draw: ClassVar[Callable[[Displayed], Drawing | None]] = staticmethod(lambda result: None)
    """Function that returns the drawing of a result, or None. `unembed.notebook` sets it when it is imported, because
    this module must not import that one."""

    @abstractmethod
    def to_table(self) -> Table:
        """Return the result as a table with its provenance.

        The table converts to pandas, polars, CSV, JSON and Parquet.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result, tensors included, to a file that `unembed.open_result` reads.

        Raises:
            Unsupported: the result contains a model, as a trace does.
        """
        from unembed.results.result_files import save_result  # imports torch

        save_result(self, path)

    def __repr__(self) -> str:
        return repr(self.to_table()).replace("Table", type(self).__name__, 1)

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """Return the HTML of the drawing if there is one, else of the table."""
        drawing = type(self).draw(self)
        return (self.to_table() if drawing is None else drawing)._repr_html_()

    def widget(self) -> Any:
        """Return the drawing as a Jupyter widget (needs `unembed[notebook]`).

        Raises:
            ExtraMissing: `unembed.notebook` is not imported, or anywidget is not installed.
            Unsupported: results of this class have no drawing.
        """
        drawing = type(self).draw(self)
        if drawing is not None:
            return drawing.widget()
        what = f"a widget of {type(self).__name__}"
        if "unembed.notebook" in sys.modules:
            raise Unsupported(what, why="results of this class are shown as tables", instead="Use to_table()")
        why = "the module that draws results is not imported"
        raise ExtraMissing(what, why=why, instead="Run `import unembed.notebook` first")
