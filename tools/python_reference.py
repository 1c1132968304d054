"""Writes the lists of public names in `docs/python.md`: `python -m tools.python_reference`.

Lists are made from signatures and the first lines of docstrings; `tests/package/test_python_page.py` compares it with
the page. At most 150 names are public. **What is counted**: every name that completion offers after `unembed.`, after a
module that is public as a whole (`unembed.steering.`), after the handle (`lm.`), and after the objects that answer
questions (a trace, `lm.values`, `lm.circuits`, an index). A name is counted once for each of these places. Methods that
all results share (`to_table`, `save`, `widget`) are counted once, with the trace. Not counted: fields of results,
options, reducers and scorers, which are classes of their own rooms; and other spellings of the same function
(`SPELLINGS`), which stay callable but are not offered.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import unembed
from unembed.attention import Circuits
from unembed.memories.values import Values

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
MOST = 150
START, END = "<!-- names: written by tools.python_reference -->\n", "<!-- end of names -->\n"
OBJECTS: dict[str, type[Any]] = {
    "`lm = unembed.load()`": unembed.LanguageModel,
    "`trace = lm.trace(prompt)`": unembed.Trace,
    "`lm.values`": Values,
    "`lm.circuits`": Circuits,
    "`index = lm.index()`": unembed.Index,
}
MODULES = ("early_exit", "toxicity", "steering", "annotation")
SPELLINGS = {
    "circuits(lm)": "lm.circuits",
    "report(name, lm, ...)": "lm.report(name, ...)",
    "attribution_patching(lm, ...)": "lm.attribution_patching(...)",
    "sweep(lm, ...)": "lm.sweep(...)",
    "value_readings(lm, ...)": "lm.values.readings(...)",
    "cluster_values(lm, ...)": "lm.values.clusters(...)",
    "value_concepts(lm, ...)": "lm.value_concepts(...)",
    "event_sample(lm, ...)": "lm.event_sample(...)",
    "sub_update_effects(lm, ...)": "lm.sub_update_effects(...)",
    "rank_memories(lm, ...)": "lm.rank_memories(...)",
    "train_dictionary(lm, ...)": "lm.train_dictionary(...)",
    "cached_index(lm)": "lm.index(build=False)",
}
"""Functions of a model that are methods, too: what is written after `unembed.`, and the method."""


def names() -> dict[str, list[str]]:
    """Every public name, by the place where it is offered."""
    found = {"`unembed`": dir(unembed)}
    found |= {title: dir(object.__new__(cls)) for title, cls in OBJECTS.items()}
    return found | {f"`unembed.{name}`": dir(importlib.import_module(f"unembed.{name}")) for name in MODULES}


def lists() -> str:
    """The part of the page between `START` and `END`."""
    places: dict[str, Any] = {"`unembed`": unembed, **OBJECTS}
    places |= {f"`unembed.{name}`": importlib.import_module(f"unembed.{name}") for name in MODULES}
    parts = [f"{sum(map(len, names().values()))} names, by the place where completion offers them.\n"]
    for title, offered in names().items():
        rows = "".join(f"| {_call(places[title], name)} | {_line(places[title], name)} |\n" for name in offered)
        parts.append(f"### {title}\n\n| name | what it is |\n|---|---|\n{rows}")
    same = "".join(f"| `unembed.{old}` | `{new}` |\n" for old, new in SPELLINGS.items())
    parts.append(f"### Functions that are methods\n\n| function | the same as |\n|---|---|\n{same}")
    return "\n".join(parts)


def written(page: str) -> str:
    """The page with its lists made anew."""
    before, rest = page.split(START)
    return f"{before}{START}\n{lists()}\n{END}{rest.split(END)[1]}"


def _call(place: Any, name: str) -> str:
    """A name with its parameters; without where it is no function."""
    value = getattr(place, name, None)
    if inspect.isclass(value) or not callable(value):
        return f"`{name}`"
    parameters = list(inspect.signature(value).parameters.values())
    if inspect.isclass(place) and inspect.isfunction(inspect.getattr_static(place, name)):
        parameters = parameters[1:]
    return f"`{name}({', '.join(_words(parameters))})`"


def _words(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The names of parameters, with a star before those that are given by name."""
    starred = False
    for one in parameters:
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name


def _line(place: Any, name: str) -> str:
    """The first sentence of what is said about a name, for a cell of a table."""
    static = inspect.getattr_static(place, name, None)
    value = static if isinstance(static, property) else getattr(place, name, None)
    text = inspect.getdoc(getattr(static, "func", None) or value) if value is not None else None
    if value is None or (not callable(value) and not isinstance(static, property) and not hasattr(static, "func")):
        text = text if inspect.ismodule(value) else _attribute(place, name)
    line = " ".join((text or "").split("\n\n")[0].split())
    if not line:
        raise ValueError(f"{name} has no docstring")
    return re.sub(r";? ?see `[^`]*`", "", line).replace("|", "\\|").rstrip()


def _attribute(cls: type[Any], name: str) -> str:
    """What the class's docstring says about an attribute."""
    found = re.search(rf"^\s+{name}: (.+)$", cls.__doc__ or "", re.MULTILINE)
    return f"{found[1][0].upper()}{found[1][1:]}" if found else ""


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
