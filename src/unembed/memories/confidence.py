"""Find memories (FFN neurons) of the last layer that change how confident a prediction is, not what is predicted.

Two kinds are known. The value vector of a confidence memory is nearly orthogonal to what the unembedding reads: it
changes no logit relative to another, but makes the stream longer, so that the final norm scales all logits down. A
frequency memory moves the prediction towards the frequencies of tokens in text, or away from them.

Measured are:

- null space: the length of the value vector's projection onto the directions that the unembedding reads least, divided
  by the vector's length; these are the directions of the smallest singular values of W_U (with the final norm's gain,
  and centred over the vocabulary);
- entropy change: the mean absolute change of the prediction's entropy, in nats, when the coefficient is set to its mean
  over the text;
- through the scale: 1 - direct / entropy change, where "direct" is the entropy change with the scale of the final norm
  fixed at its value in the unchanged run;
- unigram: the correlation of the value vector's scores with the log frequencies of tokens, over the tokens that occur
  in the text.

Source: Stolfo et al. 2024, "Confidence Regulation Neurons in Language Models", sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.analyses import Analysis, Cost, Needs
from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.document.model import Answer
from unembed.errors import InvalidInput, Unsupported
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder, require_decoder
from unembed.options import AnySeed, Corpus, Option, Top
from unembed.results import Displayed, Provenance, Table, format_percent
from unembed.stream.decomposition import require_one_stream
from unembed.stream.interventions import set_coefficient
from unembed.stream.run import run
from unembed.validation import positive_int, valid_seed

NULL = 0.05
"""The share of the stream's directions, those that the unembedding reads least, that are called the null space."""
WINDOWS, LENGTH = 8, 32
COUNTED = 2048
"""Number of windows of the text in which token frequencies are counted."""


@dataclass(frozen=True, eq=False, repr=False)
class ConfidenceMemories(Displayed):
    """What the memories of the last layer do to the confidence of predictions.

    Attributes:
        layer: the last layer with memories.
        names: names of the measured memories: those with the largest null-space shares, those with the largest
            correlations with log frequencies, and some drawn at random.
        indices: indices of the measured memories in the layer.
        null_space: for every memory of the layer, the share of its value vector's length in the null space.
        unigram: for every memory of the layer, the correlation of its scores with the tokens' log frequencies.
        norms: for every memory of the layer, the length of its value vector.
        entropy: for each measured memory, the mean absolute change of the prediction's entropy, in nats.
        direct: the same change with the scale of the final norm fixed.
        random: for each measured memory, whether it was drawn at random.
        chance: the root-mean-square share of a random vector in the null space.
        positions: number of token positions over which entropy changes are averaged.
    """

    layer: int
    names: tuple[str, ...]
    indices: Int[Tensor, " measured"]
    null_space: Float[Tensor, " memory"]
    unigram: Float[Tensor, " memory"]
    norms: Float[Tensor, " memory"]
    entropy: Float[Tensor, " measured"]
    direct: Float[Tensor, " measured"]
    random: tuple[bool, ...]
    chance: float
    positions: int
    provenance: Provenance

    @property
    def through_scale(self) -> Float[Tensor, " measured"]:
        """The share of each entropy change that passes through the final norm's scale; NaN where the change is 0."""
        return torch.where(self.entropy > 0, 1 - self.direct / self.entropy, float("nan"))

    def to_table(self) -> Table:
        """Return a table of the measured memories, largest null-space share first; those drawn at random come last."""
        order = sorted(range(len(self.names)), key=lambda n: (self.random[n], -float(self.null_space[self.indices[n]])))
        at = self.indices[torch.tensor(order, dtype=torch.long)].tolist()
        columns: dict[str, list[Any]] = {
            "memory": [self.names[n] for n in order],
            "null_space": [float(self.null_space[i]) for i in at],
            "length": [float(self.norms[i]) for i in at],
            "unigram": [float(self.unigram[i]) for i in at],
            "entropy_change": [float(self.entropy[n]) for n in order],
            "through_scale": [float(self.through_scale[n]) for n in order],
            "drawn_at_random": [self.random[n] for n in order],
        }
        title = (
            f"Confidence and frequency memories of layer {self.layer}: {self.positions} positions; a random vector has "
            f"{format_percent(self.chance, 0)} of its length in the null space, the layer's median is "
            f"{format_percent(float(self.null_space.median()), 1)}"
        )
        return Table(title, columns, self.provenance)


