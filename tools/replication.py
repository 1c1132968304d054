"""The page `docs/replication.md`: the published findings on several models, from the reports of `unembed report`.

python -m tools.replication add FOLDER...    take the findings of finished reports into docs/replication.json
python -m tools.replication page             write docs/replication.md from that file
python -m tools.replication random MODEL     write the model with random weights to `MODEL with random weights`

`add` takes a report on such a folder as the control of MODEL's report, whose own sample may be larger.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import unembed
from unembed.document.files import reopen
from unembed.document.model import Finding, Report
from unembed.errors import InvalidInput, UnembedError
from unembed.reports import STUDIES
from unembed.reports.random_weights import with_random_weights
from unembed.results import Provenance, as_written, format_number

DATA = Path(__file__).parents[1] / "docs/replication.json"
PAGE = DATA.with_suffix(".md")
_SHARED = ("claim", "source", "quantity", "test")
_OWN = ("published", "here", "verdict", "control", "informative", "explanation")
RANDOM = " with random weights"
"""How the name ends of a model that is the control of another."""
ABSENT = "Not available"
"""How a measurement begins that the architecture or the installation refuses."""
OUTCOMES = {
    "holds": "the test passes here, and fails on the same architecture with random weights",
    "holds, control open": "the test passes here; on random weights it stays open",
    "holds, but says nothing": "the test passes here and on random weights",
    "holds, no control": "the test passes here; it was not made on random weights",
    "does not hold": "the test fails; below it, what was measured here that accounts for it",
    "open": "the sample is too small to tell",
    "cannot be tested": "the model lacks what the claim is about, or a needed package was not installed",
}
_INTRODUCTION = """# Do the published findings hold?

The findings of three papers, tested on other models by `unembed report`. Each finding has the paper's number, a test
that was fixed beforehand, and for each model the measured number with its 95 % interval where it has one. The same test
is made on the same architecture with random weights: what passes there too says nothing about training.

Some findings are about models of one or two layers. For deeper models, questions in their place are listed apart, as
extensions: no paper states them.

| outcome | meaning |
|---|---|
"""
_EXTENDED = (
    "The paper states these findings of models of one or two layers. Here each is put as a question to a deeper model, "
    "with a test of its own."
)
_END = """
This page is made by `python -m tools.replication page` from [replication.json](replication.json), which holds the
findings of the reports; `python -m tools.replication add FOLDER` takes those of a finished report. Samples are stated
with each model; where random weights have their own, smaller one, a test that stays open on them tells little. A
larger sample can turn an open finding into one of the others, so no count here is a score.
"""


def added(stored: Mapping[str, Any], reports: Sequence[Report], sample: str = "") -> dict[str, Any]:
    """Return the stored findings with those of the reports; a model's earlier ones of that study are replaced.

    Args:
        sample: the options that set the sample, in words.
    """
    studies: dict[str, Any] = json.loads(json.dumps(stored.get("studies", {})))
    for report in reports:
        study = studies.setdefault(report.name, {"claims": [], "models": {}})
        if report.provenance.model.endswith(RANDOM):
            _add_control(study, report, sample)
            continue
        study["source"] = report.source
        known = {row["claim"]: row for row in study["claims"]}
        known |= {f.claim: {name: getattr(f, name) for name in _SHARED} for f in report.findings}
        study["models"][report.provenance.model] = {
            "provenance": report.provenance.to_dict(),
            "facts": {"sample": sample} | {name: value for name, value in report.facts.items() if name != "model"},
            "findings": {f.claim: {name: getattr(f, name) for name in _OWN} for f in report.findings},
        }
        current = {claim for model in study["models"].values() for claim in model["findings"]}
        study["models"] = dict(sorted(study["models"].items(), key=lambda item: -item[1]["facts"].get("layers", 0)))
        study["claims"] = [row for row in known.values() if row["claim"] in current]
    ordered = {name: studies[name] for name in STUDIES if name in studies}
    return {"schema": "unembed.replication/2", "studies": ordered}


def _add_control(study: Mapping[str, Any], report: Report, sample: str) -> None:
    model = report.provenance.model.removesuffix(RANDOM)
    if model not in study["models"]:
        raise InvalidInput(f"a control of {model}", why=f"no report on {model} is stored", instead="Add that one first")
    stored = study["models"][model]
    stored["facts"]["sample of the random weights"] = sample
    for f in report.findings:
        if f.claim in stored["findings"]:
            stored["findings"][f.claim] |= {
                "control": f"{f.here} ({f.verdict})",
                "informative": f.verdict != "agrees",
            }


def outcome(finding: Finding | None) -> str:
    """Return which of `OUTCOMES` a finding is; without one, nothing could be tested."""
    if finding is None or finding.verdict == "not applicable" or finding.here.startswith(ABSENT):
        return "cannot be tested"
    if finding.verdict == "agrees":
        if not finding.control:
            return "holds, no control"
        if not finding.informative:
            return "holds, but says nothing"
        return "holds" if finding.control.endswith("(differs)") else "holds, control open"
    return "does not hold" if finding.verdict == "differs" else "open"


def page(stored: Mapping[str, Any]) -> str:
    """Return the page."""
    meanings = "".join(f"| {name} | {meaning} |\n" for name, meaning in OUTCOMES.items())
    parts = [_INTRODUCTION + meanings, _overview(stored["studies"]), *map(_study, stored["studies"].values()), _END]
    return "\n".join(parts)


def findings_of(study: Mapping[str, Any], model: str, *, extension: bool | None = None) -> dict[str, Finding]:
    """Return a model's findings by claim.

    Args:
        extension: True for those that extend the paper's claims to deeper models, False for the published ones.
    """
    own = study["models"][model]["findings"]
    found = {row["claim"]: Finding(**row, **own[row["claim"]]) for row in study["claims"] if row["claim"] in own}
    return {claim: f for claim, f in found.items() if extension is None or f.extension is extension}


def rows_of(study: Mapping[str, Any], *, extension: bool) -> list[dict[str, Any]]:
    """Return the claims that some model's findings state as published, or as an extension."""
    stated = {claim for model in study["models"] for claim in findings_of(study, model, extension=extension)}
    return [row for row in study["claims"] if row["claim"] in stated]


