"""The explorer's drawings (islands) as one script and one style sheet, put together from the page's own files."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_MODULES = ("tokens", "grid", "bars", "ranks")
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)


def _static(name: str) -> str:
    return files("unembed.server").joinpath("static", *name.split("/")).read_text(encoding="utf-8")


@cache
def style() -> str:
    """The style sheet of the drawings."""
    return _static("islands.css")


@cache
def script() -> str:
    """All drawings as `const islands = {grid, bars, ranks, ...}`, each with the names its module exports.

    A module's imports name other modules here, whose exports are in scope by then; so the lines are dropped.
    """
    parts = []
    for name in _MODULES:
        source = _IMPORT.sub("", _static(f"js/islands/{name}.js"))
        names = ", ".join(_EXPORTED.findall(source))
        body = re.sub(r"^export ", "", source, flags=re.MULTILINE)
        taken = "" if name == "tokens" else "const { token, visible } = islands.tokens;\n"
        parts.append(f"islands.{name} = (() => {{\n{taken}{body}\nreturn {{ {names} }};\n}})();\n")
    return "const islands = {};\n" + "".join(parts) + _static("js/islands/notebook.js")
