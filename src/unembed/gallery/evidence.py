"""The evidence for one memory, the score that combines it, and the description that follows from it by rule.

The evidence has five measures, called ingredients: coherence, concept, triggers (a pattern in the texts on which the
memory fires most), agreement, effect. Each has a size, from 0 (as expected by chance) to 1, and a p-value. The score of
a memory is the mean of the five sizes. A measure counts as 0 if its p-value is above `SIGNIFICANT` or if it could not
be measured. The pattern also counts as 0 if promoted tokens do not follow the texts (agreement not significant),
because the pattern by itself describes only where the memory fires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from unembed.names import memory_name
from unembed.results import format_cell

if TYPE_CHECKING:  # so that a saved gallery can be read without importing the modules that find patterns
    from unembed.gallery.trigger_patterns import Slot, TriggerPattern

INGREDIENTS = ("coherence", "concept", "triggers", "agreement", "effect")
SIGNIFICANT = 0.01
NAMED_SHARE = 0.15
"""A description names a concept only if the size of its evidence is at least this."""


@dataclass(frozen=True)
class Evidence:
    """One of the five measures: its size and its p-value."""

    size: float
    """How far the measure exceeds chance, 0 to 1; for the effect, a difference of probabilities."""
    p: float

    @property
    def counted(self) -> float:
        """The size of the measure if its p-value is at most `SIGNIFICANT`, else 0."""
        return self.size if self.p <= SIGNIFICANT else 0.0


@dataclass(frozen=True)
class Truth:
    """How well a value vector's token scores correlate with the change of the logits when it is added to the stream."""

    correlation: float
    control: float
    """The 99 % quantile of the absolute correlations of scores with the effects of other value vectors of the layer."""


@dataclass(frozen=True)
class MemoryEvidence:
    """A memory (FFN neuron) with all the evidence that it does something a person can name.

    A measure is None if it could not be computed (too few tokens, or no index). The effect is also None for memories
    for which it was not measured.
    """

    layer: int
    index: int
    pole: str
    """The sign of the coefficient: "positive", or "negative" for a gated memory whose coefficient is negative on these
    texts."""
    description: str
    top_tokens: tuple[str, ...]
    """The tokens that the memory promotes at this sign, most promoted first."""
    top_ids: tuple[int, ...]
    concept: str | None
    """The class that the top tokens share and that is least probable by chance."""
    concept_tokens: tuple[str, ...]
    """The top tokens that belong to the concept."""
    pattern: str | None
    """What the texts on which the memory fires most have in common, in words."""
    evidence: dict[str, Evidence | None]
    """The five measures by name, in the order of `INGREDIENTS`."""

    experts: tuple[int, int] | None = None
    """The number of experts in the layer and of memories in each; None in a layer without experts."""

    truth: Truth | None = None
    """How well the top tokens agree with those that adding the value vector raises; None if that was not measured."""

    def with_truth(self, truth: Truth) -> MemoryEvidence:
        """Return the row with the result of `reading_truth`.

        If adding the value vector does not raise the promoted tokens, the new description is a sentence that states
        this.
        """
        found = replace(self, truth=truth)
        if found.is_borne_out:
            return found
        tokens = ", ".join(_quoted(token) for token in self.top_tokens[:3])
        size = f"r {format_cell(truth.correlation)}, control {format_cell(truth.control)}"
        said = f"adding it raises what it lists no more than adding other values does ({size}): {tokens}"
        return replace(found, description=said)

    @property
    def is_borne_out(self) -> bool:
        """Whether adding the value vector raises the promoted tokens; also True if that was not measured."""
        return self.truth is None or self.truth.correlation >= self.truth.control

    @property
    def truth_in_words(self) -> str | None:
        """Whether adding the value vector raises its top tokens, as a sentence; None if it was not measured."""
        if self.truth is None:
            return None
        does = "raises what it is read to promote" if self.is_borne_out else "does not raise what it is read to promote"
        return (
            f"adding it {does}: r {format_cell(self.truth.correlation)} over the vocabulary (99 % of "
            f"other values' effects stay below r {format_cell(self.truth.control)})"
        )

    @property
    def name(self) -> str:
        """The memory's name, such as L5M278 or L5E2M14, with a minus sign for negative coefficients."""
        return ("-" if self.pole == "negative" else "") + memory_name(self.layer, self.index, self.experts)

    @property
    def score(self) -> float:
        """The score: the mean of the five sizes, where some count as 0 (see the function `score`)."""
        return score(self.evidence)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        row = {"memory": self.name, "score": self.score, **asdict(self)}
        optional = ("experts", "truth")
        return {k: v for k, v in row.items() if k not in optional or v is not None}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> MemoryEvidence:
        """Build a row from what `to_dict` returned."""
        values = {field.name: row[field.name] for field in fields(cls) if field.name not in ("experts", "truth")}
        values["experts"] = tuple(row["experts"]) if row.get("experts") else None
        values["truth"] = Truth(**row["truth"]) if row.get("truth") else None
        for name in ("top_tokens", "top_ids", "concept_tokens"):
            values[name] = tuple(values[name])
        values["evidence"] = {name: one and Evidence(**one) for name, one in row["evidence"].items()}
        return cls(**values)


def score(evidence: dict[str, Evidence | None]) -> float:
    """Return the mean of the five sizes, 0 to 1, where some count as 0 as this module's docstring describes."""
    counted = {name: 0.0 if one is None else one.counted for name, one in evidence.items()}
    if not counted["agreement"]:
        counted["triggers"] = 0.0
    return sum(counted.values()) / len(INGREDIENTS)


def describe_pattern(pattern: TriggerPattern | None) -> str | None:
    """Describe in words the pattern of the texts on which a memory fires most, such as "after 'on' + number"."""
    if pattern is None:
        return None
    if pattern.word is not None:
        return f"in text with {_quoted(pattern.word.name)}"
    return "after " + " + ".join(_part(slot) for slot in pattern.slots)


def _part(slot: Slot) -> str:
    return _quoted(slot.name) if slot.is_token else slot.name


def _quoted(text: str) -> str:
    return f"'{text.strip() or text}'"


def describe(
    pattern: str | None,
    concept: str | None,
    concept_tokens: tuple[str, ...],
    top_tokens: tuple[str, ...],
    evidence: dict[str, Evidence | None],
) -> str:
    """Write a one-line description: the pattern of the texts on which the memory fires most, then what it promotes.

    The pattern is included if it is significant. The concept is named, with example tokens, if it is significant and
    large enough. Otherwise the first promoted tokens are quoted, and nothing is claimed about them.
    """
    triggers, named = evidence["triggers"], evidence["concept"]
    where = pattern if triggers is not None and triggers.counted > 0 else None
    if concept is not None and named is not None and named.counted >= NAMED_SHARE:
        what = f"{concept} ({', '.join(token.strip() for token in concept_tokens[:3])})"
    else:
        what = "tokens such as " + ", ".join(_quoted(token) for token in top_tokens[:3])
    return f"{where}: {what}" if where is not None else what
