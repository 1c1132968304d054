"""The stream of one run read in the vocabulary: the logit lens at every layer and position, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.lens import Reading, final_scale, joined, logits_of, read
from unembed.models.decoder import Decoder
from unembed.names import POINTS, STREAM_POINTS, Basis, StreamPoint
from unembed.results import Displayed, Provenance, Table
from unembed.stream.run import Run
from unembed.validation import as_str, positive_int

TOP = 10


@dataclass(frozen=True, eq=False, repr=False)
class Readings(Displayed):
    """The logit lens of one prompt: the top tokens of the stream at one point of every layer and position."""

    point: StreamPoint
    basis: Basis
    hidden: bool
    """Whether tokens that the model never learned were left out."""
    reading: Reading
    tokens: list[list[list[str]]]
    """Token texts by layer, position and rank."""
    prompt: tuple[str, ...]
    """Texts of the prompt's own tokens."""
    provenance: Provenance

    def to_table(self) -> Table:
        """One row for each layer, position and rank (from 1): the token, its id, logit and probability."""
        layers, positions, k = self.ids.shape
        size = layers * positions * k
        columns = {
            "layer": [i // (positions * k) for i in range(size)],
            "position": [i // k % positions for i in range(size)],
            "rank": [i % k + 1 for i in range(size)],
            "token": [token for layer in self.tokens for position in layer for token in position],
            "id": self.ids.flatten().tolist(),
            "logit": self.logits.flatten().tolist(),
            "probability": self.probabilities.flatten().tolist(),
        }
        return Table(f"Readings of {self.point} in basis {self.basis}", columns, self.provenance)

    @property
    def ids(self) -> Int[Tensor, "layer pos k"]:
        """Top tokens, best first."""
        return self.reading.ids

    @property
    def logits(self) -> Float[Tensor, "layer pos k"]:
        """Their logits."""
        return self.reading.logits

    @property
    def probabilities(self) -> Float[Tensor, "layer pos k"]:
        """Their probabilities."""
        return self.reading.probabilities


class StreamReadings:
    """The stream of a run of one prompt, read at its points; each reading records the rank of the final prediction."""

    def __init__(
        self,
        lm: Decoder,
        run_with: Callable[[Sequence[str]], Run],
        before_ffn: str,
        hidden: Bool[Tensor, " d_vocab"] | None,
    ) -> None:
        """Read nothing yet.

        Args:
            run_with: returns a run of the prompt that captured these points.
            before_ffn: the point that FFNs read.
            hidden: tokens to leave out of lists and ranks; None lists every token.
        """
        self.lm, self.run_with, self.before_ffn, self.hidden = lm, run_with, before_ffn, hidden
        self._readings: dict[tuple[str, int, str], Reading] = {}

    @cached_property
    def logits(self) -> Float[Tensor, "pos d_vocab"]:
        """Of the run."""
        return self.run_with(()).logits[0]

    @cached_property
    def prediction(self) -> Int[Tensor, " pos"]:
        """The model's most likely next token after every position."""
        return self.logits.argmax(dim=-1)

    @cached_property
    def scale(self) -> Float[Tensor, "pos 1"]:
        """The scale of the final norm at every position of the run."""
        return final_scale(self.lm, self.run_with(()).at("resid_post", self.lm.n_layers - 1)[0])

    def stream(self, point: str) -> Float[Tensor, "layer pos d_model"]:
        """The stream at a point."""
        return self.run_with((point,))[point][:, 0]

    def read(self, point: str, top: int = TOP, basis: Basis = "final") -> Reading:
        """Top tokens at a point of every layer and position.

        Raises:
            InvalidInput: it is not a point of the stream.
            PointMissing: the model has no such point.
        """
        if as_str("point", point) in POINTS and point not in STREAM_POINTS:
            raise InvalidInput(f"readings of {point}", why=f"the stream is read at {', '.join(STREAM_POINTS)}")
        if (point, top, basis) not in self._readings:
            self._readings[point, top, basis] = self._read(point, top, basis)
        return self._readings[point, top, basis]

    def _read(self, point: str, top: int, basis: Basis) -> Reading:
        x = self.stream(point)
        if (top, basis) != (TOP, "final"):
            scale = self.scale.expand(*x.shape[:-1], 1) if basis == "frozen" else None
            return read(self.lm, x, top, basis=basis, scale=scale, hidden=self.hidden)
        below = self.stream("resid_post")[:-1] if point == "resid_pre" else None
        # A layer's input usually equals the output of the layer below bit for bit: then only the lowest layer's is
        # read.
        if below is None or not torch.equal(x[1:], below):
            return self._with_prediction(x)
        after = self.read("resid_post")
        below_them = Reading(*(getattr(after, f.name)[:-1] for f in fields(Reading)))
        return joined([self._with_prediction(x[:1]), below_them])

    def _with_prediction(self, x: Float[Tensor, "layer pos d_model"]) -> Reading:
        """Readings whose tracked token is the final prediction of each position."""
        track = self.prediction[None, :, None].expand(x.shape[0], -1, -1)
        return read(self.lm, x, TOP, track=track, hidden=self.hidden)

    def by_layers(self, vectors: int = 384) -> Iterator[tuple[range, str, Reading]]:
        """What `read` returns, in parts: the stream read some layers at a time, after all FFNs and then before them.

        Args:
            vectors: how many to read at once, at most, but at least one layer.

        Yields:
            Layers from the bottom up, the point, and its readings of those layers, with the rank of the final
            prediction as the tracked one. When all have come, the readings after and before FFNs need no others.
        """
        n, step = self.lm.n_layers, max(1, positive_int("vectors", vectors) // max(1, len(self.prediction)))
        for point in ("resid_post", self.before_ffn):
            if (point, TOP, "final") in self._readings:
                continue
            x, found = self.stream(point), list[Reading]()
            for start in range(0, n, step):
                layers = range(start, min(n, start + step))
                found.append(self._with_prediction(x[start : layers.stop]))
                yield layers, point, found[-1]
            self._readings[point, TOP, "final"] = joined(found)

    def ranks_and_probabilities(
        self, token: int, point: str, basis: Basis, column: int | None
    ) -> tuple[Int[Tensor, "layer pos"], Float[Tensor, "layer pos"]]:
        """The rank and the probability of a token at every layer, at every position or at one."""
        at = slice(None) if column is None else [column]
        if basis == "final" and column is not None and token == int(self.prediction[column]):
            found, at = self.read(point), (slice(None), at)  # recorded when the stream was read
        else:
            x = self.stream(point)[:, at]
            track = torch.full((*x.shape[:-1], 1), token)
            scale = self.scale[at].expand(*x.shape[:-1], 1) if basis == "frozen" else None
            found, at = read(self.lm, x, 1, basis=basis, scale=scale, track=track, hidden=self.hidden), ...
        return found.tracked_ranks[..., 0][at], found.tracked_probabilities[..., 0][at]

    def ranks_among(
        self, tokens: Sequence[Sequence[int]], points: Sequence[str], layer: int, column: int, basis: Basis
    ) -> Int[Tensor, "point token"]:
        """The ranks of chosen tokens, as many at each point, at points of one layer and position."""
        x = torch.stack([self.run_with((point,)).at(point, layer)[0, column] for point in points])
        scale = self.scale[[column]].expand(len(points), 1) if basis == "frozen" else None
        track = torch.as_tensor(tokens)
        return read(self.lm, x, 1, basis=basis, scale=scale, track=track, hidden=self.hidden).tracked_ranks

    @torch.no_grad()
    def entropy_and_kl(self, point: str) -> tuple[Float[Tensor, "layer pos"], Float[Tensor, "layer pos"]]:
        """The entropy of every reading at a point, and its divergence from the final prediction, in nats."""
        final = self.logits.float().log_softmax(dim=-1)
        entropy, divergence = [], []
        for layer in self.stream(point):
            log_p = logits_of(self.lm, layer).float().log_softmax(dim=-1)
            p = log_p.exp()
            entropy.append(-torch.linalg.vecdot(p, log_p))
            # Rounding can bring the sum of the same numbers, taken twice, below zero.
            divergence.append((-entropy[-1] - torch.linalg.vecdot(p, final)).clamp(min=0))
        return torch.stack(entropy), torch.stack(divergence)
