"""How a result shows itself in a notebook, drawn by the room of notebooks, which stands above the results it draws."""

from __future__ import annotations

import importlib
from typing import Any

_DRAWN_BY = "unembed.notebook"
"""By name, as the public names are: a result must not import what stands above it."""


class Shown:
    """A result with a picture in Jupyter and a widget that answers."""

    def _repr_html_(self) -> str:
        """A table that can be read anywhere, and a drawing in its place where scripts may run."""
        return importlib.import_module(_DRAWN_BY).html_of(self)

    def widget(self) -> Any:
        """The same drawing as a Jupyter widget that tells Python what was chosen (needs `unembed[notebook]`).

        Raises:
            ExtraMissing: anywidget is not installed.
        """
        return importlib.import_module(_DRAWN_BY).widget_of(self)
