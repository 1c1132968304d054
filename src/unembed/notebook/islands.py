"""The explorer's drawings (islands) as one script and one style sheet, put together from the page's own files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from unembed.server.bundle import joined

_ENTRY = "js/islands/notebook.js"


def _static(name: str) -> str:
    return files("unembed.server").joinpath("static", *name.split("/")).read_text(encoding="utf-8")


_WITHOUT_THE_PAGE = "@layer base { .unembed *, .unembed *::before, .unembed *::after { box-sizing: border-box; } }"
"""What the page says of all its elements, which is much cheaper than to say it of those inside a drawing."""


@cache
def style() -> str:
    """The style sheet of the drawings."""
    return f"{_static('islands.css')}\n{_WITHOUT_THE_PAGE}\n"


@cache
def script() -> str:
    """All drawings, and `draw`, which chooses among them by what it is given."""
    return f'{joined(_static, _ENTRY)}const draw = $load("{_ENTRY}").draw;\n'
