"""Widgets: the same drawings, which tell Python what was chosen and follow what Python sets."""

from __future__ import annotations

from functools import cache
from typing import Any

from unembed.errors import ExtraMissing
from unembed.notebook.drawing import data_of
from unembed.notebook.islands import script, style

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
def _kind() -> Any:
    """The widget class, made when the first widget is."""
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            "widgets", why=f"{error.name} is not installed", instead="pip install 'unembed[notebook]'"
        ) from error

    class ResultWidget(anywidget.AnyWidget):  # pyright: ignore[reportGeneralTypeIssues]
        """A drawn result. `selection` holds what was chosen last; set `data` to draw another one."""

        _esm = script() + _ADAPTER
        _css = style()
        data = traitlets.Dict().tag(sync=True)
        selection = traitlets.Dict().tag(sync=True)

    return ResultWidget


def widget_of(result: Any) -> Any:
    """A result as a widget.

    Raises:
        ExtraMissing: anywidget is not installed.
        InvalidInput: there is no drawing of such a result.
    """
    return _kind()(data=data_of(result), selection={})
