"""Adaptive input and softmax: words in bands of decreasing frequency, where rarer bands have narrower vectors.

Words are sorted by decreasing count and cut into bands. Band b has narrow vectors e_w and one projection P_b that
widens them. The head returns LOG-PROBABILITIES of all words: they are normalised over the first band plus one class for
each other band, and then within each other band. A stream vector h can be read in two ways:

- `band` (`AdaptiveSoftmax.band_scores`, and the columns of `AdaptiveSoftmax.W_U`): the linear score e_w . P_b^T h, in
  the first band e_w . h. It is exact for sub-updates, but comparable only within a band.
- `adaptive` (`AdaptiveSoftmax.forward`): log p(w). It is comparable everywhere, but not linear: the effect of an update
  on a word is the difference of two log-probabilities. Scaling h can change its top word.

Source: Baevski & Auli 2019, "Adaptive Input Representations for Neural Language Modeling".
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unembed.errors import InvalidInput
from unembed.models.offload import parameter

Span = tuple[int, int, int]
"""Of a band: its first word, the word after its last, and the width of its vectors."""


class Band(nn.Module):
    """The words of one band, and the projection that widens their vectors to the width of the stream."""

    def __init__(self, n_words: int, width: int, d_model: int) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, width)
        self.projection = nn.Linear(width, d_model, bias=False)


class AdaptiveEmbedding(nn.Module):
    """Maps word ids to stream vectors P_b e_w; the first band has a projection too."""

    def __init__(self, spans: list[Span], d_model: int) -> None:
        super().__init__()
        self.spans = spans
        self.d_model = d_model
        self.bands = nn.ModuleList(Band(end - start, width, d_model) for start, end, width in spans)

    def band(self, number: int) -> Band:
        """Return one band."""
        band = self.bands[number]
        assert isinstance(band, Band)
        return band

    def forward(self, ids: Int[Tensor, "*pos"]) -> Float[Tensor, "*pos d_model"]:
        """The (unscaled) embedding of every id."""
        reference = self.band(0).projection.weight
        out = torch.zeros(*ids.shape, self.d_model, dtype=reference.dtype, device=ids.device)
        for number, (start, end, _) in enumerate(self.spans):
            chosen = (ids >= start) & (ids < end)
            if bool(chosen.any()):
                band = self.band(number)
                out[chosen] = band.projection(band.words(ids[chosen] - start)).to(out.dtype)
        return out

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """Compute the embedding of every word as a new tensor of d_vocab * d_model numbers."""
        return torch.cat([_of(b.words) @ _of(b.projection).T for b in map(self.band, range(len(self.spans)))]).detach()


class AdaptiveSoftmax(nn.Module):
    """Maps stream vectors to log-probabilities of all words; the module's docstring explains its two readings.

    The words are the embedding's own parameters, not copies. The embedding is a reference and not a submodule, so that
    checkpoints hold each tensor once.
    """

    def __init__(self, embedding: AdaptiveEmbedding, *, tied: bool) -> None:
        """Create the scores of the other bands, and projections unless they are those of the embedding (`tied`)."""
        super().__init__()
        self._shared = (embedding,)
        self.spans = embedding.spans
        self.class_proj = nn.Linear(embedding.d_model, len(self.spans) - 1, bias=False)
        self.projections = nn.ModuleList(
            nn.Linear(embedding.d_model, width, bias=False) for _, _, width in ([] if tied else self.spans[1:])
        )

    @property
    def embedding(self) -> AdaptiveEmbedding:
        """The embedding whose words are read."""
        return self._shared[0]

    def share(self, embedding: AdaptiveEmbedding) -> None:
        """Read the words of another embedding instead."""
        self._shared = (embedding,)

    def _narrowing(self, band: int) -> Float[Tensor, "width d_model"]:
        """Return P_b^T, which maps the stream to the vectors of a band other than the first."""
        if len(self.projections):
            own = self.projections[band - 1]
            assert isinstance(own, nn.Linear)
            return _of(own)
        return _of(self.embedding.band(band).projection).T

    def _scores_in(self, band: int, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos word"]:
        """Return the linear scores of a band's words."""
        words = _of(self.embedding.band(band).words)
        return x @ words.T if band == 0 else (x @ self._narrowing(band).T) @ words.T

    def band_scores(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_vocab"]:
        """Return the `band` reading: linear scores, equal to x @ W_U but without forming W_U."""
        return torch.cat([self._scores_in(b, x) for b in range(len(self.spans))], dim=-1)

    def _first(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos first"]:
        """Return log-probabilities of the first band's words, and then of the other bands as classes."""
        scores = torch.cat([self._scores_in(0, x), self.class_proj(x)], dim=-1)
        return scores.log_softmax(dim=-1, dtype=_precise(scores))

    def forward(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_vocab"]:
        """Return the `adaptive` reading: log p of every word, in float32 or wider."""
        first = self._first(x)
        n_first = self.spans[0][1]
        parts = [first[..., :n_first]]
        for band in range(1, len(self.spans)):
            scores = self._scores_in(band, x)
            within = scores.log_softmax(dim=-1, dtype=_precise(scores))
            parts.append(first[..., n_first + band - 1, None] + within)
        return torch.cat(parts, dim=-1)

    def log_probability(self, x: Float[Tensor, "*pos d_model"], word: int) -> Float[Tensor, "*pos"]:
        """Return log p of one word, for which only the first band and the word's own band are computed."""
        first = self._first(x)
        band = self.band_of(word)
        if band == 0:
            return first[..., word]
        scores = self._scores_in(band, x)
        within = scores.log_softmax(dim=-1, dtype=_precise(scores))[..., word - self.spans[band][0]]
        return first[..., self.spans[0][1] + band - 1] + within

    def log_probabilities(self, x: Float[Tensor, "row d_model"], words: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """Return log p of one word for each vector; bands without any of the words are not computed."""
        first, n_first = self._first(x), self.spans[0][1]
        found = first.gather(1, words.clamp(max=n_first - 1)[:, None])[:, 0]
        for band in range(1, len(self.spans)):
            start, end, _ = self.spans[band]
            rows = ((words >= start) & (words < end)).nonzero()[:, 0]
            if len(rows):
                scores = self._scores_in(band, x[rows])
                within = scores.log_softmax(dim=-1, dtype=_precise(scores))
                found[rows] = first[rows, n_first + band - 1] + within.gather(1, words[rows, None] - start)[:, 0]
        return found

    def band_of(self, word: int) -> int:
        """Return the band of a word."""
        for band, (start, end, _) in enumerate(self.spans):
            if start <= word < end:
                return band
        raise InvalidInput(f"word {word}", why=f"the ids of the vocabulary are 0 to {self.spans[-1][1] - 1}")

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """Compute the linear part of the readout, one column for each word: E_b = e P_b^T, transposed.

        Scores against it are the `band` reading: exact for sub-updates, comparable within a band. It is a new tensor of
        d_model * d_vocab numbers each time; for scores of vectors use `band_scores`.
        """
        blocks = [_of(self.embedding.band(0).words)]
        blocks += [_of(self.embedding.band(b).words) @ self._narrowing(b) for b in range(1, len(self.spans))]
        return torch.cat(blocks).detach().T


def _of(module: nn.Module) -> Tensor:
    """Return a module's weight, fetched if it is offloaded: the head reads the embedding's weights, which may be."""
    weight = parameter(module)
    assert weight is not None
    return weight


def _precise(scores: Tensor) -> torch.dtype:
    return torch.promote_types(scores.dtype, torch.float32)
