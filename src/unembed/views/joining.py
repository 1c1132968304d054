"""The explorer's modules as one script: the page's in one request, a notebook's inside its output.

Nothing is rewritten but import and export. A module becomes a function
that is called when it is first imported; what it exports is the object it returns.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

_IMPORT = re.compile(r'^import (?:\* as (?P<whole>\w+)|(?P<names>\{[^}]*\})) from "(?P<path>[^"]+)";$', re.MULTILINE)
_LATER = re.compile(r'\bimport\("(?P<path>[^"]+)"\)')
_EXPORT = re.compile(r"^export (?P<what>(?:async )?function|const|class) (?P<name>\w+)", re.MULTILINE)
_AGAIN = re.compile(r"^export (?P<names>\{[^}]*\});$", re.MULTILINE)


_LOADER = """\
const $modules = {};
const $made = {};
const $load = (name) => ($made[name] ??= $modules[name]());
"""


def joined(read: Callable[[str], str], entry: str) -> str:
    """A module and all that it imports as one script, in which `$load(name)` gives a module's exports.

    Args:
        read: gives the text of a file by its path.
        entry: the module to begin with.
    """
    parts: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [entry]

    def add(path: str) -> None:
        """The module, after those that it imports: like stands near like, which compresses better."""
        if path in seen:
            return
        seen.add(path)
        body, needed, later = _wrapped(path, read(path))
        for one in needed:
            add(one)
        parts[path] = body
        waiting.extend(later)

    while waiting:
        add(waiting.pop(0))
    modules = "".join(f'$modules["{path}"] = () => {{\n{body}}};\n' for path, body in parts.items())
    return f"{_LOADER}{modules}"


def _wrapped(path: str, text: str) -> tuple[str, list[str], list[str]]:
    """The body of a module's function, the modules that it needs, and those that it loads later."""
    needed: list[str] = []
    later: list[str] = []

    def of(found: re.Match[str], among: list[str]) -> str:
        among.append(posixpath.normpath(posixpath.join(posixpath.dirname(path), found["path"])))
        return f'$load("{among[-1]}")'

    def imported(found: re.Match[str]) -> str:
        return f"const {found['whole'] or found['names'].replace(' as ', ': ')} = {of(found, needed)};"

    text = _IMPORT.sub(imported, text)
    text = _LATER.sub(lambda found: f"Promise.resolve({of(found, later)})", text)
    names = [found["name"] for found in _EXPORT.finditer(text)]
    names += [name for found in _AGAIN.finditer(text) for name in re.findall(r"\w+", found["names"])]
    text = _AGAIN.sub("", _EXPORT.sub(r"\g<what> \g<name>", text))
    return f"{text}return {{ {', '.join(names)} }};\n", needed, later
