"""The explorer's drawings (islands) as one script and one style sheet, made from the page's own files.

A notebook output holds one classic script and cannot fetch modules, so the modules are joined: each becomes a function
that is called when it is first imported, and returns what it exports. Only `import` and `export` are rewritten. Modules
in `blob:` or `data:` addresses need no joining, but pages whose policy allows inline scripts alone refuse them, as
notebooks in editors may, and a module in a `data:` address holds a copy of all that it imports.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from importlib.resources import files

_ENTRY = "js/islands/notebook.js"
_STYLES = ("colours", "grid", "charts", "flow")
_IMPORT = re.compile(r'^import (?:\* as (?P<module>\w+)|(?P<names>\{[^}]*\})) from "(?P<path>[^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?P<kind>(?:async )?function|const|class) (?P<name>\w+)", re.MULTILINE)
_LOADER = """\
const $modules = {};
const $loaded = {};
const $load = (name) => ($loaded[name] ??= $modules[name]());
"""
_BOX_SIZING = "@layer base { .unembed *, .unembed *::before, .unembed *::after { box-sizing: border-box; } }"
"""The page sets this for all of its elements; a notebook output sets it only inside a drawing."""


@cache
def style() -> str:
    """Return the style sheet of the drawings."""
    return "\n".join([*(_static(f"css/{name}.css") for name in _STYLES), _BOX_SIZING, ""])


@cache
def script() -> str:
    """Return all drawings as one script, with `draw`, which selects one by the schema of its data."""
    modules: dict[str, str] = {}
    waiting = [_ENTRY]
    while waiting:
        path = waiting.pop()
        if path not in modules:
            modules[path], imported = _module(path, _static(path))
            waiting += imported
    return f'{_LOADER}{"".join(modules.values())}const draw = $load("{_ENTRY}").draw;\n'


def _static(name: str) -> str:
    return files("unembed.server").joinpath("static", *name.split("/")).read_text(encoding="utf-8")


def _module(path: str, text: str) -> tuple[str, list[str]]:
    """Return a module as a function, and the paths of the modules that it imports."""
    imported: list[str] = []

    def loaded(match: re.Match[str]) -> str:
        imported.append(posixpath.normpath(posixpath.join(posixpath.dirname(path), match["path"])))
        return f'const {match["module"] or match["names"].replace(" as ", ": ")} = $load("{imported[-1]}");'

    body = _EXPORT.sub(r"\g<kind> \g<name>", _IMPORT.sub(loaded, text))
    exports = ", ".join(match["name"] for match in _EXPORT.finditer(text))
    return f'$modules["{path}"] = () => {{\n{body}return {{ {exports} }};\n}};\n', imported
