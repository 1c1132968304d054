"""The data of `unembed trace` and `unembed explain`: plain Python values, shown as terminal text, JSON or a page.

Ranks count from 1, the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from unembed.attention.behaviour.head_outputs import HeadUpdate
from unembed.logit_attribution import Row
from unembed.memories.top_sub_updates import SubUpdate
from unembed.models.named_tokens import Candidate, MovedTokens, Token
from unembed.names import head_name
from unembed.trace.described_memories import DescribedMemory

SCHEMA_TRACE = "unembed.trace/3"
SCHEMA_EXPLAIN = "unembed.explain/3"
"""Names of the JSON forms; the number rises when a field changes its meaning or is removed."""
READERS = {
    "final": "the logit lens",
    "raw": "the unembedding alone",
    "frozen": "the logit lens at the run's norm scale",
    "jacobian": "the Jacobian lens",
}
"""By basis: the name of the lens that reads the stream."""


@dataclass(frozen=True)
class EventView:
    """A change in a token's rank: a saturation, an elimination, a rise or a fall.

    Saturation: the final prediction becomes first and stays first. Elimination: the token that was first falls.
    """

    kind: str
    layer: int
    position: int
    id: int
    token: str
    rank_before: int
    rank_after: int
    cause: str
    """"ffn", "attention", "mixer" (another token mixer) or, for a token that ranked first before any update,
    "embedding"."""
    sentence: str = ""
    """The whole event in words."""
    update: str = "FFN"
    """The cause in words, such as "FFN" or "mixer (Mamba)"."""

    @property
    def place(self) -> str:
        """The layer and the update in it, or the embedding, as text."""
        return "embedding" if self.cause == "embedding" else f"layer {self.layer} {self.update}"

    @property
    def happened(self) -> str:
        """How the token's rank changed, as text that continues a sentence after the token's name."""
        if self.kind in ("rise", "fall"):
            return f"{self.kind}s from rank {self.rank_before:,} to {self.rank_after:,}"
        if self.kind == "elimination":
            return f"falls from rank 1 to {self.rank_after:,}"
        if self.cause == "embedding":
            return "ranks first before any update and after each"
        return f"rises from rank {self.rank_before:,} to 1 and stays there"


@dataclass(frozen=True)
class TriggerView:
    """A corpus position where a memory's coefficient is among its largest, with the text before it."""

    coefficient: float
    document: int
    prefix: str
    token: str
    next_token: str | None


@dataclass(frozen=True)
class SubUpdateView(SubUpdate):
    """What one memory adds to a layer's FFN output at the position, and its top trigger in a corpus."""

    trigger: TriggerView | None = None
    """The corpus position at which its coefficient is largest among those of the same sign as here; None without an
    index."""
    without: float | None = None
    """The target's probability without this memory; None if it was not measured."""
    moved: MovedTokens | None = None
    """The tokens whose probability the memory raises and lowers most, measured in the same rerun as `without`."""


@dataclass(frozen=True)
class MemoriesView:
    """The memories (FFN neurons) with the largest effects on the logit difference, of all layers shown.

    `score` is a memory's effect: what it adds to the difference of the two logits, or to the one logit.
    """

    rows: list[SubUpdateView]
    """The largest effect first, without silent memories and those that are always on."""
    always_on: list[SubUpdateView]
    """Memories that are on for nearly every token, which are not in `rows`."""
    others: int
    """Number of active memories that are in neither list; the next field is the sum of their effects."""
    others_effect: float
    total: float
    """What all memories of the layers add together."""


@dataclass(frozen=True)
class HeadSource:
    """A token that a head attends to, and what the head adds from it."""

    position: int
    id: int
    token: str
    weight: float
    """The head's attention weight for this token."""
    effect: float
    """The part of the head's effect that comes from this source token, in logits."""


@dataclass(frozen=True)
class HeadEffectView:
    """What one head adds to the logit difference."""

    layer: int
    head: int
    effect: float
    """What the head adds to the difference of the two logits, or to the target's logit if it is explained alone."""
    sources: list[HeadSource]
    """The source tokens from which the effect comes, the largest absolute part first; empty if heads cannot be split by
    source token."""
    without: float | None = None
    """The target's probability when the head's output at the position is set to 0; None if this was not measured."""
    moved: MovedTokens | None = None
    """The tokens whose probability the head raises and lowers most, measured in the same rerun as `without`."""

    @property
    def name(self) -> str:
        """The name of the head, such as L23H4."""
        return head_name(self.layer, self.head)


@dataclass(frozen=True)
class HeadEffectsView:
    """The heads with the largest effects on the logit difference, of all layers."""

    rows: list[HeadEffectView]
    others: int
    """Number of heads that are not in the list; the next field is the sum of their effects."""
    others_effect: float


