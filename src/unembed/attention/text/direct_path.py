"""The direct path: what token embedding times unembedding alone predicts, compared with the bigrams of a corpus.

Source: Elhage et al. 2021, "Zero-layer transformers".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.analyses import Cost
from unembed.attention.text.bigrams import Bigrams
from unembed.attention.weights.by_layer import number_or_none
from unembed.attention.weights.folded_weights import embedding
from unembed.attention.weights.paper import SAMPLE, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.document.exhibits import exhibit
from unembed.document.model import Answer, Section
from unembed.errors import InvalidInput
from unembed.lens import final_scale, logits_of
from unembed.models.decoder import Decoder
from unembed.options import Corpus as CorpusName
from unembed.options import MaxTokens, Option
from unembed.results import Displayed, Provenance, Table, format_number
from unembed.stream.run import run

_SCALED = 2048
"""Number of positions over which the final norm's median scale is taken."""


@dataclass(frozen=True, eq=False, repr=False)
class DirectPath(Displayed):
    """How well the direct path predicts the next token, and how much it agrees with bigram statistics.

    In a model with layers, the direct path need not agree with the bigram table, because most of the prediction comes
    from the layers. Rank correlations over a vocabulary mostly reflect token frequency, so compare `spearman` with
    `partial`, `frequency` and `ceiling`.

    Attributes:
        tokens: the tokens whose next tokens are compared, most frequent first.
        occurrences: how often each token occurs.
        spearman: rank correlation of each token's direct-path logits with the counts of what follows it.
        partial: the same, controlling for token frequency (partial rank correlation).
        frequency: rank correlation of the counts with token frequency alone: the baseline of `spearman`.
        ceiling: rank correlation of the counts in one half of the text with those in the other half.
        cross_entropy: the cross-entropy of softmax(direct path) on the second half of the corpus, in nats per token.
        scale: the scale of the final norm by which the direct path is divided: its median over positions of text, in
            forward passes of the whole model. None for a model without layers or without a final norm.
        bigram_cross_entropy: the cross-entropy, on the second half, of the smoothed bigram model of the first half.
        unigram_cross_entropy: the cross-entropy, on the second half, of the first half's smoothed token frequencies.
    """

    tokens: Int[Tensor, " token"]
    occurrences: Int[Tensor, " token"]
    spearman: Float[Tensor, " token"]
    partial: Float[Tensor, " token"]
    frequency: Float[Tensor, " token"]
    ceiling: Float[Tensor, " token"]
    cross_entropy: float
    bigram_cross_entropy: float
    unigram_cross_entropy: float
    scale: float | None
    texts: tuple[str, ...]
    provenance: Provenance

    def to_table(self) -> Table:
        """One row for each token compared; an undefined correlation is empty."""
        columns: dict[str, list[Any]] = {"token": list(self.texts), "occurrences": self.occurrences.tolist()}
        for name in ("spearman", "partial", "frequency", "ceiling"):
            columns[name] = [number_or_none(value) for value in getattr(self, name).tolist()]
        return Table("The direct path and bigrams: rank correlations", columns, self.provenance)

    def mean(self, correlations: Float[Tensor, " token"]) -> float:
        """Return the mean of a correlation over tokens, weighted by occurrences; NaN correlations are left out."""
        weights = torch.where(correlations.isnan(), 0, self.occurrences).double()
        return float((correlations.nan_to_num() * weights).sum() / weights.sum())


@dataclass(frozen=True, eq=False)
class Halves:
    """The bigrams of a text and of its two halves."""

    first: Bigrams
    second: Bigrams
    every: Bigrams
    middle: Int[Tensor, " pos"]
    """The tokens of the second half's first window."""
    fingerprint: str
    """The fingerprint of the corpus, split into windows."""
    max_tokens: int


def halves_of(lm: Decoder, corpus: CorpusSource = None, max_tokens: int = 400_000) -> Halves:
    """Count the bigrams of a corpus in windows of the model's context, and those of each half of it.

    Raises:
        InvalidInput: the corpus is too short.
    """
    pieces, read, text = [], 0, windows_of(corpus, lm.n_ctx or 512, overlap=0)
    for segment in text.segments(lm):
        pieces.append(segment.tokens)
        read += len(segment)
        if read >= max_tokens:
            break
    if len(pieces) < 2:
        raise InvalidInput("the corpus", why="it is too short to count bigrams in one half and test them on the other")
    half = len(pieces) // 2
    first, second, every = (Bigrams.of(part, lm.d_vocab) for part in (pieces[:half], pieces[half:], pieces))
    return Halves(first, second, every, pieces[half], text.fingerprint, max_tokens)


