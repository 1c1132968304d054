"""Measure the loss on text with only the paths through at most n heads, for every n (n is the order).

Source: Elhage et al. 2021, "How much does each term matter": the algorithm of frozen patterns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb, log
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.analyses import Cost
from unembed.attention.paths.linearized import FrozenRun, frozen_run, stream_by_order
from unembed.attention.weights.by_layer import number_or_none
from unembed.attention.weights.folded_weights import at_least_float32, require_heads
from unembed.attention.weights.paper import NO_NUMBERS, SAMPLE, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Section
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.options import Corpus as CorpusName
from unembed.options import MaxTokens, Option
from unembed.results import Displayed, Provenance, Table, format_error, format_number
from unembed.stream.run import prepare
from unembed.validation import positive_int


@dataclass(frozen=True, eq=False, repr=False)
class TermImportance(Displayed):
    """How much paths of each order (number of heads) lower the loss, in nats per token, with attention patterns fixed.

    Attributes:
        losses: the loss with paths of order at most 0, 1, ... (order + 1 entries).
        by_layer: for each layer, the loss with only the direct path and the paths through one head of that layer; NaN
            where the layer has no attention.
        without_layer: for each layer, the loss with only the direct path and the paths through one head of any other
            layer.
        uniform: the loss of a guess that gives every token the same probability, log(d_vocab).
        repeated_gain: for each row of text, how much the paths through one head of the first attention layer lower the
            loss of the direct path, at positions whose next token occurred earlier in the row; NaN if the row has no
            such position.
        new_gain: the same, at positions whose next token did not occur earlier.
        n_terms: number of paths of each order.
        loss: the loss of the whole model.
        n_tokens: number of predictions over which losses are averaged.
        error: |loss with every order - loss of the model|; None where orders were left out.
        corpus: the fingerprint of the corpus.
    """

    losses: Float[Tensor, " order"]
    by_layer: Float[Tensor, " layer"]
    without_layer: Float[Tensor, " layer"]
    uniform: float
    repeated_gain: Float[Tensor, " row"]
    new_gain: Float[Tensor, " row"]
    n_terms: tuple[int, ...]
    loss: float
    n_tokens: int
    error: float | None
    corpus: str
    provenance: Provenance

    def to_table(self) -> Table:
        """One row for each order of path, the direct path (order 0) first; losses in nats per token."""
        steps = [self.direct_reduction, *self.reductions.tolist()]
        columns: dict[str, list[Any]] = {
            "order": list(range(len(steps))),
            "paths": list(self.n_terms),
            "loss": self.losses.tolist(),
            "reduction": steps,
            "reduction_per_path": [step / max(1, n) for step, n in zip(steps, self.n_terms, strict=True)],
        }
        return Table(f"Loss by order of path, over {self.n_tokens:,} tokens", columns, self.provenance)

    @property
    def reductions(self) -> Float[Tensor, " order"]:
        """Return, for each order from 1, how much the loss falls when its paths are added to those of lower orders."""
        return self.losses[:-1] - self.losses[1:]

    @property
    def reductions_per_term(self) -> Float[Tensor, " order"]:
        """Return the reductions divided by the number of paths of the order."""
        return self.reductions / torch.tensor(self.n_terms[1:]).clamp_min(1)

    @property
    def layer_reductions(self) -> Float[Tensor, " layer"]:
        """Return, for each layer, how much the paths through one of its heads lower the loss of the direct path."""
        return self.losses[0] - self.by_layer

    @property
    def layer_reductions_given_others(self) -> Float[Tensor, " layer"]:
        """Return, for each layer, how much the paths through one of its heads lower the loss if added last.

        The direct path and the paths through one head of every other layer are there already.
        """
        return self.without_layer - self.losses[1]

    @property
    def direct_reduction(self) -> float:
        """Return how much the direct path (order 0) lowers the loss of a uniform guess."""
        return self.uniform - float(self.losses[0])


@torch.no_grad()
def term_importance(
    lm: Decoder,
    corpus: CorpusSource | Int[Tensor, "row pos"] = None,
    order: int | None = None,
    *,
    max_tokens: int = 20_000,
    window: int | None = None,
    tokens_per_batch: int = 1024,
) -> TermImportance:
    """Measure the loss on text with only the paths through at most n heads, for every n.

    Patterns and norm scales are those of the full run.

    Args:
        corpus: anything `unembed.open_corpus` takes, or tokens (row, pos); use text that the model was not trained on.
        order: largest number of heads in a path; when None, the number of attention layers (every path), or at most 3
            in models of more than four layers.
        max_tokens: largest number of tokens to read.
        window: number of tokens of context; when None, the model's context, at most 256.

    Memory: order + layers + 1 streams of a batch, its patterns and its logits for one order.
    """
    require_heads(lm, "term importance")
    n_attending = len(lm.attention_layers)
    if order is None:
        highest = min(n_attending, 3 if lm.n_layers > 4 else n_attending)
    else:
        highest = min(positive_int("order", order, 0), n_attending)
    losses = torch.zeros(highest + 1, dtype=torch.float64)
    by_layer = torch.full((lm.n_layers,), torch.nan, dtype=torch.float64)
    by_layer[list(lm.attention_layers)] = 0.0
    without_layer = by_layer.clone()
    gains: list[tuple[Tensor, Tensor]] = []
    own, count = 0.0, 0
    source, rows = _rows(lm, corpus, window, tokens_per_batch)
    for tokens, target, keep in rows:
        frozen = frozen_run(lm, tokens)
        target, keep = target.to(lm.device).long(), keep.to(lm.device)
        alone = {n: layer.layer_sum(frozen.constants_before(n)) for n, layer in frozen.layers.items()}
        state = stream_by_order(frozen, highest)
        singles = torch.stack(list(alone.values())).sum(dim=0)
        for k in range(highest + 1):
            losses[k] += _loss(frozen.logits(state[: k + 1].sum(dim=0)), target, keep)
        for n, added in alone.items():
            by_layer[n] += _loss(frozen.logits(state[0] + added), target, keep)
            without_layer[n] += _loss(frozen.logits(state[0] + singles - added), target, keep)
        first = alone[lm.attention_layers[0]]
        gains.append(_gains(frozen, state[0], first, tokens.to(lm.device), target, keep))
        own += _loss(frozen.run.logits, target, keep)
        count += int(keep.sum())
        if count >= max_tokens:
            break
    if count == 0:
        raise InvalidInput("the corpus", why="it contains no full window of text", instead="Use a shorter window")
    loss = own / count
    n_terms = tuple(comb(n_attending, k) * lm.n_heads**k for k in range(highest + 1))
    error = abs(float(losses[-1]) / count - loss) if highest == n_attending else None
    repeated, new = (torch.cat(side) for side in zip(*gains, strict=True))
    return TermImportance(
        losses / count, by_layer / count, without_layer / count, log(lm.d_vocab), repeated, new, n_terms, loss, count,
        error, source, lm.provenance(corpus=source),
    )  # fmt: skip


def _rows(
    lm: Decoder, corpus: CorpusSource | Int[Tensor, "row pos"], window: int | None, tokens_per_batch: int
) -> tuple[str, Iterator[tuple[Tensor, Tensor, Tensor]]]:
    """Return the corpus' fingerprint and its rows without padding: tokens, next tokens, and which to count."""
    if isinstance(corpus, Tensor):
        ids, _ = prepare(lm, corpus)
        after = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)
        keep = torch.ones_like(ids, dtype=torch.bool)
        keep[:, -1] = False
        at_once = max(1, tokens_per_batch // ids.shape[1])
        parts = (t.split(at_once) for t in (ids, after, keep))
        return f"{ids.shape[0]} x {ids.shape[1]} tokens given", zip(*parts, strict=True)
    text = windows_of(corpus, window or min(lm.n_ctx or 256, 256))

    def full() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for batch in text.batches(lm, tokens=tokens_per_batch):
            keep = batch.counted & (batch.next_tokens >= 0)
            chosen = batch.mask.bool().all(dim=1) & keep.any(dim=1)
            if bool(chosen.any()):
                yield batch.tokens[chosen], batch.next_tokens[chosen], keep[chosen]

    return text.fingerprint, full()


def _gains(
    frozen: FrozenRun, direct: Tensor, first_layer: Tensor, tokens: Tensor, target: Tensor, keep: Tensor
) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """Return, by row, how much the first layer's heads lower the direct path's loss, for repeated and for new tokens.

    A next token counts as repeated if it occurs earlier in the row, or at the position that predicts it.
    """

    def losses(stream: Tensor) -> Float[Tensor, "row pos"]:
        logits = at_least_float32(frozen.logits(stream))
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), target.clamp_min(0), reduction="none")

    gain = (losses(direct) - losses(direct + first_layer)).double().cpu()
    earlier = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).tril()
    repeats = ((tokens[:, None, :] == target[:, :, None]) & earlier).any(dim=-1).cpu()
    counted = keep.cpu()
    repeated, new = (torch.where(counted & at, gain, torch.nan).nanmean(dim=1) for at in (repeats, ~repeats))
    return repeated, new


