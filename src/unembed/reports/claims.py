"""Claims of a paper as rows of one table, for the study that is not yet written as quantities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from unembed.document.model import Finding
from unembed.errors import Unsupported
from unembed.reports.quantities import UNEXPLAINED as UNEXPLAINED
from unembed.reports.quantities import Judgement as Judgement
from unembed.reports.quantities import above as above
from unembed.reports.quantities import at_depth as at_depth
from unembed.reports.quantities import below as below
from unembed.reports.quantities import verdict_of as verdict_of
from unembed.reports.quantities import within as within

M = TypeVar("M")
Numbers = Mapping[str, Any]
"""The arguments that a claim's `measure` passes to its `judge`, by name."""


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