def direct_path(
    lm: Decoder,
    corpus: CorpusSource = None,
    *,
    n_tokens: int = 200,
    max_tokens: int = 400_000,
    hide_unlearned: bool = True,
) -> DirectPath:
    """Compare the direct path, through the model's own norms, with bigrams of a corpus.

    In a model with layers, the embedding is divided by the scale that the final norm has for the whole stream when the
    model runs. The embedding alone would give a much smaller scale.

    Args:
        corpus: anything `unembed.open_corpus` takes.
        n_tokens: number of most frequent tokens to compare by rank correlation.
        max_tokens: largest number of tokens to read.
        hide_unlearned: leave tokens that the model never learned out of the correlations.

    Raises:
        InvalidInput: the corpus is too short.

    Memory: 64 rows of d_vocab.
    """
    halves = halves_of(lm, corpus, max_tokens)
    return direct_path_against(lm, halves, n_tokens=n_tokens, hide_unlearned=hide_unlearned)


@torch.no_grad()
def direct_path_against(lm: Decoder, halves: Halves, *, n_tokens: int = 200, hide_unlearned: bool = True) -> DirectPath:
    """Compare the direct path with the bigrams of a text; see `direct_path`."""
    first, second, every = halves.first, halves.second, halves.every
    loss, scale = 0.0, _scale_of_runs(lm, halves.middle)
    for ids in second.first.unique().split(64):
        log_p = _log_probabilities(lm, ids, scale)
        chosen = torch.isin(second.first, ids)
        rows = torch.searchsorted(ids, second.first[chosen])
        loss -= float((log_p[rows, second.second[chosen]].double() * second.count[chosen]).sum())
    occurrences = every.occurrences
    learned = ~lm.unlearned.cpu() if hide_unlearned else torch.ones(lm.d_vocab, dtype=torch.bool)
    among = occurrences.masked_fill(~learned, 0)
    tokens = among.topk(min(n_tokens, int((among > 0).sum()))).indices
    frequency = average_ranks(every.frequencies[learned])
    rows = []
    for token in tokens.tolist():
        read = _log_probabilities(lm, torch.tensor([token]), scale)[0].double()
        known = (every.row(token), read, first.row(token), second.row(token))
        counts, logits, early, late = (average_ranks(values[learned]) for values in known)
        controlled = _partial_correlation(counts, logits, frequency)
        plain = (_correlation(*pair) for pair in ((counts, logits), (counts, frequency), (early, late)))
        rows.append((controlled, *plain))
    notes = {"max_tokens": halves.max_tokens, "unlearned tokens left out": int((~learned).sum())}
    partial, spearman, by_frequency, ceiling = torch.tensor(rows, dtype=torch.float64).T
    own = loss / int(second.count.sum())
    losses = (own, first.cross_entropy_of(second), _unigram_loss(first, second))
    texts, provenance = tuple(lm.token_strings(tokens)), lm.provenance(corpus=halves.fingerprint, notes=notes)
    correlations = (spearman, partial, by_frequency, ceiling)
    return DirectPath(tokens, occurrences[tokens], *correlations, *losses, scale, texts, provenance)


def _scale_of_runs(lm: Decoder, tokens: Int[Tensor, " pos"]) -> float | None:
    """Return the median scale of the final norm over the first `_SCALED` positions.

    None for models without layers, without a final norm, or with several streams.
    """
    if not lm.n_layers or lm.structure.final_norm is None or lm.structure.streams is not None:
        return None
    last = lm.n_layers - 1
    stream = run(lm, tokens[None, :_SCALED].long(), "resid_post", logits=False, layers=[last]).at("resid_post", last)
    return float(final_scale(lm, stream.to(lm.device)).float().median())


