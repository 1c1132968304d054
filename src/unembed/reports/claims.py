"""Claims of a paper as rows of one table: the claim, what is measured for it, and the test that judges it.

A study lists its claims once; its code, its page and its tests read that list. A claim's `measure` takes the study's
measurements to a few numbers, its `judge` takes these numbers to a verdict, so that a test can hand it made-up ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from unembed.document.intervals import Measured
from unembed.document.model import Finding, Verdict
from unembed.errors import Unsupported

M = TypeVar("M")
UNEXPLAINED = "Unexplained: nothing measured here accounts for it."
"""The text of a finding that differs where its claim has no explanation."""
Numbers = Mapping[str, Any]
"""The arguments that a claim's `measure` passes to its `judge`, by name."""


@dataclass(frozen=True)
class Judgement:
    """The measurement for a claim, as a sentence, and the verdict."""

    here: str
    verdict: Verdict


@dataclass(frozen=True)
class Claim(Generic[M]):
    """A published statement with its measurement and its test.

    Attributes:
        name: unique in the study.
        section: of the report that contains the finding.
        claim: the statement in the paper's words.
        source: where the paper makes it.
        quantity: what is measured.
        published: the paper's value of that quantity, in words.
        test: the threshold in words, and why it is this one.
        measure: the numbers that `judge` takes, by name; None where the model or the options give none.
        judge: takes the numbers to a judgement.
        explain: of a finding that differs: a sentence of measured facts; None where they explain nothing.
    """

    name: str
    section: str
    claim: str
    source: str
    quantity: str
    published: str
    test: str
    measure: Callable[[M], Numbers | None]
    judge: Callable[..., Judgement]
    explain: Callable[[M], str | None] = lambda _: None

    def judgement(self, m: M) -> Judgement | None:
        """The judgement on a study's measurements; None where there is nothing to judge.

        Where the architecture lacks what is measured, the judgement states the reason.
        """
        try:
            numbers = self.measure(m)
        except Unsupported as refused:
            return Judgement(f"Not available: {refused}", "inconclusive")
        return None if numbers is None else self.judge(**numbers)

    def finding(self, m: M, control: Judgement | None = None) -> Finding | None:
        """The row of the report; None where there is nothing to judge.

        Args:
            control: the judgement on the model with random weights.
        """
        found = self.judgement(m)
        if found is None:
            return None
        return Finding(
            self.claim,
            self.source,
            self.quantity,
            self.published,
            found.here,
            self.test,
            found.verdict,
            "" if control is None else f"{control.here} ({control.verdict})",
            control is None or control.verdict != "agrees",
            (self.explain(m) or UNEXPLAINED) if found.verdict == "differs" else "",
        )


def findings_by_section(
    claims: Sequence[Claim[M]], m: M, control: Mapping[str, Judgement] | None = None
) -> dict[str, tuple[Finding, ...]]:
    """The findings of a study by section, in the order of its claims.

    Args:
        control: judgements on the model with random weights, by name of the claim.
    """
    rows: dict[str, tuple[Finding, ...]] = {}
    for claim in claims:
        found = claim.finding(m, (control or {}).get(claim.name))
        if found is not None:
            rows[claim.section] = (*rows.get(claim.section, ()), found)
    return rows


def verdict_of(*conditions: bool | None) -> Verdict:
    """The verdict of a test of several conditions: all must hold; None means that a condition is inconclusive.

    If any condition fails, the claim fails.
    """
    if any(c is not None and not c for c in conditions):
        return "differs"
    return "inconclusive" if any(c is None for c in conditions) else "agrees"


def at_depth(n_layers: int, depth: int, *conditions: bool | None) -> tuple[bool | None, ...]:
    """The conditions, or an open one where the claim is about models of another depth."""
    return conditions if n_layers == depth else (None,)


def above(measured: Measured, line: int | float) -> bool | None:
    """Whether the whole interval lies above a line; None where the line lies in it, or nothing was measured."""
    if measured.low > line:
        return True
    return False if measured.high < line else None


def below(measured: Measured, line: int | float) -> bool | None:
    """Whether the whole interval lies below a line; None where the line lies in it, or nothing was measured."""
    if measured.high < line:
        return True
    return False if measured.low > line else None


def within(measured: Measured, low: int | float, high: int | float) -> bool | None:
    """Whether the whole interval lies in a band; None where it crosses an end, or nothing was measured."""
    inside = above(measured, low), below(measured, high)
    return False if False in inside else None if None in inside else True