def _loss(logits: Tensor, target: Tensor, keep: Tensor) -> float:
    logits = at_least_float32(logits)
    return float(torch.nn.functional.cross_entropy(logits[keep], target[keep], reduction="sum"))


def importance_section(found: TermImportance, provenance: Provenance) -> Section:
    """Show how much each order of path, and the heads of each layer, lower the loss."""
    orders = {
        "order": range(len(found.losses)),
        "terms": [int(n) for n in found.n_terms],
        "loss": found.losses.tolist(),
        "reduction": [found.direct_reduction, *found.reductions.tolist()],
        "reduction_per_term": [found.direct_reduction, *found.reductions_per_term.tolist()],
    }
    layers = {
        "layer": range(len(found.by_layer)),
        "alone": [number_or_none(v) for v in found.layer_reductions.tolist()],
        "given_the_other_layers": [number_or_none(v) for v in found.layer_reductions_given_others.tolist()],
    }
    without = [str(n) for n, v in enumerate(found.by_layer.tolist()) if math.isnan(v)]
    note = f" Layers without attention have no heads: {', '.join(without)}." if without else ""
    proof = (
        "" if found.error is None else f" The paths of all orders together give it within {format_error(found.error)}."
    )
    text = (
        f"Losses are in nats per token, over {found.n_tokens:,} predictions. The model's own loss is "
        f"{format_number(found.loss)}.{proof} Patterns and norm scales are those of the full model. The reduction of "
        f"order 0 is measured from the loss of a uniform guess, {format_number(found.uniform)}. Alone: the heads of "
        "one layer are added to the direct path. Given the other layers: they are added to the direct path and the "
        f"single heads of all other layers.{note}",
    )
    by_order, off = "Loss by the highest order of path", "How much the heads of each layer lower the loss"
    exhibits = (
        exhibit("term_importance", by_order, orders, provenance),
        exhibit("layer_importance", "How much the heads of one layer lower the loss", layers, provenance),
    )
    nats = {"y_label": "nats a token", "published": NO_NUMBERS}
    y = {"alone": "alone", "given_the_other_layers": "given the other layers"}
    figures = (
        drawing("bar", "term_importance", by_order, "order", "loss", x_label="highest order of path", **nats),
        drawing("bar", "layer_importance", off, "layer", y, **nats),
    )
    return Section("How much each order of path matters", text, exhibits, figures)


def term_importance_answer(
    circuits: HeadMatrices,
    *,
    corpus: CorpusName = None,
    order: Annotated[int | None, Option("Largest number of heads in a path.", low=0)] = None,
    max_tokens: MaxTokens = 20_000,
) -> Answer:
    """Measure how much paths of each order (number of heads) lower the loss on text.

    Without `--order`, all orders are measured; in models of more than four layers, those up to 3.

    Caution: How much an order lowers the loss depends on the lower orders. Attention patterns are those of the full
    model.
    """
    lm = circuits.lm
    found = term_importance(lm, corpus, order, max_tokens=max_tokens)
    provenance = lm.provenance(corpus=corpus or SAMPLE)
    return Answer(f"Term importance in {lm.name}", (importance_section(found, provenance),), provenance)


ANALYSIS = of_circuits("term-importance", term_importance_answer, "term-importance --max-tokens 5000", Cost.MINUTES)