def _log_probabilities(lm: Decoder, ids: Tensor, scale: float | None) -> Float[Tensor, "token d_vocab"]:
    x, norm = embedding(lm, "folded", ids.to(lm.device)), lm.structure.final_norm
    if scale is None or norm is None:
        logits = logits_of(lm, x, "final")
    else:
        divided = norm.frozen(x, x.new_full((len(x), 1), scale)) + (0.0 if norm.bias is None else norm.bias)
        logits = lm.structure.capped(lm.structure.head(divided.to(x.dtype)))
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1).cpu()


def _unigram_loss(known: Bigrams, text: Bigrams) -> float:
    counts = known.frequencies + 1
    log_p = (counts / counts.sum()).log()
    return float(-(log_p[text.second] * text.count).sum() / text.count.sum())


def _correlation(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> float:
    """Return the Pearson correlation; NaN if one of the two is constant."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def _partial_correlation(a: Float[Tensor, " n"], b: Float[Tensor, " n"], given: Float[Tensor, " n"]) -> float:
    """Correlate what remains of `a` and `b` after a linear fit on `given`."""
    ab, ag, bg = _correlation(a, b), _correlation(a, given), _correlation(b, given)
    return (ab - ag * bg) / (((1 - ag**2) * (1 - bg**2)) ** 0.5 or float("nan"))


def average_ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Rank the values from 0; equal values share the mean of their ranks."""
    _, inverse, count = values.unique(return_inverse=True, return_counts=True)
    ends = count.cumsum(dim=0).double()
    return (ends - (count.double() + 1) / 2)[inverse]


def direct_path_section(found: DirectPath, provenance: Provenance) -> Section:
    """Show how the direct path compares with the bigrams of the corpus."""
    losses = {
        "predictor": ["direct path", "bigrams of the other half of the corpus", "frequencies of tokens"],
        "cross_entropy": [found.cross_entropy, found.bigram_cross_entropy, found.unigram_cross_entropy],
    }
    means = {
        "direct path, controlling for token frequency": found.partial,
        "direct path": found.spearman,
        "frequencies of tokens": found.frequency,
        "counts of the other half of the corpus": found.ceiling,
    }
    correlations = {"predictor": list(means), "spearman": [found.mean(values) for values in means.values()]}
    by_token = found.to_table()
    tokens = {name: by_token[name] for name in ("token", "occurrences", "spearman", "partial")}
    text = (
        f"Correlations are over the vocabulary, averaged over the {len(found.tokens)} most frequent tokens with their "
        "occurrences as weights. Frequent tokens often follow any token, so token frequency alone correlates with the "
        "counts. No predictor can agree with the counts better than the other half of the text does. Cross-entropies "
        "are in nats per token, on the second half of the corpus.",
        *(
            ()
            if found.scale is None
            else (
                f"The final norm divides the direct path by {format_number(found.scale)}, its median scale in runs of "
                "the whole model on this text, so that the embedding counts as much as it does there.",
            )
        ),
    )
    what, alone = "Rank correlation with the counts of what follows a token", "the token alone"
    exhibits = (
        exhibit("direct_path", f"Predicting the next token from {alone}", losses, provenance),
        exhibit("direct_path_correlations", what, correlations, provenance),
        exhibit("direct_path_tokens", "Rank correlation by token", tokens, provenance, folded=True),
    )
    return Section("Zero layers: bigrams", text, exhibits)


def direct_path_answer(
    circuits: HeadMatrices,
    *,
    corpus: CorpusName = None,
    compared: Annotated[
        int,
        Option(
            "Number of most frequent tokens for which predicted next tokens are compared with those in the corpus, by "
            "rank correlation.",
            low=1,
            aliases=("--tokens",),
        ),
    ] = 200,
    max_tokens: MaxTokens = 400_000,
) -> Answer:
    """Compare what token embedding times unembedding alone predicts with the bigrams of a corpus.

    Caution: The comparison is with one corpus; rare tokens have few bigrams.
    """
    lm = circuits.lm
    found = direct_path(lm, corpus, n_tokens=compared, max_tokens=max_tokens)
    provenance = lm.provenance(corpus=corpus or SAMPLE)
    return Answer(f"The direct path of {lm.name}", (direct_path_section(found, provenance),), provenance)


ANALYSIS = of_circuits("direct-path", direct_path_answer, "direct-path --model attn-0l", Cost.MINUTES, model="attn-0l")