def _overview(studies: Mapping[str, Any]) -> str:
    published, extended = (_counts(studies, extension=extension) for extension in (False, True))
    lines = ["## Overview", "", *published, ""]
    if extended:
        lines += ["Extensions, which no paper states:", "", *extended, ""]
    return "\n".join(lines)


def _counts(studies: Mapping[str, Any], *, extension: bool) -> list[str]:
    lines: list[str] = []
    for name, study in studies.items():
        rows = rows_of(study, extension=extension)
        for model in study["models"] if rows else ():
            found = findings_of(study, model, extension=extension)
            if extension and not found:
                continue
            counts = Counter(outcome(found.get(row["claim"])) for row in rows)
            lines.append(f"| {name} | {model} | {' | '.join(str(counts[kind]) for kind in OUTCOMES)} |")
    head = [f"| paper | model | {' | '.join(OUTCOMES)} |", "|---|---|" + "---:|" * len(OUTCOMES)]
    return [*head, *lines] if lines else []


def _study(study: Mapping[str, Any]) -> str:
    lines = [f"## {study['source'].partition('. Their model')[0]}", ""]
    for model, made in study["models"].items():
        facts = ", ".join(f"{name} {format_number(value)}" for name, value in made["facts"].items() if value != "")
        lines.append(f"* **{model}**: {facts}. {Provenance.from_dict(made['provenance']).line()}.")
    for number, row in enumerate(rows_of(study, extension=False), 1):
        found = {model: findings_of(study, model, extension=False) for model in study["models"]}
        lines += ["", f"### {number}. {_text(row['claim'])}", "", *_stated(row, found.values()), ""]
        lines += [line for model, own in found.items() for line in _outcome_of(model, own.get(row["claim"]))]
    if extended := rows_of(study, extension=True):
        lines += ["", "### Extensions to deeper models", "", _EXTENDED]
    for number, row in enumerate(extended, 1):
        found = {model: findings_of(study, model, extension=True) for model in study["models"]}
        lines += ["", f"#### Extension {number}. {_text(row['claim'])}", "", *_stated(row, found.values()), ""]
        lines += [
            line
            for model, own in found.items()
            if row["claim"] in own
            for line in _outcome_of(model, own[row["claim"]])
        ]
    return "\n".join([*lines, ""])


def _stated(row: Mapping[str, Any], found: Iterable[Mapping[str, Finding]]) -> Iterator[str]:
    """Yield what the paper states and how it is tested, a paragraph."""
    quantity = row["quantity"].rstrip(".")
    stated = next(own[row["claim"]] for own in found if row["claim"] in own)
    unstated = stated.extension or stated.published in ("", "in words", row["claim"])
    published = "" if unstated else f" Published: {stated.published.rstrip('.')}."
    yield _text(f"{row['source']}. Measured: {quantity}.{published} Test: {row['test']}")


def _outcome_of(model: str, finding: Finding | None) -> Iterator[str]:
    if finding is None:
        yield f"* **{model}** cannot be tested: its report has no such measurement."
        return
    yield f"* **{model}**, {outcome(finding)}: {_text(finding.here)}"
    if finding.control:
        yield f"    * random weights: {_text(finding.control)}"
    if finding.explanation:
        yield f"    * why: {_text(finding.explanation)}"


def _text(text: str) -> str:
    """Return a report's text as Markdown in one line, in which nothing is a tag, a link or a table."""
    for sign in "\\*_<>[]|":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return " ".join(as_written(text).split())


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("do", choices=("add", "page", "random"))
    parser.add_argument("folders", nargs="*", type=Path, help="folders that `unembed report` wrote; a model's name")
    parser.add_argument("--sample", default="", help="the options that set the sample of these reports")
    given = parser.parse_args(words)
    stored = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {"studies": {}}
    try:
        if given.do == "random":
            for name in map(str, given.folders):
                _save_random(name)
        elif given.do == "add":
            stored = added(stored, [reopen(folder) for folder in given.folders], given.sample)
            DATA.write_text(json.dumps(stored, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        else:
            PAGE.write_text(page(stored), encoding="utf-8")
    except UnembedError as fault:
        parser.exit(1, f"{fault}\n")


def _save_random(name: str) -> None:
    lm = with_random_weights(unembed.load(name, dtype="float32"))
    for part in (lm.hf, lm.tokenizer):
        if part is not None:
            part.save_pretrained(name + RANDOM)


if __name__ == "__main__":
    main()
