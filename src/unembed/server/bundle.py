"""The explorer's modules as one script: the page's in one request, a notebook's inside its output.

Nothing is rewritten but import and export. A module becomes a function
that is called when it is first imported; what it exports is the object it returns.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable

_IMPORT = re.compile(r'^import (?:\* as (?P<whole>\w+)|(?P<names>\{[^}]*\})) from "(?P<path>[^"]+)";$', re.MULTILINE)
_LATER = re.compile(r'\bimport\("(?P<path>[^"]+)"\)')
_EXPORT = re.compile(r"^export (?P<what>(?:async )?function|const|class) (?P<name>\w+)", re.MULTILINE)
_AGAIN = re.compile(r"^export (?P<names>\{[^}]*\});$", re.MULTILINE)


_TAKEN = re.compile(r'^const \{ (?P<names>\w+(?:, \w+)*) \} = \$load\("(?P<path>[^"]+)"\);\n', re.MULTILINE)

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
    shared = _shared(parts)
    return _LOADER + "".join(_defined(path, body, shared) for path, body in parts.items())


def _shared(parts: dict[str, str]) -> dict[str, str]:
    """Names that several modules import and that mean one thing everywhere: name to the module that it comes from.

    They are taken once, outside of the modules' functions, instead of by each; a module's own names go before them.
    """
    taken = {
        path: {n: found["path"] for found in _TAKEN.finditer(body) for n in _names(found)}
        for path, body in parts.items()
    }

    def origin(name: str, path: str) -> str:
        """Where a name comes from that a module may only pass on."""
        return origin(name, taken[path][name]) if name in taken[path] else path

    uses = Counter((name, origin(name, path)) for names in taken.values() for name, path in names.items())
    meanings = Counter(name for name, _ in uses)
    return {name: path for (name, path), times in uses.items() if times > 1 and meanings[name] == 1}


def _names(found: re.Match[str]) -> list[str]:
    return found["names"].split(", ")


def _defined(path: str, body: str, shared: dict[str, str]) -> str:
    """A module's function, which takes no names that are shared, and those that others take from it."""

    def own(found: re.Match[str]) -> str:
        names = [name for name in _names(found) if name not in shared]
        return f'const {{ {", ".join(names)} }} = $load("{found["path"]}");\n' if names else ""

    given = ", ".join(sorted(name for name, where in shared.items() if where == path))
    after = f'const {{ {given} }} = $load("{path}");\n' if given else ""
    return f'$modules["{path}"] = () => {{\n{_TAKEN.sub(own, body)}}};\n{after}'


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
