"""Jupyter widgets with the drawings: they report the user's selection, and redraw when `data` is set."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from unembed.errors import ExtraMissing
from unembed.notebook.islands import script, style

if TYPE_CHECKING:
    from anywidget import AnyWidget

_ADAPTER = """
export default {
  render({ model, el }) {
    const chosen = (selection) => {
      model.set("selection", selection);
      model.save_changes();
    };
    const show = () => draw(el, model.get("data"), chosen);
    let island = show();
    const again = () => { island?.destroy?.(); island = show(); };
    model.on("change:data", again);
    return () => { model.off("change:data", again); island?.destroy?.(); };
  },
};
"""


@cache
def _widget_class() -> type[AnyWidget]:
    """Return the widget class. It is defined inside a function because anywidget is an optional dependency."""
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            "widgets", why=f"{error.name} is not installed", instead="pip install 'unembed[notebook]'"
        ) from error

    class ResultWidget(anywidget.AnyWidget):  # pyright: ignore[reportGeneralTypeIssues]
        """A drawing as a widget. `selection` is what the user selected last; set `data` to draw another result."""

        _esm = script() + _ADAPTER
        _css = style()
        data = traitlets.Dict().tag(sync=True)
        selection = traitlets.Dict().tag(sync=True)

    return ResultWidget


def widget_of(data: dict[str, Any]) -> AnyWidget:
    """Return a widget that draws `data`.

    Raises:
        ExtraMissing: anywidget is not installed.
    """
    return _widget_class()(data=data, selection={})
