"""Run one prompt once, and read its residual stream as tokens at every layer and position.

The stream is read by the lens that was fitted on the model, or by the logit lens if there is none. Reading all
positions of a long prompt costs far more than the forward pass, so positions are read only on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.causality.replaced_pass import record_outputs
from unembed.errors import InvalidInput, PointMissing, Unsupported
from unembed.jacobian.basis import basis_or_default, carried_streams, fitted_lens
from unembed.lens import Reading, final_scale, joined, logits_of, read, top_k
from unembed.logit_attribution import points_needed
from unembed.memories.events import Event
from unembed.models.decoder import Decoder
from unembed.names import POINTS, STREAM_POINTS, Basis, Point, StreamPoint
from unembed.results import Displayed, Provenance, Table
from unembed.stream.attention_keys import keep_keys, keeps_keys
from unembed.stream.attention_weights import leaves_kernels
from unembed.stream.capture_points import has_point
from unembed.stream.decomposition import memory_points
from unembed.stream.interventions import Edits, as_edits
from unembed.stream.massive_activations import massive_ratios
from unembed.stream.run import Run, Tokens, position_of, prepare, run
from unembed.trace.tables import EntropyAndKL
from unembed.validation import as_str, positive_int

TOP = 10
_POSITIONS = 3
"""Number of positions whose updates, coefficients and patterns a trace stores."""


@dataclass(frozen=True, eq=False, repr=False)
class Readings(Displayed):
    """The top tokens that a lens reads at one capture point of the stream, for every layer and position."""

    point: StreamPoint
    basis: Basis
    hidden: bool
    """Whether tokens that the model never learned were left out."""
    reading: Reading
    tokens: list[list[list[str]]]
    """Token texts by layer, position and rank."""
    prompt: tuple[str, ...]
    """The prompt's tokens as text."""
    provenance: Provenance
    position: int | None = None
    """The only position that was read; None where all were."""

    def to_table(self) -> Table:
        """One row for each layer, position and rank (from 1): the token, its id, logit and probability."""
        layers, positions, k = self.ids.shape
        size = layers * positions * k
        columns = {
            "layer": [i // (positions * k) for i in range(size)],
            "position": [i // k % positions + (self.position or 0) for i in range(size)],
            "rank": [i % k + 1 for i in range(size)],
            "token": [token for layer in self.tokens for position in layer for token in position],
            "id": self.ids.flatten().tolist(),
            "logit": self.logits.flatten().tolist(),
            "probability": self.probabilities.flatten().tolist(),
        }
        return Table(f"Readings of {self.point} in basis {self.basis}", columns, self.provenance)

    @property
    def ids(self) -> Int[Tensor, "layer pos k"]:
        """Return the top tokens, best first."""
        return self.reading.ids

    @property
    def logits(self) -> Float[Tensor, "layer pos k"]:
        """Return the logits of the top tokens."""
        return self.reading.logits

    @property
    def probabilities(self) -> Float[Tensor, "layer pos k"]:
        """Return the probabilities of the top tokens."""
        return self.reading.probabilities


class PromptReadings:
    """One prompt run through the model, whose stream can be read as tokens. Results are cached on first use."""

    def __init__(self, lm: Decoder, tokens: Tokens, edits: Edits = (), *, show_unlearned: bool = False) -> None:
        """Run the prompt, and capture the stream and the coefficients of memories.

        Args:
            tokens: one prompt.
            edits: changes to make in the run.
            show_unlearned: also list tokens that the model never learned, and tokens that are only some bytes of a
                character. By default, lists leave them out, except the prediction and its runner-up. Ranks and
                probabilities always count the whole vocabulary.

        Raises:
            InvalidInput: the prompt is empty, too long, or more than one.
            Unsupported: the model has no layers.
        """
        if not lm.n_layers:
            raise Unsupported(
                f"a trace of {lm.name}",
                why="it has no layers: its logits depend on each token alone",
                instead="Use unembed.circuits(lm).direct_path()",
            )
        self.lm, self.edits, self.show_unlearned = lm, as_edits(edits), show_unlearned
        ids, mask = prepare(lm, tokens)
        if ids.shape[0] != 1:
            raise InvalidInput(
                f"{ids.shape[0]} prompts", why="a trace shows one prompt", instead="Trace them one by one"
            )
        self.tokens: Int[Tensor, " pos"] = ids[0]
        self.parallel = any(b.parallel for b in lm.structure.blocks)
        has_ffn = all(b.feed_forward is not None for b in lm.structure.blocks)
        self.before_ffn: StreamPoint = "resid_mid" if has_ffn and not self.parallel else "resid_pre"
        """The capture point of the stream that FFNs read."""
        last = ids.shape[1] - 1
        with ExitStack() as stack:
            self.block_outputs = record_outputs(stack, lm)
            self.keys = keep_keys(stack, lm) if keeps_keys(lm) else None
            by_source = self._points_by_source()
            points = {*points_needed(lm, "component", self.edits), *(by_source or ()), self.before_ffn}
            if any(b.feed_forward is not None and b.feed_forward.has_memories for b in lm.structure.blocks):
                points.update(memory_points(lm))
            self._of_one_position = points - {*STREAM_POINTS, "values"}
            row_of = self._of_one_position
            whole = run(lm, ids, sorted(points), self.edits, attention_mask=mask, row=last, row_of=row_of)
        whole = whole.with_one_stream()
        self._prediction: Int[Tensor, " pos"] = whole.logits[0].argmax(dim=-1)
        self._two_best: Int[Tensor, "pos 2"] = top_k(whole.logits[0], 2)[1]
        self.run: Run = whole.without(row_of).with_last_logits()
        """The run that captured the stream, and the values of heads, at every position."""
        self._leaves_kernels = by_source is not None
        self._positions: dict[tuple[int, bool], Run] = {(last, False): _alone(whole, last)}
        """The run at single positions, by position and whether other attention kernels were used to get patterns."""
        self._everywhere: tuple[tuple[str | tuple[str, ...], tuple[int, ...]], Run] | None = None
        self._events: dict[int | None, list[Event]] = {}
        """Events by position; under None, those of all positions."""
        self._read: dict[tuple[str, int, str, int | None], Reading] = {}
        self._readings: dict[tuple[str, int, str, int | None], Readings] = {}

    @property
    def basis(self) -> Basis:
        """How the stream is read by default: "jacobian" if a lens is fitted on the model, else "final"."""
        return basis_or_default(self.lm, None, "final")

    @property
    def hidden(self) -> Bool[Tensor, " d_vocab"] | None:
        """The tokens left out of lists, as a mask over the vocabulary; None if every token is listed.

        Left out are tokens that the model never learned or that are only some bytes of a character, except those that
        the model predicts as most or second most likely at some position of the prompt.
        """
        return None if self.show_unlearned else self._hidden

    @cached_property
    def _hidden(self) -> Bool[Tensor, " d_vocab"]:
        hidden = self.lm.unlisted.clone()
        hidden[self._two_best.flatten().to(hidden.device)] = False
        return hidden

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of the tensors that the trace stores."""
        further = () if self._everywhere is None else (self._everywhere[1],)
        tensors = [t for one in (self.run, *self._positions.values(), *further) for t in one.tensors()]
        tensors += [t for one in (self.keys or {}).values() for t in (one.key, one.value, one.mask) if t is not None]
        storages = [t.untyped_storage() for t in tensors]
        return sum({one.data_ptr(): one.nbytes() for one in storages}.values())

    @property
    def token_strings(self) -> list[str]:
        """Return the prompt's tokens as text."""
        return self.lm.token_strings(self.tokens)

    @cached_property
    def provenance(self) -> Provenance:
        """The provenance: the model, the edits, and whether unlearned tokens are listed."""
        notes: dict[str, Any] = {"edits": [e.to_dict() for e in self.edits]} if self.edits else {}
        return self.lm.provenance(notes={**notes, "show_unlearned": self.show_unlearned})

    def _points_by_source(self) -> tuple[str, ...] | None:
        """Return the capture points that attribution by source token needs, if the trace's first pass can record them.

        None if it cannot: the model lacks such points, or other attention kernels would be needed to get patterns.
        """
        try:
            found = points_needed(self.lm, "source", self.edits)
        except (PointMissing, Unsupported):
            return None
        layers = [layer for layer in range(self.lm.n_layers) if has_point(self.lm, "pattern", layer)]
        return found if leaves_kernels(self.lm, layers) else None

    def at(self, position: int, points: Sequence[Point | str] = ()) -> Run:
        """Return the run at one position alone, as a run of one token: its stream, updates, coefficients and logits.

        A trace stores these for the last position of the prompt. For another position it runs the prompt again. It
        stores the three positions that were requested last.

        Args:
            points: further capture points that are needed.

        Raises:
            OutOfRange: no such position.
        """
        column = position_of(self.run, position)
        # A second run repeats the first one bit for bit, unless capturing attention patterns needs other attention
        # kernels, which round differently. The results of such a run are stored separately.
        again = "pattern" in points and not self._leaves_kernels
        known = self._positions.pop((column, again), None)
        here = self.run.at_position(column) if known is None else known
        anew = again and known is None
        row_of = sorted({point for point in (*self._of_one_position, *points) if anew or point not in here})
        if row_of or known is None:
            fresh = known is None and not again
            more = run(self.lm, self.tokens[None], row_of, self.edits, logits=fresh, row=column, row_of=row_of)
            more = _alone(more, column)
            if anew:
                here = replace(more, _logits=self.at(position).logits)
            else:
                here = more.joined(here) if fresh else here.joined(more)
        self._positions[column, again] = here
        while len({place for place, _ in self._positions}) > _POSITIONS:
            self._positions.pop(next(iter(self._positions)))  # the least recently used
        return here

    def everywhere(self, points: Point | str | tuple[Point | str, ...], layers: Sequence[int]) -> Run:
        """Run the prompt again up to the last of these layers, and capture points at every position.

        The last run of a single layer is stored, because the explorer shows it again at each position.
        """
        key = (points, tuple(layers))
        if self._everywhere is not None and self._everywhere[0] == key:
            return self._everywhere[1]
        found = run(self.lm, self.tokens[None], points, self.edits, logits=False, layers=layers)
        if len(layers) == 1:
            self._everywhere = key, found
        return found

    def stream(self, point: StreamPoint) -> Float[Tensor, "layer pos d_model"]:
        """Return the residual stream at a capture point, at every position; the trace stores it.

        Raises:
            InvalidInput: `point` is not a capture point of the stream; for other points see `at`.
        """
        _require_stream(point)
        if point not in self.run:
            self.run = self.run.joined(run(self.lm, self.tokens[None], point, self.edits, logits=False))
        return self.run[point][:, 0]

    def logits(self, position: int = -1) -> Float[Tensor, " d_vocab"]:
        """Return the model's logits after a position.

        A trace stores the logits of the last position only; see `at`. `unembed.run(lm, prompt).logits` has those of all
        positions.

        Raises:
            OutOfRange: no such position.
        """
        return self.at(position).logits[0, 0]

    @property
    def prediction(self) -> Int[Tensor, " pos"]:
        """The model's most likely next token after every position."""
        return self._prediction

    @cached_property
    def scale(self) -> Float[Tensor, "pos 1"]:
        """The scale of the final norm at every position of the run."""
        return final_scale(self.lm, self.run.at("resid_post", self.lm.n_layers - 1)[0])

    def massive(self, point: StreamPoint = "resid_post") -> Float[Tensor, "layer pos"]:
        """Return how many times as long as usual the stream is, where it has massive activations; elsewhere 0.

        The usual length is the layer's median over the prompt. A lens reads little there, because it describes usual
        streams.

        Raises:
            InvalidInput: `point` is not a capture point of the stream.
            PointMissing: the model has no such capture point.
        """
        return massive_ratios(self.stream(point))

    def massive_layers(self, point: StreamPoint = "resid_post") -> dict[int, list[int]]:
        """Return the layers whose stream has massive activations, by position; other positions are left out.

        Errors are those of `massive`.
        """
        found: dict[int, list[int]] = {}
        for layer, position in self.massive(point).nonzero().tolist():
            found.setdefault(position, []).append(layer)
        return found

    def readings(
        self,
        point: StreamPoint = "resid_post",
        top: int = TOP,
        basis: Basis | None = None,
        position: int | None = None,
    ) -> Readings:
        """Return the top tokens that a lens reads at a capture point, for every layer and position.

        Args:
            point: capture point of the stream that is read.
            top: number of tokens listed for each layer and position.
            basis: how it is read; when None, by the model's fitted lens ("jacobian"), or "final" where there is none.
            position: only this position is read; all when None.

        Raises:
            InvalidInput: `point` is not a capture point of the stream, or no lens is fitted.
            PointMissing: the model has no such capture point.
            OutOfRange: no such position.
        """
        as_str("point", point)
        basis = self.basis if basis is None else cast(Basis, as_str("basis", basis))
        column = None if position is None else position_of(self.run, position)
        key = (point, positive_int("top", top), basis, column)
        if key not in self._readings:
            reading = self.read(*key)
            flat = self.lm.token_strings(reading.ids)
            layers, positions, k = reading.ids.shape
            texts = [
                [flat[(n * positions + p) * k : (n * positions + p + 1) * k] for p in range(positions)]
                for n in range(layers)
            ]
            provenance = self.lm.provenance(basis=basis, notes={**self.provenance.notes, "point": point})
            self._readings[key] = Readings(
                point, basis, not self.show_unlearned, reading, texts, tuple(self.token_strings), provenance, column
            )
        return self._readings[key]

    def read(self, point: StreamPoint, top: int = TOP, basis: Basis = "final", position: int | None = None) -> Reading:
        """Return what `readings` returns, as tensors and without the tokens' texts.

        If `top` is `TOP` and the basis is "final" or "jacobian", the result also has the rank of the final prediction.
        """
        _require_stream(point)
        column = None if position is None else position_of(self.run, position)
        whole = self._read.get((point, top, basis, None))
        if whole is not None and column is not None:
            return _part(whole, slice(None), slice(column, column + 1))
        if (point, top, basis, column) not in self._read:
            self._read[point, top, basis, column] = self._read_at(point, top, basis, column)
        return self._read[point, top, basis, column]

    def read_column(self, position: int) -> None:
        """Compute one position's token scores before and after attention and FFN of every layer, in one matrix product.

        The scores are those of the logit lens, which defines events, and of a lens fitted on the model. Later calls of
        `read` for this position use them. One product loads the unembedding matrix from memory once.
        """
        column, basis = position_of(self.run, position), self.basis
        if any(("resid_post", TOP, basis, n) in self._read for n in (column, None)):
            return
        at = slice(column, column + 1)
        points: list[StreamPoint] = ["resid_post", "resid_pre"]
        if self.before_ffn == "resid_mid":
            points.append("resid_mid")
        own: dict[StreamPoint, Tensor] = {point: self.stream(point)[:, at] for point in points}
        # The input of a layer usually equals the output of the previous layer bit for bit. Then only the input of the
        # first layer is read; the readings of the other inputs are those of the outputs. This also holds for a fitted
        # lens, because it applies the same map to both.
        follows = torch.equal(own["resid_pre"][1:], own["resid_post"][:-1])
        if follows:
            own["resid_pre"] = own["resid_pre"][:1]
        streams: dict[tuple[StreamPoint, Basis], Tensor] = {(point, "final"): x for point, x in own.items()}
        if basis == "jacobian":
            streams |= {(point, basis): carried_streams(self.lm, x, point) for point, x in own.items()}
        whole = self._with_prediction(torch.cat(list(streams.values())), at)
        start = 0
        for (point, of), x in streams.items():
            part = _part(whole, slice(start, start + len(x)), slice(None))
            start += len(x)
            if point == "resid_pre" and follows:
                part = joined([part, _part(self._read["resid_post", TOP, of, column], slice(-1), slice(None))])
            self._read[point, TOP, of, column] = part

    def _read_at(self, point: StreamPoint, top: int, basis: Basis, column: int | None) -> Reading:
        at = slice(None) if column is None else slice(column, column + 1)
        x = self.stream(point)[:, at]
        if basis == "jacobian":
            x = carried_streams(self.lm, x, point)
            return self._with_prediction(x, at) if top == TOP else read(self.lm, x, top, hidden=self.hidden)
        if (top, basis) != (TOP, "final"):
            scale = self.scale[at].expand(*x.shape[:-1], 1) if basis == "frozen" else None
            return read(self.lm, x, top, basis=basis, scale=scale, hidden=self.hidden)
        below = self.stream("resid_post")[:-1, at] if point == "resid_pre" else None
        # The input of a layer usually equals the output of the previous layer bit for bit. Then the reading of that
        # output is used, and only the input of the first layer is read.
        if below is None or not torch.equal(x[1:], below):
            return self._with_prediction(x, at)
        after = self.read("resid_post", position=column)
        return joined([self._with_prediction(x[:1], at), _part(after, slice(-1), slice(None))])

    def _with_prediction(self, x: Float[Tensor, "layer pos d_model"], at: slice = slice(None)) -> Reading:
        """Decode stream vectors at some positions to tokens, and record the rank of each position's prediction."""
        track = self.prediction[None, at, None].expand(x.shape[0], -1, -1)
        return read(self.lm, x, TOP, track=track, hidden=self.hidden)

    def by_layers(self, vectors: int = 384) -> Iterator[tuple[range, str, Reading]]:
        """Yield what `read` returns for some layers at a time: first after the FFN of all layers, then before it.

        Args:
            vectors: largest number of stream vectors to read at once; at least one layer is read.

        Yields:
            The layers, from the last to the first; the capture point; and the top tokens of those layers, with the
            rank of the final prediction. Afterwards `read` finds the results before and after FFNs in the cache.
        """
        n, step = self.lm.n_layers, max(1, positive_int("vectors", vectors) // max(1, len(self)))
        for point in ("resid_post", self.before_ffn):
            if (point, TOP, self.basis, None) in self._read:
                continue
            x, found = self.stream(point), list[Reading]()
            for stop in range(n, 0, -step):
                layers = range(max(0, stop - step), stop)
                rows = x[layers.start : stop]
                carried = carried_streams(self.lm, rows, point, layers) if self.basis == "jacobian" else rows
                found.insert(0, self._with_prediction(carried))
                yield layers, point, found[0]
            self._read[point, TOP, self.basis, None] = joined(found)

    def ranks_of(
        self,
        token: str | int,
        point: StreamPoint = "resid_post",
        position: int | None = None,
        basis: Basis | None = None,
    ) -> Int[Tensor, "layer pos"]:
        """Return a token's rank (1 is the top) at every layer, at all positions or one; arguments as in `readings`."""
        return self.ranks_and_probabilities(token, point, basis, position)[0]

    def ranks_and_probabilities(
        self,
        token: str | int,
        point: StreamPoint = "resid_post",
        basis: Basis | None = None,
        position: int | None = None,
    ) -> tuple[Int[Tensor, "layer pos"], Float[Tensor, "layer pos"]]:
        """Return rank (1 is the top) and probability of a token at every layer, at every position or at one.

        When `basis` is None, the stream is read by the model's fitted lens, or in basis "final" without one.

        Raises:
            PointMissing: the model has no such capture point.
        """
        token, column = self.lm.single_token(token), None if position is None else position_of(self.run, position)
        is_recorded = (basis or self.basis) in ("final", "jacobian")
        if is_recorded and column is not None and token == int(self.prediction[column]):
            found = self.read(point, basis=basis or self.basis, position=column)  # recorded when the stream was read
            return found.tracked_ranks[..., 0], found.tracked_probabilities[..., 0]
        ranks, probabilities = self.tracked([token], point, basis, position)
        return ranks[..., 0], probabilities[..., 0]

    def tracked(
        self, tokens: Sequence[int], point: StreamPoint, basis: Basis | None = None, position: int | None = None
    ) -> tuple[Int[Tensor, "layer pos token"], Float[Tensor, "layer pos token"]]:
        """Return rank and probability of several tokens, as `ranks_and_probabilities` does of one, in one reading.

        Raises:
            PointMissing: the model has no such capture point.
        """
        at, basis = slice(None) if position is None else [position_of(self.run, position)], basis or self.basis
        x = self.stream(point)[:, at]
        if basis == "jacobian":
            x, basis = carried_streams(self.lm, x, point), "final"
        track = torch.tensor(tokens).expand(*x.shape[:-1], len(tokens))
        scale = self.scale[at].expand(*x.shape[:-1], 1) if basis == "frozen" else None
        found = read(self.lm, x, 1, basis=basis, scale=scale, track=track, hidden=self.hidden)
        return found.tracked_ranks, found.tracked_probabilities

    def ranks_among(
        self,
        tokens: Sequence[Sequence[int]],
        points: Sequence[StreamPoint],
        layer: int,
        position: int,
        basis: Basis | None = None,
    ) -> Int[Tensor, "point token"]:
        """Return the ranks of given tokens at some capture points of one layer and position.

        `tokens` has a list for each capture point, all of the same length.
        """
        layer, column = self.lm.layer(layer), position_of(self.run, position)
        is_stored = all(point in self.run for point in points)
        here = self.run.at_position(column) if is_stored else self.at(column, points)
        x, basis = torch.stack([here.at(point, layer)[0, 0] for point in points]), basis or self.basis
        if basis == "jacobian":
            lens, basis = fitted_lens(self.lm), "final"
            x = torch.stack([lens.carried(row, layer, p) for p, row in zip(points, x, strict=True)]).to(x.dtype)
        scale = self.scale[[column]].expand(len(points), 1) if basis == "frozen" else None
        track = torch.as_tensor(tokens)
        return read(self.lm, x, 1, basis=basis, scale=scale, track=track, hidden=self.hidden).tracked_ranks

    def prediction_ranks(
        self, point: StreamPoint = "resid_post", position: int | None = None, basis: Basis | None = None
    ) -> Int[Tensor, "layer pos"]:
        """Return the rank (1 is the top) of each position's final prediction at a capture point of every layer.

        The arguments are those of `readings`, but the basis is "final" or "jacobian".
        """
        return self.read(point, basis=basis or self.basis, position=position).tracked_ranks[..., 0]

    @torch.no_grad()
    def entropy_and_kl(self, point: StreamPoint = "resid_post") -> EntropyAndKL:
        """Return the entropy of what a lens reads at every layer, and its KL divergence from the final prediction.

        Both are in nats, at every position. The lens is the one fitted on the model, or else the logit lens.

        Raises:
            PointMissing: the model has no such capture point.

        Memory: the logits of all positions, and 3 * 32 * d_vocab numbers.
        """
        x = self.stream(point)
        if self.basis == "jacobian":
            x = carried_streams(self.lm, x, point)
        logits = run(self.lm, self.tokens[None], (), self.edits).logits[0]
        parts = (slice(at, at + 32) for at in range(0, len(self), 32))
        found = [self._entropy_and_kl(x[:, part], logits[part]) for part in parts]
        entropy, divergence = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        provenance = self.lm.provenance(basis=self.basis, notes={**self.provenance.notes, "point": point})
        return EntropyAndKL(point, entropy, divergence, tuple(self.token_strings), provenance)

    def _entropy_and_kl(
        self, x: Float[Tensor, "layer pos d_model"], logits: Float[Tensor, "pos d_vocab"]
    ) -> tuple[Float[Tensor, "layer pos"], Float[Tensor, "layer pos"]]:
        """Return entropy and divergence of the readings of some positions, given the model's logits there."""
        final = logits.float().log_softmax(dim=-1)
        entropy, divergence = [], []
        for layer in x:
            log_p = logits_of(self.lm, layer).float().log_softmax(dim=-1)
            p = log_p.exp()
            entropy.append(-torch.linalg.vecdot(p, log_p))
            # The KL divergence is computed as the difference of two sums. If these are nearly equal, rounding can make
            # it slightly negative.
            divergence.append((-entropy[-1] - torch.linalg.vecdot(p, final)).clamp(min=0))
        return torch.stack(entropy), torch.stack(divergence)


def _alone(whole: Run, column: int) -> Run:
    """Return a run's part at one position; its logits are copied, so that those of other positions can be freed."""
    here = whole.at_position(column)
    return here if here._logits is None else replace(here, _logits=here._logits.clone())


def _require_stream(point: StreamPoint) -> None:
    """Raise an error if a capture point is not one of the residual stream."""
    if as_str("point", point) in POINTS and point not in STREAM_POINTS:
        raise InvalidInput(f"the stream at {point!r}", why=f"it can be read only at {', '.join(STREAM_POINTS)}")


def _part(reading: Reading, layers: slice, positions: slice) -> Reading:
    """Return the readings of some layers and positions."""
    return Reading(*(getattr(reading, f.name)[layers, positions] for f in fields(Reading)))