@torch.no_grad()
def confidence_memories(
    lm: Decoder, top: int = 10, *, corpus: CorpusSource = None, windows: int = WINDOWS, seed: int = 0
) -> ConfidenceMemories:
    """Find memories of the last layer that regulate confidence, and measure how.

    Args:
        top: number of memories measured of each kind: with the largest shares in the null space, with the largest
            correlations with log frequencies, and drawn at random.
        corpus: anything `unembed.open_corpus` takes; the shipped text when None.
        windows: number of windows of 32 tokens in which effects are measured, at every position but the first.
        seed: the seed of the random draw.

    Raises:
        InvalidInput: the text is too short.
        Unsupported: the model has no memories in its last layer, no final norm, or several streams.

    Memory: W_U in float64, and the logits of a window.
    """
    lm, top, windows = require_decoder(lm), positive_int("top", top), positive_int("windows", windows)
    require_one_stream(lm, "confidence memories")
    norm, layer = lm.structure.final_norm, lm.n_layers - 1
    if norm is None or layer not in lm.memory_layers:
        why = "it has no final norm" if norm is None else "its last layer has no memories (FFN neurons)"
        raise Unsupported(f"confidence memories of {lm.name}", why=why)
    cut = [
        one.tokens.to(lm.device)
        for one in islice(windows_of(corpus, LENGTH, overlap=0).segments(lm), COUNTED)
        if len(one.tokens) == LENGTH
    ]
    if len(cut) < windows:
        raise InvalidInput(f"{len(cut)} windows of the text", why=f"{windows} are needed", instead="Give a longer text")
    values = written_values(lm, layer).float()
    null_space, chance = null_space_shares(lm, values)
    unigram = _unigram(lm, values, torch.cat(cut))
    drawn = torch.randperm(len(values), generator=torch.Generator().manual_seed(valid_seed(seed)))
    best = [*null_space.topk(min(top, len(values))).indices.tolist()]
    best += [i for i in unigram.abs().topk(min(top, len(values))).indices.tolist() if i not in best]
    others = [i for i in drawn.tolist() if i not in best][:top]
    chosen = torch.tensor([*best, *others])
    entropy, direct = entropy_changes(lm, torch.stack(cut[:windows]), layer, chosen)
    return ConfidenceMemories(
        layer,
        tuple(lm.memory_name(layer, i) for i in chosen.tolist()),
        chosen,
        null_space,
        unigram,
        values.norm(dim=-1).cpu(),
        entropy,
        direct,
        tuple(n >= len(best) for n in range(len(chosen))),
        chance,
        windows * (LENGTH - 1),
        lm.provenance(seed=seed, notes={"null_space": NULL, "windows": windows, "length": LENGTH}),
    )


def _read_directions(lm: Decoder) -> Float[Tensor, "d_model d_vocab"]:
    """Return W_U in float64, with the final norm's gain and centring applied, minus its mean over the vocabulary."""
    norm, W_U = lm.structure.final_norm, lm.weights.W_U.double()
    assert norm is not None
    folded = norm.gain.double()[:, None].to(W_U) * W_U
    if norm.centred:
        folded = folded - folded.mean(dim=0)
    return folded - folded.mean(dim=1, keepdim=True)


@torch.no_grad()
def null_space_shares(lm: Decoder, vectors: Float[Tensor, "row d_model"]) -> tuple[Float[Tensor, " row"], float]:
    """Return the share of each vector's length in the null space, and the root-mean-square share of a random vector.

    The share is the length of the projection divided by the vector's length (Stolfo et al. 2024, section 4.1).

    The null space is the `NULL` share of directions with the smallest singular values. The direction that a centring
    norm removes from every vector is not counted.
    """
    folded = _read_directions(lm)
    d = len(folded)
    norm = lm.structure.final_norm
    assert norm is not None
    found = torch.linalg.eigh(folded @ folded.T)  # the squares of the singular values, the smallest first
    removed = 1 if norm.centred else 0
    count = max(1, round(NULL * (d - removed)))
    vectors = vectors.double()
    if norm.centred:
        vectors = vectors - vectors.mean(dim=-1, keepdim=True)
    null = found.eigenvectors[:, removed : removed + count]
    share = (vectors @ null).norm(dim=-1) / vectors.norm(dim=-1).clamp_min(1e-30)
    return share.float().cpu(), (count / (d - removed)) ** 0.5


