"""The cases of the reports: report.json, tables, figures and the text of the page, at small samples."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import unembed
from tests.golden.case import SENTENCES, Case, Place
from tests.golden.comparison import indented

OPTIONS: dict[str, dict[str, Any]] = {
    "geva2021": dict(examples=60, top=8, shown=6, pattern_keys=2, perturbed_keys=2, predictive=10, compositions=10),
    "geva2022": dict(examples=60, per_layer=2, norm_values=40, exit_examples=60, clusters=20, beams=0),
    "elhage2021": dict(sequences=2, tokens=300, windows=2),
}
STUDIES = [
    ("geva2021", "wren", False),
    ("geva2021", "gated", True),
    ("geva2022", "wren", False),
    ("geva2022", "gated", True),
    ("elhage2021", "attn-2l", True),
    ("elhage2021", "gated", False),
]
"""Name, model, and whether a model of random weights is measured, too."""


def cases() -> Iterator[Case]:
    """The cases of the reports."""
    for name, model, control in STUDIES:
        yield Case(f"report/{model}/{name}", lambda place, n=name, m=model, c=control: _study(place, n, m, c))


def _study(place: Place, name: str, model: str, control: bool) -> dict[str, str]:
    out = Path(f"report-{name}-{model}")
    texts = [" ".join(SENTENCES * 3)] * 4 if name == "elhage2021" else SENTENCES * 4
    unembed.report(name, place.load(place.name(model)), texts, out, seed=1, control=control, **OPTIONS[name])
    files = sorted(path for path in out.rglob("*") if path.suffix in (".json", ".svg"))
    made = {
        str(path.relative_to(out)): indented(json.loads(path.read_text()))
        if path.suffix == ".json"
        else path.read_text().replace("><", ">\n<")
        for path in files
    }
    return {**made, "report.html": _words((out / "report.html").read_text(encoding="utf-8"))}


def _words(page: str) -> str:
    """The text of a page, a line for each element; figures and styles are compared in files of their own."""
    page = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page, flags=re.DOTALL)
    lines = (html.unescape(part).strip() for part in re.split(r"<[^>]+>", page))
    return "\n".join(line for line in lines if line)
