"""Adaptive input and softmax: rarer words have vectors of fewer dimensions.

Words are sorted by decreasing count and cut into bands. Band b has narrow vectors e_w and one projection P_b that
widens them to d_model. The head returns the log-probabilities of all words, not logits: one softmax is over the words
of the first band and one class for each other band, and a further softmax is over the words inside each other band. A
vector h of the residual stream can be read in two ways:

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

from unembed.models.offload import parameter

Span = tuple[int, int, int]
"""A band: its first word, the word after its last one, and the width of its vectors."""


class Band(nn.Module):
    """The word vectors of one band, and the projection that widens them to d_model."""

    def __init__(self, n_words: int, width: int, d_model: int) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, width)
        self.projection = nn.Linear(width, d_model, bias=False)


class AdaptiveEmbedding(nn.Module):
    """Maps word w of band b to the vector P_b e_w of the residual stream; the first band has a projection too."""

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
        """Return the embedding of every id, before it is multiplied by sqrt(d_model)."""
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
        """The embedding of every word, computed as a new tensor of d_vocab * d_model elements."""
        return torch.cat([_of(b.words) @ _of(b.projection).T for b in map(self.band, range(len(self.spans)))]).detach()


class AdaptiveSoftmax(nn.Module):
    """Maps vectors of the residual stream to log-probabilities of all words.

    The word vectors are the embedding's parameters, not copies. The embedding is a reference and not a submodule, so
    that checkpoints contain each tensor once.
    """

    def __init__(self, embedding: AdaptiveEmbedding, *, tied: bool) -> None:
        """Create class vectors for all bands but the first and, unless `tied`, the softmax's own projections."""
        super().__init__()
        self._shared = (embedding,)
        self.spans = embedding.spans
        self.class_proj = nn.Linear(embedding.d_model, len(self.spans) - 1, bias=False)
        self.projections = nn.ModuleList(
            nn.Linear(embedding.d_model, width, bias=False) for _, _, width in ([] if tied else self.spans[1:])
        )

    @property
    def embedding(self) -> AdaptiveEmbedding:
        """The embedding whose word vectors the softmax uses."""
        return self._shared[0]

    def share(self, embedding: AdaptiveEmbedding) -> None:
        """Use the word vectors of another embedding."""
        self._shared = (embedding,)

    def _narrowing(self, band: int) -> Float[Tensor, "width d_model"]:
        """Return P_b^T, which maps d_model to the width of a band other than the first."""
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
        """Return the linear scores x @ W_U, comparable within each band, without forming W_U."""
        return torch.cat([self._scores_in(b, x) for b in range(len(self.spans))], dim=-1)

    def _first(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos first"]:
        """Return the log-probabilities of the first softmax: words of the first band, then one class per other band."""
        scores = torch.cat([self._scores_in(0, x), self.class_proj(x)], dim=-1)
        return scores.log_softmax(dim=-1, dtype=_precise(scores))

    def forward(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_vocab"]:
        """Return log p of every word, in float32 or a wider dtype."""
        first = self._first(x)
        n_first = self.spans[0][1]
        parts = [first[..., :n_first]]
        for band in range(1, len(self.spans)):
            scores = self._scores_in(band, x)
            within = scores.log_softmax(dim=-1, dtype=_precise(scores))
            parts.append(first[..., n_first + band - 1, None] + within)
        return torch.cat(parts, dim=-1)

    def log_probabilities(self, x: Float[Tensor, "row d_model"], words: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """Return log p of one given word for each vector; bands that contain none of these words are not computed."""
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

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """The linear part of the readout: column w is P_b e_w, in the first band e_w.

        Scores against it are exact for sub-updates, but comparable only within a band. It is a new tensor of d_model *
        d_vocab elements at each access; to score vectors, use `band_scores`.
        """
        blocks = [_of(self.embedding.band(0).words)]
        blocks += [_of(self.embedding.band(b).words) @ self._narrowing(b) for b in range(1, len(self.spans))]
        return torch.cat(blocks).detach().T


def _of(module: nn.Module) -> Tensor:
    """Return a module's weight; if it is offloaded, it is loaded first."""
    weight = parameter(module)
    assert weight is not None
    return weight


def _precise(scores: Tensor) -> torch.dtype:
    return torch.promote_types(scores.dtype, torch.float32)
