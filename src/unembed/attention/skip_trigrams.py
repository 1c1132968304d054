"""Skip-trigrams: "source ... destination -> output" triples that one head raises, and those it raises by mistake.

A head raises a triple by attending from the destination to the source (QK) and writing toward the output when it does
(OV). Both are measured above what cannot matter: a destination's score for a source above its mean over all sources
(softmax does not see a constant), and an output's logit above the mean over all outputs.

Source: Elhage et al. 2021, "One-layer models: skip-trigrams" and "skip-trigram bugs".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.attention.low_rank import LowRank
from unembed.attention.qk_ov import HeadMatrices
from unembed.attention.windows import windows_of
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.validation import positive_int

_BLOCK = 256


@dataclass(frozen=True)
class SkipTrigram:
    """One triple. `attention` is in score units (log odds), `effect` in logits, `score` their product."""

    source: int
    destination: int
    output: int
    attention: float
    effect: float
    score: float


@dataclass(frozen=True, eq=False)
class CentredCircuits:
    """A head's two full circuits above their means, over the tokens kept."""

    ids: Int[Tensor, " token"]
    qk: LowRank
    """(destination, source): the score above the destination's mean over sources, 1 / sqrt(d_head) included."""
    ov: LowRank
    """(source, output): the logit above the source's mean over outputs."""


def centred(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    basis: str,
    offset: int,
    hide_unlearned: bool,
    among: Int[Tensor, " token"] | None = None,
) -> CentredCircuits:
    """Both circuits of a head, each above the mean that softmax does not see. Memory: d_vocab * d_head, four times."""
    lm = circuits.lm
    learned = (~lm.unlearned).nonzero()[:, 0] if hide_unlearned else torch.arange(lm.d_vocab)
    ids = (learned if len(learned) else torch.arange(lm.d_vocab)) if among is None else among
    if not len(ids):
        raise InvalidInput("skip-trigrams among no tokens", why="none is left to choose from")
    ids = ids.to(lm.weights.W_E.device)
    qk = circuits.qk_full(layer, head, offset, basis, destinations=ids, sources=ids)
    ov = circuits.ov_full(layer, head, basis, sources=ids, outputs=ids)
    scale = circuits.scales[lm.layer(layer)]
    qk = LowRank(qk.left * scale, qk.right - qk.right.mean(dim=1, keepdim=True), qk.notes)
    return CentredCircuits(ids, qk, LowRank(ov.left, ov.right - ov.right.mean(dim=1, keepdim=True), ov.notes))


@torch.no_grad()
def skip_trigrams(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    top: int = 50,
    *,
    basis: str = "raw",
    offset: int = 1,
    source: int | None = None,
    hide_unlearned: bool = True,
    among: Int[Tensor, " token"] | None = None,
) -> list[SkipTrigram]:
    """The triples with the largest product of attention and effect, exact over all sources, destinations and outputs.

    Args:
        circuits: of the model.
        layer: counted from 0.
        head: counted from 0.
        top: how many triples.
        basis: "raw" or "folded".
        offset: how far the source lies back, for rotary positions.
        source: only this source token.
        hide_unlearned: leave out tokens that the model never learned.
        among: only these tokens; means are over them. The largest entries of all are often of rare tokens.

    Time: one pass of blocks over either circuit. The best triples come from the `top` sources whose best product is
    largest, and there from the `top` best destinations and outputs, so nothing else is looked at.
    """
    # The best of a list lie among its `top` best sources, so a longer list than this could not be held anyway.
    top = positive_int("top", top, most=10_000)
    both = centred(circuits, layer, head, basis, offset, hide_unlearned, among)
    n = len(both.ids)
    if source is None:
        attention = torch.empty(n, dtype=both.qk.left.dtype, device=both.ids.device)
        effect = torch.empty_like(attention)
        for start in range(0, n, _BLOCK):
            some = slice(start, min(start + _BLOCK, n))
            attention[some] = both.qk.columns(some).amax(dim=0)
            effect[some] = both.ov.rows(some).amax(dim=1)
        best = (attention.clamp_min(0) * effect.clamp_min(0)).topk(min(top, n)).indices
    else:
        best = _at(both, circuits, source)
    k = min(top, n)
    attentions, destinations = both.qk.columns(best).topk(k, dim=0)  # (k, source)
    effects, outputs = both.ov.rows(best).topk(k, dim=1)  # (source, k)
    scores = attentions.clamp_min(0).T[:, :, None] * effects.clamp_min(0)[:, None, :]
    values, places = scores.flatten().topk(min(top, scores.numel()))
    found = []
    for value, place in zip(values.tolist(), places.tolist(), strict=True):
        s, rest = divmod(place, k * k)
        d, o = divmod(rest, k)
        if value > 0:
            source_id, destination, output = (int(both.ids[i]) for i in (best[s], destinations[d, s], outputs[s, o]))
            attended, moved = float(attentions[d, s]), float(effects[s, o])
            found.append(SkipTrigram(source_id, destination, output, attended, moved, value))
    return found


def _at(both: CentredCircuits, circuits: HeadMatrices, source: int) -> Int[Tensor, " one"]:
    """Where a source stands among the tokens kept."""
    found = (both.ids == circuits.lm.single_token(source)).nonzero()[:, 0]
    if not len(found):
        raise InvalidInput(
            f"source {circuits.lm.token_strings([source])[0]!r}",
            why="it is left out: the model never learned it, or it is too rare",
            instead="Choose another, or hide nothing",
        )
    return found


def frequent_tokens(lm: Decoder, corpus: Any = None, min_count: int = 30) -> Int[Tensor, " token"]:
    """The tokens that occur at least so often in a corpus."""
    counts = torch.zeros(lm.d_vocab, dtype=torch.long)
    for segment in windows_of(corpus, overlap=0).segments(lm):
        counts += torch.bincount(segment.tokens.long(), minlength=lm.d_vocab)
    return (counts >= min_count).nonzero()[:, 0]


