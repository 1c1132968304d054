"""The evidence for one memory, the score that combines it, and the description that follows from it by rule.

Each ingredient has a size, 0 (as expected by chance) to 1, and a p-value. The score of a memory is the mean size of
the five ingredients. An ingredient with a p-value above `SIGNIFICANT`, or one that could not be measured, counts as 0.
So does the pattern of the triggers where promoted tokens do not follow them (agreement not significant): alone, it
describes the key, not the value. A high score therefore needs a value with a theme, triggers with a pattern, and
agreement of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from unembed.names import memory_name

if TYPE_CHECKING:  # a saved gallery is read without the modules that find patterns
    from unembed.gallery.trigger_patterns import Slot, TriggerPattern

INGREDIENTS = ("coherence", "concept", "triggers", "agreement", "effect")
SIGNIFICANT = 0.01
NAMED_SHARE = 0.15
"""The smallest size of a concept that a description names."""


@dataclass(frozen=True)
class Evidence:
    """One ingredient."""

    size: float
    """0 to 1; for the effect in units of probability."""
    p: float

    @property
    def counted(self) -> float:
        """The size of the ingredient if its p-value is small enough, else 0."""
        return self.size if self.p <= SIGNIFICANT else 0.0


@dataclass(frozen=True)
class Truth:
    """Correlation of a value's scores with what adding it does to the logits, as `reading_truth` measures it."""

    correlation: float
    control: float
    """The size below which 99 % of the correlations with other values' effects stay."""


@dataclass(frozen=True)
class MemoryEvidence:
    """A memory (FFN neuron) with all the evidence that it does something a person can name.

    An ingredient is None where it could not be measured: too few tokens, no index, or not among those whose effect was
    measured.
    """

    layer: int
    index: int
    pole: str
    """"positive", or "negative" for a gated memory whose coefficient is negative on these triggers."""
    description: str
    top_tokens: tuple[str, ...]
    """The tokens it promotes at this pole, most promoted first."""
    top_ids: tuple[int, ...]
    concept: str | None
    """The least probable class among the top tokens."""
    concept_tokens: tuple[str, ...]
    """Those of the top tokens that belong to it."""
    pattern: str | None
    """The shared pattern of the triggers."""
    evidence: dict[str, Evidence | None]
    """By ingredient, in the order of `INGREDIENTS`."""

    experts: tuple[int, int] | None = None
    """How many experts its layer has and how many memories each, where memories belong to experts."""

    truth: Truth | None = None
    """How far the top tokens are those that adding the value raises; None where that was not measured."""

    def with_truth(self, truth: Truth) -> MemoryEvidence:
        """Return the row with a measured truth, which its description states where it does not bear it out."""
        found = replace(self, truth=truth)
        if found.is_borne_out:
            return found
        tokens = ", ".join(_quoted(token) for token in self.top_tokens[:3])
        size = f"r {truth.correlation:.2f}, control {truth.control:.2f}"
        said = f"adding it raises what it lists no more than adding other values does ({size}): {tokens}"
        return replace(found, description=said)

    @property
    def is_borne_out(self) -> bool:
        """Tell whether the description may be shown as one: its effect, where it was measured, bears it out."""
        return self.truth is None or self.truth.correlation >= self.truth.control

    @property
    def name(self) -> str:
        """Its name, such as L5M278 or L5E2M14, with a minus sign in front for a negative pole."""
        return ("-" if self.pole == "negative" else "") + memory_name(self.layer, self.index, self.experts)

    @property
    def score(self) -> float:
        """The mean size of the five ingredients, as `score` counts them."""
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
    """Return the mean size of the five ingredients, 0 to 1, each counted as described above."""
    counted = {name: 0.0 if one is None else one.counted for name, one in evidence.items()}
    if not counted["agreement"]:
        counted["triggers"] = 0.0
    return sum(counted.values()) / len(INGREDIENTS)


def describe_pattern(pattern: TriggerPattern | None) -> str | None:
    """Write the shared pattern of the triggers in words: "after 'on' + number"."""
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
    """Write one line from the evidence alone: the trigger pattern (see `describe_pattern`), then what is promoted.

    The pattern is named if it is significant. The concept is named if it is significant and large enough; its tokens
    follow as examples. Without a concept the first tokens are quoted, and nothing is claimed about them.
    """
    triggers, named = evidence["triggers"], evidence["concept"]
    where = pattern if triggers is not None and triggers.counted > 0 else None
    if concept is not None and named is not None and named.counted >= NAMED_SHARE:
        what = f"{concept} ({', '.join(token.strip() for token in concept_tokens[:3])})"
    else:
        what = "tokens such as " + ", ".join(_quoted(token) for token in top_tokens[:3])
    return f"{where}: {what}" if where is not None else what
