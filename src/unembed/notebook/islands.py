"""Join the JavaScript modules that draw results in the explorer into one script, for use in notebooks.

A notebook output contains one classic script and cannot fetch modules. So each module becomes a function that is called
when it is first imported, and returns what the module exports; only `import` and `export` are rewritten. Modules at
`blob:` or `data:` addresses would need no rewriting, but a page may forbid all scripts except inline ones, as some
editors do for notebooks; and a module at a `data:` address contains a copy of everything that it imports.
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
"""This CSS rule applies to all elements of the explorer's page; in a notebook it must apply only inside a drawing."""


@cache
def style() -> str:
    """Return the style sheet of the drawings."""
    return "\n".join([*(_static(f"css/{name}.css") for name in _STYLES), _BOX_SIZING, ""])


@cache
def script() -> str:
    """Return one script with all drawings and a function `draw`, which selects the drawing by the data's schema."""
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
    """Return the JavaScript of a module as a function, and the paths of the modules that it imports."""
    imported: list[str] = []

    def loaded(match: re.Match[str]) -> str:
        imported.append(posixpath.normpath(posixpath.join(posixpath.dirname(path), match["path"])))
        return f'const {match["module"] or match["names"].replace(" as ", ": ")} = $load("{imported[-1]}");'

    body = _EXPORT.sub(r"\g<kind> \g<name>", _IMPORT.sub(loaded, text))
    exports = ", ".join(match["name"] for match in _EXPORT.finditer(text))
    return f'$modules["{path}"] = () => {{\n{body}return {{ {exports} }};\n}};\n', imported
