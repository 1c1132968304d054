"""Date the findings of one model's checkpoints: the step of training from which each finding holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unembed.document.model import Exhibit, Finding, Section
from unembed.results import Provenance, Table

ONSETS = "over_training"
"""Name of the table of dates: a line for each claim."""
_COUNT = re.compile(r"(?:^|[^a-z])(steps?|tokens)[-_]?(\d+)/?$", re.IGNORECASE)


class Onset(NamedTuple):
    """When a finding begins to hold: after the checkpoint `after`, and at the checkpoint `by` at the latest.

    Attributes:
        after: the last checkpoint at which the finding is judged not to hold; None if it is never so judged.
        by: the first checkpoint of the unbroken series, up to the last checkpoint, at which it holds; None if it does
            not hold at the last checkpoint.
    """

    after: int | None
    by: int | None


def onset(holds: Mapping[int, bool | None]) -> Onset:
    """Return when a finding begins to hold.

    Args:
        holds: whether the finding holds at each checkpoint, by the checkpoint's step; None if inconclusive.
    """
    steps = sorted(holds)
    by = None
    for step in reversed(steps):
        if not holds[step]:
            break
        by = step
    return Onset(max((step for step in steps if holds[step] is False), default=None), by)


def counts(names: Sequence[str]) -> tuple[str, list[int]] | None:
    """Return "steps" or "tokens", and the count that each name ends with, such as 1000 of "step1000".

    None unless each name ends with a different count of the same unit.
    """
    found = [_COUNT.search(name) for name in names]
    units = {"tokens" if m is not None and m[1].lower() == "tokens" else "steps" for m in found}
    each = [int(m[2]) for m in found if m is not None]
    return (units.pop(), each) if len(units) == 1 and len(set(each)) == len(names) else None


def holds(finding: Finding | None) -> bool | None:
    """Return whether a finding agrees with the paper where random weights do not; None if it is inconclusive."""
    if finding is None or finding.verdict == "inconclusive":
        return None
    return finding.verdict == "agrees" and finding.informative


def over_training(
    findings: Mapping[str, Mapping[str, Finding]], models: Sequence[str], provenance: Provenance
) -> Section | None:
    """Return a section with the step from which each finding holds; None if the models' names state no steps.

    Args:
        findings: the finding on each model, by the claim and the model's name.
    """
    dated = counts(models)
    if dated is None or not findings:
        return None
    unit, each = dated
    step = dict(zip(models, each, strict=True))
    onsets = [onset({step[model]: holds(found.get(model)) for model in models}) for found in findings.values()]
    columns: dict[str, list[Any]] = {
        "claim_text": list(findings),
        f"{unit}_after": [o.after if o.by is not None else None for o in onsets],
        f"{unit}_at_most": [o.by for o in onsets],
    }
    note = (
        f"A finding begins to hold after the first number of {unit} (the last checkpoint that differs from the paper) "
        "and at the second at the latest; from there it holds at each checkpoint up to the last. No first number: no "
        "checkpoint differs. No second number: it does not hold at the last checkpoint, or its test is inconclusive "
        "there. A finding that random weights also give counts as not holding."
    )
    return Section(
        "Over training", (), (Exhibit(ONSETS, Table("When findings begin to hold", columns, provenance), note),)
    )