@dataclass(frozen=True)
class CorpusCounts:
    """How a triple stands in a corpus: counts, and the rates of the output after the destination."""

    with_source: int
    """Times the destination stood after the source (anywhere earlier in its window)."""
    output_with_source: int
    """Of these, times the output came next."""
    without_source: int
    output_without_source: int

    @property
    def rate_with(self) -> float:
        """P(output | destination, source earlier); NaN where that never happened."""
        return self.output_with_source / self.with_source if self.with_source else float("nan")

    @property
    def rate_without(self) -> float:
        """P(output | destination, no source earlier)."""
        return self.output_without_source / self.without_source if self.without_source else float("nan")


def count_in_corpus(
    lm: Decoder, triples: Sequence[tuple[int, int, int]], corpus: Any = None, window: int | None = None
) -> list[CorpusCounts]:
    """How much more often each output follows its destination when the source stands earlier in the window.

    Args:
        lm: whose tokens and context are used.
        triples: (source, destination, output).
        corpus: anything `unembed.open_corpus` takes.
        window: how far back a source counts, in tokens; the model's context when None.
    """
    wanted = torch.tensor(list(triples), dtype=torch.long).reshape(-1, 3)
    counts = torch.zeros(len(wanted), 4, dtype=torch.long)
    if not len(wanted):
        return []
    text = windows_of(corpus, window)
    by_destination: dict[int, list[int]] = {}
    for i, d in enumerate(wanted[:, 1].tolist()):
        by_destination.setdefault(d, []).append(i)
    of_interest = torch.zeros(lm.d_vocab, dtype=torch.bool)
    of_interest[wanted[:, 1]] = True
    for segment in text.segments(lm):
        tokens = segment.tokens
        places = of_interest[tokens].nonzero()[:, 0]
        places = places[places >= segment.skip].tolist()
        if not places:
            continue
        row = tokens.tolist()
        first: dict[int, int] = {}
        for at, token in enumerate(row):
            first.setdefault(token, at)
        for at in places:
            following = row[at + 1] if at + 1 < len(row) else segment.next_token
            for i in by_destination[row[at]]:
                s, _, o = (int(v) for v in wanted[i])
                column = 0 if first.get(s, len(row)) < at else 2
                counts[i, column] += 1
                counts[i, column + 1] += int(following == o)
    return [CorpusCounts(*row) for row in counts.tolist()]


@dataclass(frozen=True, eq=False)
class SkipTrigramBugs:
    """Pairs that a head must raise together because its two circuits are separate.

    With the source earlier, the head raises every listed output after every listed destination. Where the corpus has
    (d1, o1) and (d2, o2) but never (d1, o2), the crossed pair is a bug of the architecture.

    Attributes:
        source: token.
        destinations: tokens that attend to it most.
        outputs: tokens it raises most.
        score: attention times effect of each pair (destination, output).
        seen: times the output followed the destination in the corpus, source earlier or not.
        crossed: True where the pair never occurs though its destination is followed by another listed output and its
            output follows another listed destination.
    """

    source: int
    destinations: Int[Tensor, " destination"]
    outputs: Int[Tensor, " output"]
    score: Float[Tensor, "destination output"]
    seen: Int[Tensor, "destination output"]
    crossed: Bool[Tensor, "destination output"]

    @property
    def pairs(self) -> list[tuple[int, int, float]]:
        """The crossed pairs, highest score first: (destination, output, score)."""
        found = [
            (int(self.destinations[d]), int(self.outputs[o]), float(self.score[d, o]))
            for d, o in self.crossed.nonzero().tolist()
        ]
        return sorted(found, key=lambda pair: -pair[2])


@torch.no_grad()
def skip_trigram_bugs(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    source: int,
    corpus: Any = None,
    *,
    k: int = 20,
    basis: str = "raw",
    offset: int = 1,
    among: Int[Tensor, " token"] | None = None,
) -> SkipTrigramBugs:
    """The crossed pairs of one source: raised by the head, absent from the corpus, though both halves occur."""
    both = centred(circuits, layer, head, basis, offset, hide_unlearned=True, among=among)
    at = int(_at(both, circuits, source)[0])
    k = min(positive_int("k", k), len(both.ids))
    attention, d = both.qk.columns(at)[:, 0].topk(k)
    effect, o = both.ov.rows(at)[0].topk(k)
    destinations, outputs = both.ids[d].cpu(), both.ids[o].cpu()
    score = attention.clamp_min(0)[:, None] * effect.clamp_min(0)
    seen = torch.zeros(k, k, dtype=torch.long)
    row_of = torch.full((circuits.lm.d_vocab,), -1)
    column_of = row_of.clone()
    row_of[destinations], column_of[outputs] = torch.arange(k), torch.arange(k)
    for segment in windows_of(corpus).segments(circuits.lm):
        rows, columns = row_of[segment.tokens[:-1]], column_of[segment.tokens[1:]]
        hit = (rows >= 0) & (columns >= 0)
        hit[: max(segment.skip - 1, 0)] = False
        seen.index_put_((rows[hit], columns[hit]), torch.ones(int(hit.sum()), dtype=torch.long), accumulate=True)
    occurs = seen > 0
    others_of_row = occurs.any(dim=1, keepdim=True)
    others_of_column = occurs.any(dim=0, keepdim=True)
    crossed = ~occurs & others_of_row & others_of_column & (score.cpu() > 0)
    return SkipTrigramBugs(circuits.lm.single_token(source), destinations, outputs, score.cpu(), seen, crossed)
