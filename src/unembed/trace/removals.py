"""Remove components of the model one at a time on a prompt, and measure what is then predicted after a position.

Candidates come from direct attribution, which covers every component at no extra cost, but counts only its direct
effect. So each candidate is measured: the prompt is rerun with the component's output set to zero, at this position
only. If an early layer's component were zero at every position, later components could not read the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.effects import zeroed
from unembed.causality.last_position import LastPosition
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun
from unembed.models.named_tokens import MovedTokens, moved_tokens

if TYPE_CHECKING:
    from unembed.stream.interventions import Edit
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace

PartKind = Literal["head", "memory", "attention", "mixer", "ffn"]
_LEAST_TOKENS, _MOST_PASSES, _LEAST_PARTS = 256, 1.5, 4
"""All reruns together may cost as much as running `_LEAST_TOKENS` tokens through all layers, or `_MOST_PASSES` forward
passes of the prompt, whichever is more. `_LEAST_PARTS` components are removed even if they cost more."""
_READING_WEIGHTS = 32
"""Number of tokens for which computing a layer takes about as long as loading its weights."""


@dataclass(frozen=True)
class Part:
    """A head or a memory, or the attention, mixer or FFN of a layer, with what it adds to the logit difference."""

    kind: PartKind
    layer: int
    index: int | None
    contribution: float

    @property
    def key(self) -> tuple[str, int, int | None]:
        """Return the kind, layer and index that identify the component."""
        return self.kind, self.layer, self.index


@dataclass(frozen=True)
class Removal:
    """The prediction after a position when one component is removed."""

    part: Part
    probability: float
    """The probability of the token that is explained."""
    effect: float
    """How much the token's log-odds fall, in nats; for a chosen pair of tokens, how much the difference of their logits
    falls."""
    first: int
    """The most likely token without the component."""
    gained: int
    """The token whose probability rises most without the component."""
    gained_from: float
    gained_to: float
    tokens: MovedTokens
    """The tokens whose probability the component raises and lowers most."""


def affordable(parts: Sequence[Part], n_layers: int, n_tokens: int) -> list[Part]:
    """Return the first components: as many as can be removed cheaply, compared with a forward pass of the prompt.

    A rerun starts at the component's layer, so components of late layers are cheaper.
    """
    left = max(_LEAST_TOKENS, _MOST_PASSES * n_tokens)
    chosen: list[Part] = []
    for part in parts:
        left -= n_tokens * (n_layers - part.layer) / n_layers
        if left < 0 and len(chosen) >= _LEAST_PARTS:
            break
        chosen.append(part)
    return chosen


def split_by_cost(layers: Sequence[int], n_layers: int, n_tokens: int) -> list[slice]:
    """Split reruns, sorted by the layer at which each starts, into the batches with the least total cost.

    A batch starts at the lowest layer of its reruns. The cost of a layer is its number of tokens, but at least the cost
    of loading its weights.
    """
    # Dynamic programming: best[n] is the least cost of the first n reruns, and the number of the rerun with which
    # their last batch begins.
    best: list[tuple[float, int]] = [(0.0, 0)]
    for stop in range(1, len(layers) + 1):
        costs = (
            (best[start][0] + (n_layers - layers[start]) * max(_READING_WEIGHTS, (stop - start) * n_tokens), start)
            for start in range(stop)
        )
        best.append(min(costs))
    batches: list[slice] = []
    stop = len(layers)
    while stop:
        batches.insert(0, slice(best[stop][1], stop))
        stop = best[stop][1]
    return batches


@dataclass(frozen=True, eq=False)
class ReadBy:
    """A head, and the source tokens that are removed from its attention one at a time."""

    layer: int
    head: int
    weights: Float[Tensor, " src"]
    """The head's attention weights at the position."""
    values: Float[Tensor, "src d_head"]
    """The head's value vector of each source."""
    sources: Sequence[int]

    def rows(self) -> list[Float[Tensor, " d_head"]]:
        """Return the head's mixed values: with all sources, then without each of `sources`."""
        weights = [self.weights, *(self.weights.index_fill(0, torch.tensor(one), 0.0) for one in self.sources)]
        return [one.to(self.values) @ self.values for one in weights]