@dataclass(frozen=True)
class LayerView:
    """One layer at the position shown. Ranks and probabilities are those of the target token."""

    layer: int
    before: list[Candidate]
    middle: list[Candidate] | None
    after: list[Candidate]
    rank_before: int
    rank_middle: int | None
    rank_after: int
    events: list[EventView]
    sub_updates: list[SubUpdateView]
    probability_before: float = 0.0
    """The target token's probability before the layer's updates."""
    probability_middle: float | None = None
    probability_after: float = 0.0
    middle_from: list[int] | None = None
    """For each token in `middle`, its rank before the layer; None if several layers are shown, or if `middle` is
    None."""
    after_from: list[int] | None = None
    """For each token in `after`, its rank between attention and FFN, or before the layer if `middle` is None."""
    heads: list[HeadUpdate] = field(default_factory=list[HeadUpdate])
    """What the layer's heads add; empty unless requested."""
    mixer: str = "attention"
    """The name of the component before the FFN, such as "attention" or "mixer (Mamba)"."""


def mixer_of_all(layers: Sequence[LayerView]) -> str:
    """Return the mixers' common name, such as "attention"; "mixer" if layers differ."""
    names = {layer.mixer for layer in layers if layer.mixer}
    return names.pop() if len(names) == 1 else "mixer"


def mixers_in_words(layers: Sequence[LayerView]) -> str:
    """Say which layers have which mixer, if they differ: "attention in layers 1, 3; mixer (Mamba) in layers 0, 2"."""
    by_name: dict[str, list[str]] = {}
    for layer in layers:
        by_name.setdefault(layer.mixer or "no mixer", []).append(str(layer.layer))
    if len(by_name) < 2:
        return ""
    return "; ".join(f"{name} in layer{'s' * (len(of) > 1)} {', '.join(of)}" for name, of in by_name.items())


@dataclass(frozen=True)
class AttributionView:
    """A logit, or the difference of two logits, as a sum over components, with the error of the sum.

    `rows` are the components shown; all others are counted in `others` and summed in `others_contribution`.
    """

    by: str
    id: int
    token: str
    against: str | None
    logit: float
    total: float
    error: float
    rows: list[Row]
    others: int
    others_contribution: float
    always_on: list[Row] = field(default_factory=list[Row])
    """In an attribution by memory: the memories that are on for nearly every token, which are not in `rows`."""


@dataclass(frozen=True)
class GridView:
    """The top tokens of every layer and position at one capture point of the stream."""

    point: str
    layers: list[int]
    rows: list[list[list[Candidate]]]
    massive: dict[int, list[int]]
    """By position: the layers whose stream has massive activations, so that the lens reads little there. Positions
    without any are left out."""


@dataclass(frozen=True)
class Finding:
    """One sentence about a prediction, and the layer and component that it is about, to which the explorer links.

    `kind`: "head", "memory" or "layer" (the component without which the target falls most), "settled", "displaced", or
    "massive" (what a lens reads at the position says little).
    """

    kind: str
    sentence: str
    definition: str
    """What the finding's statement means: its definition, in one sentence."""
    nats: float
    """How much the target's log-odds fall without the component (for two chosen tokens, the difference of their
    logits). For the kinds "settled" and "displaced": how much the token's log-probability changes. 0 for "massive"."""
    layer: int
    point: str
    """The stream after the update: resid_mid after attention or another mixer, resid_post after the FFN; resid_pre
    for the embedding."""
    index: int | None
    """The index of the memory or head in its layer; None for other components."""
    source: int | None = None
    """The position that the head reads; None for other components."""


@dataclass(frozen=True)
class TraceView:
    """Everything that `unembed trace` and `unembed explain` show."""

    schema: str
    provenance: dict[str, Any]
    model: str
    sizes: str
    prompt: str
    edits: list[str]
    tokens: list[Token]
    position: int
    basis: str
    show_unlearned: bool
    prediction: list[Candidate]
    without_edits: list[Candidate] | None
    target: Token
    against: Token | None
    """The token that the target is compared with: the runner-up, if no other was chosen."""
    layers: list[LayerView]
    grid: GridView | None
    attributions: list[AttributionView]
    findings: list[Finding] = field(default_factory=list[Finding])
    """At most three findings: the component that matters most, when the prediction settles, which token it displaced.
    Empty if one layer is shown."""
    moves: list[EventView] = field(default_factory=list[EventView])
    """Updates across which the target's rank at least halves or doubles; empty if one layer is shown."""
    described: list[DescribedMemory] = field(default_factory=list[DescribedMemory])
    """Memories with a description that promote the target, the largest effect first."""
    memories: MemoriesView | None = None
    """What the memories add to the logit difference; None if the model has no memories, or none were requested."""
    roles: list[str | None] | None = None
    """The role of each token of a conversation, None for the chat template's tokens; None for a plain-text prompt."""
    heads: HeadEffectsView | None = None
    """What the heads add to the logit difference; None if a layer's attention output is not the sum of what its heads
    write, or if one layer is shown."""
    hidden: int = 0
    """Number of tokens that the lists leave out: tokens that are only some bytes of a character, and tokens that the
    model never learned.
    Ranks count them."""
    removed: int = 0
    """Number of components that were removed one at a time, for the findings and the fields `without`."""

    @property
    def reader(self) -> str:
        """The name of the lens that reads the stream."""
        return READERS[self.basis]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values; `roles` only if the prompt is a conversation."""
        return {name: value for name, value in asdict(self).items() if name != "roles" or value is not None}