def _unigram(
    lm: Decoder, values: Float[Tensor, "memory d_model"], tokens: Int[Tensor, " token"]
) -> Float[Tensor, " memory"]:
    """Return the correlation of each value vector's scores with log token frequencies, over the tokens that occur."""
    counts = torch.bincount(tokens, minlength=lm.d_vocab)
    seen = counts.nonzero()[:, 0]
    frequency = counts[seen].double().log()
    frequency = frequency - frequency.mean()
    folded = _read_directions(lm)[:, seen]
    scores = values.double() @ (folded - folded.mean(dim=1, keepdim=True))
    return ((scores @ frequency) / (scores.norm(dim=-1) * frequency.norm()).clamp_min(1e-30)).float().cpu()


@torch.no_grad()
def entropy_changes(
    lm: Decoder, tokens: Int[Tensor, "window pos"], layer: int, memories: Int[Tensor, " measured"]
) -> tuple[Float[Tensor, " measured"], Float[Tensor, " measured"]]:
    """Return two mean absolute changes of entropy when a memory's coefficient is set to its mean: total and direct.

    In the direct change, the scale of the final norm is fixed at its value in the unchanged run. The mean is over all
    positions but the first of each window.
    """
    norm, structure = lm.structure.final_norm, lm.structure
    assert norm is not None
    seen = run(lm, tokens, ("resid_post", "coefficients"), layers=[layer])
    streams = seen.at("resid_post", layer)[:, 1:].flatten(0, 1)
    m = seen.at("coefficients", layer)[:, 1:].flatten(0, 1)[:, memories.to(lm.device)]
    has_branch_norm = lm.feed_forward(layer).branch_norm is not None
    whole, direct = torch.zeros(len(memories)), torch.zeros(len(memories))
    scale, normed = norm.scale(streams), norm.normed(streams)

    def entropy(read: Float[Tensor, "pos d_model"]) -> Float[Tensor, " pos"]:
        log_p = structure.capped(structure.head(read)).double().log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    before = entropy(normed)
    for n, index in enumerate(memories.tolist()):
        if has_branch_norm:  # the coefficient also changes the scale of the norm that follows the FFN
            edit = set_coefficient(layer, index, float(m[:, n].mean()))
            edited = run(lm, tokens, ("resid_post",), edit, layers=[layer]).at("resid_post", layer)
            change = edited[:, 1:].flatten(0, 1) - streams
        else:
            value = written_values(lm, layer, slice(index, index + 1))
            change = ((m[:, n].mean() - m[:, n])[:, None] * value).to(streams.dtype)
        whole[n] = float((entropy(norm.normed(streams + change)) - before).abs().mean())
        direct[n] = float((entropy((normed + norm.frozen(change, scale)).to(normed.dtype)) - before).abs().mean())
    return whole, direct


def confidence_answer(
    lm: Decoder,
    *,
    top: Top = 20,
    corpus: Corpus = None,
    text_windows: Annotated[
        int, Option("Number of text windows, of 32 tokens each, in which to measure effects.", low=1)
    ] = WINDOWS,
    seed: AnySeed = None,
) -> Answer:
    """Find memories (FFN neurons) of the last layer that change how confident a prediction is, not what is predicted.

    null_space is the share of the length of a memory's value vector in the directions that the unembedding reads least;
    through_scale is the share of its effect on the prediction's entropy that passes through the final norm's scale;
    unigram is the correlation of its scores with the log frequency of tokens. listed_for says why a memory is listed:
    for one of the largest null_space, one of the largest unigram, or, for comparison, because it was drawn at random.

    Caution: The null space is a choice: the 5 % of directions that the unembedding reads least. through_scale is
    measured, so it is the stronger evidence. Neither is evidence where memories drawn at random have similar numbers.
    """
    found = confidence_memories(lm, top, corpus=corpus, windows=text_windows, seed=seed or 0)
    table, by_share = found.to_table(), found.null_space.argsort(descending=True)[:top].tolist()
    shares = {found.names[n]: i in by_share for n, i in enumerate(found.indices.tolist())}
    columns = {name: values for name, values in table.columns.items() if name != "drawn_at_random"}
    listed_for = [
        "random draw" if drawn else "null space" if shares[name] else "unigram"
        for name, drawn in zip(table["memory"], table["drawn_at_random"], strict=True)
    ]
    shown = Table(table.title, {"listed_for": listed_for, **columns}, table.provenance)
    return Answer.of_table(shown, data=table)


ANALYSIS = Analysis(
    "confidence",
    confidence_answer,
    Needs.MODEL,
    Cost.SECONDS,
    example="unembed confidence --top 5",
    source="Stolfo et al. 2024",
)