class Removals:
    """Reruns of a trace's prompt up to a position, each without one component.

    Where the model allows it, only that position is rerun. The keys and values of earlier positions are those of the
    trace's first pass, because removing a component at the position does not change them. Otherwise the
    prompt up to the position is rerun.
    """

    def __init__(self, trace: Trace, question: Question, position: int, *, chosen_pair: bool = False) -> None:
        """Prepare reruns, each of which starts at the layer of the component that is removed.

        Args:
            question: the token that is explained, and the token it is compared with.
            position: the position whose prediction is measured, from 0.
            chosen_pair: measure the difference of the two tokens' logits, instead of the token's log-odds.

        Raises:
            UnembedError: the prompt cannot be rerun in this model.
        """
        self._token, self._against = question.token, question.against if chosen_pair else None
        self._where = torch.tensor([position])
        edits = _up_to(trace.edits, position, len(trace))
        self._rerun = Rerun(
            trace.lm,
            trace.tokens[None, : position + 1],
            edits=edits,
            seen=trace.run,
            outputs=trace.block_outputs,
            reference=trace.logits(position),
        )
        self._last = None if trace.keys is None else LastPosition(self._rerun, trace.keys)

    @torch.no_grad()
    def without(self, parts: Sequence[Part]) -> list[Removal]:
        """Return the prediction without each component, in the given order.

        If all tokens must be rerun, only the first components are removed: as many as `affordable` returns.

        Raises:
            UnembedError: a component cannot be removed in this model.
        """
        changes = [zeroed(*part.key, self._where) for part in parts]
        found = self._of_last(changes)
        if found is None:
            parts = affordable(parts, self._rerun.lm.n_layers, self._rerun.n_pos)
            found = self._of_all(changes[: len(parts)])
        return self._removals(parts, *found)

    def _removals(
        self, parts: Sequence[Part], own: Float[Tensor, " d_vocab"], without: Float[Tensor, "row d_vocab"]
    ) -> list[Removal]:
        if not parts:
            return []
        effects = (self._measures(own[None]) - self._measures(without)).tolist()
        before, after = own.double().softmax(-1), without.double().softmax(-1)
        gains = after - before
        gains[:, self._token] = -torch.inf
        gained = gains.argmax(-1)
        columns = (
            after[:, self._token].tolist(),
            effects,
            without.argmax(-1).tolist(),
            gained.tolist(),
            before[gained].tolist(),
            after.gather(1, gained[:, None])[:, 0].tolist(),
            [moved_tokens(self._rerun.lm, before.log(), row) for row in after.log()],
        )
        return [Removal(part, *row) for part, *row in zip(parts, *columns, strict=True)]

    def _measures(self, logits: Float[Tensor, "row d_vocab"]) -> Float[Tensor, " row"]:
        logits = logits.double()
        own = logits[:, self._token]
        if self._against is not None:
            return own - logits[:, self._against]
        others = logits.clone()
        others[:, self._token] = -torch.inf
        return own - others.logsumexp(-1)

    @torch.no_grad()
    def source_effects(self, heads: Sequence[ReadBy]) -> list[list[float] | None]:
        """Return how much the log-odds (or logit difference) fall if a head cannot read a source, by head and source.

        None for a head whose output is not its attention weights times the value vectors of the sources.
        """
        rows = [(i, row) for i, head in enumerate(heads) for row in head.rows()]
        changes = [Replacement("z", heads[i].layer, self._where, heads[i].head, row[None]) for i, row in rows]
        unchanged, logits = self._of_last(changes) or self._of_all(changes)
        measured, reference = self._measures(logits).tolist(), float(self._measures(unchanged[None]))
        found = [[one for (j, _), one in zip(rows, measured, strict=True) if j == i] for i in range(len(heads))]
        return [None if abs(own - reference) > 1e-2 else [own - other for other in others] for own, *others in found]

    def _of_last(self, changes: Sequence[Replacement]) -> _Logits | None:
        """Return the unchanged logits, and the logits with each change alone, by rerunning only the last position.

        Return None if the model cannot run the last position by itself, or if its logits then differ from those of the
        whole run. After that, every call returns None.
        """
        found = None if self._last is None else self._last.logits([[change] for change in changes])
        if found is None and changes:
            self._last = None
        return found

    def _of_all(self, changes: Sequence[Replacement]) -> _Logits:
        """Return the same as `_of_last`, by rerunning all tokens up to the position.

        Changes at nearby layers are run in one batch.
        """
        order = sorted(range(len(changes)), key=lambda i: changes[i].layer)
        layers = [changes[i].layer for i in order]
        batches = split_by_cost(layers, self._rerun.lm.n_layers, self._rerun.n_pos)
        own = self._rerun.reference
        if not changes:
            return own, own[None][:0]
        found = torch.cat([self._rerun.logits([[changes[i]] for i in order[part]]) for part in batches])
        return own, found[torch.tensor(order).argsort()]


_Logits = tuple[Float[Tensor, " d_vocab"], Float[Tensor, "row d_vocab"]]


def _up_to(edits: Sequence[Edit], position: int, n_pos: int) -> list[Edit]:
    """Return the same edits for a run that ends at `position`; later positions are left out.

    The positions "last" and negative positions are replaced by positions counted from the start.
    """

    def moved(edit: Edit) -> Edit:
        where = (-1,) if edit.positions == "last" else edit.positions
        if isinstance(where, str):
            return edit
        from_start = (p + n_pos if p < 0 else p for p in where)
        return replace(edit, positions=tuple(p for p in from_start if 0 <= p <= position))

    found = (edit if position == n_pos - 1 else moved(edit) for edit in edits)
    return [edit for edit in found if edit.positions]
