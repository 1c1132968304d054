"""Measure saturation and elimination on text prefixes: the top token before and after every FFN, and its scores.

Only the last position of each prefix is recorded. Ranks are read in the basis "final", as the model computes its
logits. The scores that sub-updates give a token are in two bases: "raw" (the papers' e_w . m_i v_i) and "frozen"
(through both norms; they add up to the change of the logit). For an adaptive softmax, whose linear scores compare only
within a band of words, there is a third, "adaptive": log p(w | x + m_i v_i) - log p(w | x), where x is the stream
before the FFN.

Where attention and FFN are parallel, the stream before the FFN is the one that enters the block.

Source: Geva et al. 2022, section 5 and appendices A.3, A.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.corpus import Batch, CorpusSource, Segment
from unembed.errors import Unsupported
from unembed.jacobian.basis import fitted_lens
from unembed.lens import final_scale, read
from unembed.memories.events import Event, elimination_layer, events_of, named_by_mixer, saturation_layer
from unembed.memories.prefix_sampling import draw_examples, example_batches
from unembed.models.architectures.adaptive_softmax import AdaptiveSoftmax
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Basis, StreamPoint
from unembed.results import Displayed, Provenance, Table
from unembed.stream.decomposition import memory_branch
from unembed.sweeps.forward import feed_reducers
from unembed.sweeps.reducers.reducer import Need, Reducer
from unembed.validation import valid_seed

DOMINANT = 10
"""Number of sub-updates scored in each FFN update: this many dominant ones (largest |m| |v|) and this many random
ones."""
TOKENS = ("final", "candidate")
"""Tokens that are scored: the model's prediction, and the top token before the layer's FFN."""
_NOT_OF_EXAMPLES = ("other_mixers", "seed", "provenance")


@dataclass(frozen=True, eq=False, repr=False)
class EventSample(Displayed):
    """What each FFN did to the top token in a sample of text prefixes: ranks, and the scores of sub-updates.

    The prefixes are the examples; they are in the order of the corpus. Ranks count from 1. Saturation and elimination
    are computed from the ranks (see `unembed.memories.events`).
    """

    segment: Int[np.ndarray, " example"]
    length: Int[np.ndarray, " example"]
    """Number of tokens of the prefix."""
    next_token: Int[np.ndarray, " example"]
    final: Int[np.ndarray, " example"]
    """The token that the model predicts."""
    final_probability: Float[np.ndarray, " example"]
    final_embedded: Int[np.ndarray, " example"]
    """Rank of the prediction in the stream that enters layer 0."""
    final_before: Int[np.ndarray, "layer example"]
    """Rank of the prediction before each FFN."""
    final_after: Int[np.ndarray, "layer example"]
    candidates: Int[np.ndarray, "layer example"]
    """Top token before each FFN."""
    candidates_after: Int[np.ndarray, "layer example"]
    """Rank of this candidate after the same FFN."""
    candidate_change: Float[np.ndarray, "layer example"]
    """What the layer's update adds to the raw logit of its candidate w: e_w . (x after - x before)."""
    dominant: Int[np.ndarray, "layer example 10"]
    coefficients: Float[np.ndarray, "layer example 10"]
    """Coefficients of the dominant sub-updates, with their signs."""
    contribution: Float[np.ndarray, "layer example"]
    """The share of the dominant sub-updates in the sum of |m| |v| over all sub-updates."""
    random_contribution: Float[np.ndarray, "layer example"]
    scores: Float[np.ndarray, "layer example 10 token basis"]
    """Scores of the dominant sub-updates; tokens in the order of `TOKENS`, bases in the order of `SCORE_BASES` (only
    the first two unless the model has an adaptive softmax)."""
    random_scores: Float[np.ndarray, "layer example 10 token basis"]
    stream_length: Float[np.ndarray, "layer example"]
    """Length of the stream after each layer."""
    norm_scale: Float[np.ndarray, "layer example"]
    """The number by which the final norm would divide the stream before each FFN; 1 if the model has no final norm."""
    last_norm_scale: Float[np.ndarray, " example"]
    """The number by which the final norm divides in the run; used for "frozen" scores."""
    other_mixers: Bool[np.ndarray, " layer"]
    """True for layers without attention: they have another token mixer, or none."""
    seed: int
    provenance: Provenance

    def to_table(self) -> Table:
        """Return a table with one row for each example.

        `eliminated_rank` is the largest rank, after any FFN, of the token that was first before that FFN. It is 1 if
        every such token is still first after the FFN.
        """
        layer, rank = self.elimination
        columns = {
            "segment": self.segment,
            "length": self.length,
            "next_id": self.next_token,
            "predicted_id": self.final,
            "probability": self.final_probability,
            "saturation_layer": self.saturation,
            "by_ffn": self.by_ffn(),
            "elimination_layer": layer,
            "eliminated_rank": rank,
        }
        listed = {name: column.tolist() for name, column in columns.items()}
        return Table("Events of a sample of prefixes", listed, self.provenance)

    def __len__(self) -> int:
        return len(self.segment)

    def only(self, chosen: Bool[np.ndarray, " example"]) -> EventSample:
        """Return a sample with only the examples for which `chosen` is True."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_OF_EXAMPLES}
        kept = {name: a[chosen] if a.ndim == 1 else a[:, chosen] for name, a in arrays.items()}
        return replace(self, **kept)

    @property
    def n_layers(self) -> int:
        """Number of layers of the model."""
        return len(self.final_after)

    @property
    def saturation(self) -> Int[np.ndarray, " example"]:
        """The first layer after which the predicted token ranks first after every FFN."""
        return saturation_layer(torch.from_numpy(self.final_after)).numpy()

    @property
    def elimination(self) -> tuple[Int[np.ndarray, " example"], Int[np.ndarray, " example"]]:
        """The layer whose FFN moves its candidate (the top token before it) furthest down, and the new rank.

        The new rank is 1 if no FFN moves its candidate down.
        """
        layer, rank = elimination_layer(torch.from_numpy(self.candidates_after))
        return layer.numpy(), rank.numpy()

    def by_ffn(self) -> np.ndarray:
        """Return, for each example, whether an FFN caused the saturation, rather than attention or the embedding."""
        return self.final_before[self.saturation, np.arange(len(self))] > 1

    def events(self) -> list[tuple[int, Event]]:
        """Return every saturation and elimination, each with the number of its example."""
        entering = np.concatenate([self.final_embedded[None], self.final_after[:-1]])
        ranks = (entering, self.final_before, self.final_after, self.candidates, self.candidates_after)
        events = events_of(torch.from_numpy(self.final), *map(torch.from_numpy, ranks))
        events = named_by_mixer(events, self.other_mixers.tolist())
        return [(event.position, replace(event, position=int(self.length[event.position]) - 1)) for event in events]


class EventRecorder(Reducer):
    """Compute an `EventSample` from batches of prefixes: one example from the last token of each prefix."""

    def __init__(self, seed: int = 0, hidden: Bool[Tensor, " d_vocab"] | None = None, basis: Basis = "final") -> None:
        """Store the settings.

        Args:
            seed: the seed of the random sub-updates.
            hidden: a mask of tokens to ignore in predictions, candidates and ranks: those that the model never learned.
            basis: "final", to read streams and sub-updates by the final norm and the unembedding, as in the paper;
                "jacobian", to map them to the end of the model by its fitted lens first.
        """
        self.hidden = hidden
        self.basis: Basis = basis
        self.seed = valid_seed(seed)

    def start(self, lm: Decoder) -> None:
        """Start a pass over a corpus with an empty sample.

        Raises:
            Unsupported: the model has no memories in some layer.
        """
        if not lm.n_layers:
            raise Unsupported(f"events of {lm.name}", why="it has no layers")
        self._lm = lm
        self._of_experts = [lm.feed_forward(n).experts is not None for n in range(lm.n_layers)]
        self._gated = [lm.feed_forward(n).channel_gate is not None for n in range(lm.n_layers)]
        self._points: list[tuple[StreamPoint, int]] = [
            ("resid_pre" if block.parallel else "resid_mid", n) for n, block in enumerate(lm.structure.blocks)
        ]
        # The lengths of the value vectors are computed once, not for each batch, because every access to
        # `lm.weights.W_out` casts and transposes the matrix.
        self._norms = [lm.weights.W_out[n].norm(dim=-1) for n in range(lm.n_layers)]
        self._activations: dict[Need, Tensor] = {}
        self._rows: list[dict[str, Tensor]] = []

    @property
    def needs(self) -> list[Need]:
        """The activations to capture: the embedding, the stream before and after each FFN, and the coefficients."""
        each = [(before, ("coefficients", n), ("resid_post", n)) for n, before in enumerate(self._points)]
        each += [(("channel_gate", n),) for n, gated in enumerate(self._gated) if gated]
        return list(dict.fromkeys([("resid_pre", 0), *(need for layer in each for need in layer)]))

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Store the activation at the last token of each row."""
        rows = torch.arange(len(tensor), device=tensor.device)
        self._activations[point, layer] = tensor[rows, (batch.lengths - 1).to(tensor.device)]

    def update(self, batch: Batch) -> None:
        """Compute the ranks of tokens in each stream and the scores of sub-updates for a batch, and store them."""
        lm, activations = self._lm, self._activations
        before = torch.stack([activations[point].to(lm.device) for point in self._points])
        after = torch.stack([activations["resid_post", n].to(lm.device) for n in range(lm.n_layers)])
        entering, updates = activations["resid_pre", 0].to(lm.device), after.float() - before.float()
        scale, lengths = final_scale(lm, after[-1]), after.float().norm(dim=-1)
        streams = before  # the streams before the FFNs, not mapped by the lens
        if self.basis == "jacobian":
            lens = fitted_lens(lm)
            updates = torch.stack([update @ lens.jacobian(n) for n, update in enumerate(updates)])
            before = torch.stack([lens.carried(before[n], n, point) for point, n in self._points]).to(before)
            after = torch.stack([lens.carried(x, n) for n, x in enumerate(after)]).to(after)
            entering = lens.carried(entering, 0, "resid_pre").to(entering)
        last = read(lm, after[-1], 1, hidden=self.hidden)
        final = last.ids[:, 0]
        rows = read(lm, before, 1, track=final[None, :, None].expand(lm.n_layers, -1, -1), hidden=self.hidden)
        embedded = read(lm, entering, 1, track=final[:, None], hidden=self.hidden)
        candidates = rows.ids[..., 0]
        track = torch.stack([final.expand(lm.n_layers, -1), candidates], dim=-1)
        after_ranks = read(lm, after, 1, track=track, hidden=self.hidden).tracked_ranks
        rows_of_W_U = lm.weights.W_U.T[candidates].float()  # layer row d_model
        columns = {
            "segment": batch.segments,
            "length": batch.lengths,
            "next_token": batch.after,
            "final": final,
            "final_probability": last.probabilities[:, 0],
            "final_embedded": embedded.tracked_ranks[:, 0],
            "final_before": rows.tracked_ranks[..., 0],
            "final_after": after_ranks[..., 0],
            "candidates": candidates,
            "candidates_after": after_ranks[..., 1],
            "candidate_change": (rows_of_W_U * updates).sum(dim=-1),
            "stream_length": lengths,
            "norm_scale": final_scale(lm, before)[..., 0],
            "last_norm_scale": scale[..., 0],
        }
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + batch.number)
        layers = [self._layer(n, track[n], streams[n], scale, generator) for n in range(lm.n_layers)]
        columns |= {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}
        self._rows.append({name: t.detach().cpu() for name, t in columns.items()})
        self._activations = {}

    def _layer(
        self, n: int, tokens: Int[Tensor, "row 2"], before: Tensor, scale: Tensor, generator: torch.Generator
    ) -> dict:
        lm = self._lm
        m = self._activations["coefficients", n].to(lm.device)
        sizes = m.abs() * self._norms[n].to(m)
        k = min(DOMINANT, m.shape[-1])
        largest, dominant = sizes.topk(k, dim=-1)
        draw = torch.rand(m.shape, generator=generator)
        if self._of_experts[n]:  # only memories of experts that the router chose
            draw = draw * (m != 0).cpu()
        random = draw.topk(k, dim=-1).indices.to(m.device)
        total = sizes.sum(dim=-1).clamp_min(1e-30)
        index = torch.cat([dominant, random], dim=-1)
        scores = self._scores(n, m, index, tokens, scale)
        if isinstance(lm.structure.head, AdaptiveSoftmax):
            adaptive = self._adaptive_scores(lm.structure.head, n, m, index, tokens, before)
            scores = torch.cat([scores, adaptive[..., None].to(scores)], dim=-1)
        return {
            "dominant": dominant,
            "coefficients": m.gather(-1, dominant),
            "contribution": largest.sum(dim=-1) / total,
            "random_contribution": sizes.gather(-1, random).sum(dim=-1) / total,
            "scores": scores[:, :k],
            "random_scores": scores[:, k:],
        }

    def _scores(
        self, n: int, m: Tensor, index: Int[Tensor, "row k"], tokens: Int[Tensor, "row 2"], scale: Tensor
    ) -> Float[Tensor, "row k 2 2"]:
        """Return e_w . m_i v_i for two tokens in the bases "raw" and "frozen", with the norm scales of this run."""
        lm = self._lm
        wide = torch.promote_types(m.dtype, torch.float32)
        gate = self._activations["channel_gate", n].to(lm.device) if self._gated[n] else None
        branch = memory_branch(lm, n, m, gate)
        raw = lm.weights.W_U.T[tokens].to(wide)
        frozen = raw * lm.structure.logit_scale
        if lm.structure.final_norm is not None:
            frozen = lm.structure.final_norm.pulled_back(frozen, scale[:, None].to(wide))
        directions = torch.stack([raw, frozen], dim=-2)
        if self.basis == "jacobian":
            directions = directions @ fitted_lens(lm).jacobian(n).T.to(wide)
        directions = directions * branch.multiplier  # (row, token, basis, d_model)
        factor = 1.0
        if branch.norm is not None and branch.scale is not None:
            one = torch.ones(1, dtype=wide, device=m.device)
            directions = branch.norm.pulled_back(directions, one)
            factor = (1.0 / branch.scale)[:, :, None, None]
        if gate is not None:
            directions = directions * gate[:, None, None].to(wide)
        values = lm.weights.W_out[n][index].to(wide)
        scores = torch.einsum("rkd,rtbd->rktb", values, directions.to(wide))  # (row, memory, token, basis)
        return scores * m.gather(-1, index).to(wide)[:, :, None, None] * factor

    def _adaptive_scores(
        self, head: AdaptiveSoftmax, n: int, m: Tensor, index: Int[Tensor, "row k"], tokens: Tensor, before: Tensor
    ) -> Float[Tensor, "row k 2"]:
        """Return how much adding m_i v_i to the stream changes log p(w | x) of two tokens, one memory at a time."""
        W_out = self._lm.weights.W_out[n]
        words = tokens.T.flatten()
        start = head.log_probabilities(before.repeat(2, 1), words)
        scores = []
        for column in index.T:
            after = before + m.gather(-1, column[:, None]) * W_out[column].to(m)
            scores.append((head.log_probabilities(after.repeat(2, 1), words) - start).view(2, -1).T)
        return torch.stack(scores, dim=1)

    def merge(self, other: EventRecorder) -> None:
        """Add the examples of another recorder."""
        self._rows += other._rows

    def result(self) -> EventSample:
        """Return the examples in corpus order."""
        joined = {
            name: torch.cat([row[name] for row in self._rows], dim=1 if self._rows[0][name].dim() > 1 else 0).numpy()
            for name in self._rows[0]
        }
        order = np.argsort(joined["segment"], kind="stable")
        ordered = {name: a[order] if a.ndim == 1 else a[:, order] for name, a in joined.items()}
        provenance = self._lm.provenance(basis=self.basis, seed=self.seed)
        return EventSample(
            **ordered, other_mixers=np.array(self._lm.other_mixers), seed=self.seed, provenance=provenance
        )

    def state(self) -> dict[str, Any]:
        """Return the rows recorded so far, to save them in a checkpoint."""
        return {"rows": list(self._rows)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the rows in a checkpoint."""
        self._rows = list(state["rows"])


def event_sample(
    lm: Decoder, corpus: CorpusSource = None, n: int = 2000, *, seed: int = 0, tokens_per_batch: int = 4096
) -> EventSample:
    """Measure saturation, elimination and sub-updates' scores on up to `n` random prefixes of a corpus.

    Args:
        corpus: what `unembed.open_corpus` takes; the shipped text when None.
        n: number of prefixes (the paper: 2,000, and 10,000 for the saturation tables).
        seed: the seed of the random prefixes and of the random sub-updates.
        tokens_per_batch: number of tokens in a batch, with padding.

    Raises:
        Unsupported: the model has no memories.
        CorpusUnreadable: the corpus cannot be read.

    Memory: about 360 bytes a layer and example, one batch's activations, and 1,024 * 4,096 scores.
    """
    recorder = EventRecorder(seed)
    recorder.start(require_decoder(lm))
    return record_events(lm, draw_examples(lm, corpus, n, seed), recorder, tokens_per_batch)


def record_events(
    lm: Decoder, examples: list[Segment], recorder: EventRecorder, tokens_per_batch: int = 4096, *others: Reducer
) -> EventSample:
    """Run the model on these prefixes and return the recorder's result.

    `others` are further reducers that get the activations of the same forward passes. All reducers must have been
    started.
    """
    with feed_reducers(lm, [recorder, *others]) as feed:
        for batch in example_batches(examples, tokens_per_batch):
            feed(batch)
    return recorder.result()
