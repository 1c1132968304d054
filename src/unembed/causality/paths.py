"""Path patching: measure the prediction if one component's output (the sender's) is replaced for one receiver only.

The sender's output is taken from the other run, and only the receiver's input contains the difference: every other
head, FFN and norm before the receiver has the activations of the unchanged run. The receiver is recomputed with the
model's own modules, and so is everything after it.

Source: Wang et al. 2022, "Interpretability in the wild", section 3.1 (path patching); Goldowsky-Dill et al. 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.weights.composition import ratios_of, readers, writers
from unembed.attention.weights.folded_weights import default_basis
from unembed.causality.effect_order import ranked
from unembed.causality.metrics import Metric, MetricFunction
from unembed.causality.path_ends import PARTS, End, reaches, receivers_of, senders_of
from unembed.causality.prompt_pair import (
    Alignment,
    Direction,
    GaussianNoise,
    PromptPair,
    prompt_pair,
    recovered,
    taken_from,
)
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import TOKENS_AT_ONCE
from unembed.errors import InvalidInput, UnembedError, Unsupported
from unembed.models.decoder import Decoder
from unembed.results import Displayed, Provenance, Table, format_signed
from unembed.stream.capture_points import has_point, require_point
from unembed.stream.decomposition import require_unnormalised_stream
from unembed.stream.interventions import Edits, as_edits
from unembed.stream.run import Tokens


@dataclass(frozen=True, eq=False, repr=False)
class Paths(Displayed):
    """The metric after the output of each sender is replaced in the input of a single receiver.

    Attributes:
        senders: the components whose output is replaced, such as "L0H3".
        receivers: the components that receive the change, such as "L1H4.k".
        values: the metric of the patched run; NaN where the receiver does not come after the sender.
        composition: for a sender a and a receiver b that are heads, the composition score ||W_OV_a W_b||_F /
            (||W_OV_a||_F ||W_b||_F), where W_b is the QK matrix of b (transposed for keys), or its OV matrix for
            values; NaN for other pairs.
        clean: the metric of the clean run.
        corrupted: the metric of the corrupted run.
        direction: "denoising" takes the sender from the clean run into the corrupted one, "noising" the reverse.
        alignment: how the prompts were aligned, as text.
    """

    metric: str
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    values: Float[Tensor, "sender receiver"]
    composition: Float[Tensor, "sender receiver"]
    clean: float
    corrupted: float
    direction: Direction
    alignment: str
    provenance: Provenance

    @property
    def recovered(self) -> Float[Tensor, "sender receiver"]:
        """How far each replacement moves the metric: 0 is that of the run before patching, 1 that of the other run."""
        return recovered(self.values, self.clean, self.corrupted, self.direction)

    def to_table(self) -> Table:
        """Return a table with one row for each path, the largest effect first."""
        columns = {
            "sender": [sender for sender in self.senders for _ in self.receivers],
            "receiver": self.receivers * len(self.senders),
            "metric": self.values,
            "recovered": self.recovered,
            "composition": self.composition if bool(self.composition.isfinite().any()) else None,
        }
        title = (
            f"Path patching ({self.direction}): {self.metric}, clean {format_signed(self.clean)}, corrupted "
            f"{format_signed(self.corrupted)}"
        )
        return ranked(title, columns, self.recovered, self.provenance)


def patch_paths(
    lm: Decoder,
    clean: Tokens,
    corrupted: Tokens | GaussianNoise,
    senders: str | Sequence[str],
    receivers: str | Sequence[str],
    metric: Metric | MetricFunction | None,
    positions: Sequence[int] | None,
    alignment: Alignment | None,
    direction: Direction,
    edits: Edits,
    batch: int | None,
) -> Paths:
    """Replace the output of each sender for each receiver alone; the arguments are those of `patch`.

    Memory: the output of each sender, the activations of one layer of receivers for all senders, and one batch.
    """
    require_unnormalised_stream(lm, "path patching")
    if any(e.target == "stream" and e.action != "add" for e in as_edits(edits)):
        raise Unsupported(
            "path patching with an edit that replaces the stream",
            why="such an edit cuts every path through the stream",
            instead="Remove the edit",
        )
    from_, to = senders_of(lm, senders), receivers_of(lm, receivers)
    if not any(reaches(lm, s, r) for s in from_ for r in to):
        raise InvalidInput("these paths", why="no receiver reads the stream after a sender has written to it")
    for end in (*from_, *to):
        if end.kind in ("attn_out", "mlp_out"):
            require_point(lm, end.kind, end.layer)
    points = {point for s in from_ for point in s.points if has_point(lm, point, s.layer)}
    if any(_read_by(lm, r) == "resid_mid" for r in to):
        points.add("resid_mid")
    if any(r.kind == "logits" for r in to):
        points.add("resid_post")
    pair = prompt_pair(lm, clean, corrupted, sorted(points), metric, alignment, direction, positions, edits)
    paths = _Paths(lm, pair, from_, batch)
    values = torch.full((len(from_), len(to)), float("nan"), dtype=torch.float64)
    for layer in sorted({r.layer for r in to}):
        for j, row, rows in paths.rows([(j, r) for j, r in enumerate(to) if r.layer == layer]):
            values[row, j] = pair.target.measured(rows, pair.function, batch)
    composition, basis = _compositions(lm, from_, to)
    return Paths(
        pair.label,
        tuple(map(str, from_)),
        tuple(map(str, to)),
        values,
        composition,
        *pair.ends,
        direction,
        pair.alignment,
        lm.provenance(seed=pair.seed, notes={"alignment": pair.alignment} | ({"composition": basis} if basis else {})),
    )


def _read_by(lm: Decoder, receiver: End) -> str:
    """Return the capture point of the residual stream that a component or head reads."""
    is_behind = receiver.kind == "mlp_out" and lm.structure.blocks[receiver.layer].is_sequential
    return "resid_mid" if is_behind else "resid_pre"


class _Paths:
    """Computes the outputs of each receiver when a sender's output is replaced in the input of that receiver alone."""

    def __init__(self, lm: Decoder, pair: PromptPair, senders: Sequence[End], batch: int | None) -> None:
        """Compute each sender's output in the other run minus its output in the patched run."""
        self.lm, self.target, self.senders, self.batch = lm, pair.target, senders, batch
        self.added: list[Float[Tensor, "pos d_model"]] = [self._added(s, pair) for s in senders]

    def _added(self, sender: End, pair: PromptPair) -> Float[Tensor, "pos d_model"]:
        """Return the sender's output in the other run minus its output in the patched run.

        For a head or memory, both outputs are computed in one batch: its first row has the activation of the other run,
        its second row that of the patched run. Both rows are rounded alike, so the difference is exactly zero if the
        two activations are equal.
        """
        own_positions = [(c, c) for _, c in pair.positions]

        def there_and_here(point: str) -> tuple[Replacement, Replacement]:
            there = taken_from(pair.source, point, sender.layer, pair.positions, sender.index)
            return there, taken_from(pair.target, point, sender.layer, own_positions, sender.index)

        if sender.index is not None:
            (point,) = sender.points
            rows = [[one] for one in there_and_here(point)]
            there, here = self.target.activations(rows, "attn_out" if point == "z" else "mlp_out", sender.layer)
            return there - here
        total = torch.zeros_like(self.target.activation("resid_pre", sender.layer))
        for point in sender.points:
            if not has_point(self.lm, point, sender.layer):
                continue  # this layer has no mixer (such as attention), or no FFN
            difference = torch.zeros_like(total)
            there, here = there_and_here(point)
            difference[there.positions] = there.value - here.value
            if sender.kind == "layer" and point == "attn_out":
                difference = self._after_middle(difference, sender.layer)
            total = total + difference
        return total

    def _after_middle(self, added: Tensor, layer: int) -> Tensor:
        """Multiply the output of attention by the block's middle gain, if the FFN comes after attention.

        The middle gain is the factor by which a block multiplies the residual stream between attention and FFN.
        """
        block = self.lm.structure.blocks[layer]
        return _times(added, block.middle_gain) if block.is_sequential else added

    def _changed(self, i: int, receiver: End) -> list[Replacement]:
        """Return the receiver's input with the sender's output replaced.

        The change of the sender's output is multiplied by the gains (the factors by which blocks multiply the residual
        stream) on the way to the receiver.
        """
        sender, blocks = self.senders[i], self.lm.structure.blocks
        added = self.added[i]
        point, layer = _read_by(self.lm, receiver), receiver.layer
        if layer != sender.layer:
            if sender.kind in ("z", "attn_out"):
                added = self._after_middle(added, sender.layer)
            added = _times(added, blocks[sender.layer].exit_gain)
            for between in blocks[sender.layer + 1 : layer]:
                for gain in (between.entry_gain, between.middle_gain, between.exit_gain):
                    added = _times(added, gain)
            if point == "resid_mid":
                added = _times(added, blocks[layer].entry_gain)
        if receiver.kind == "logits":
            point, layer = "resid_post", layer - 1
        own = self.target.activation(point, layer)
        return [Replacement(point, layer, None, None, own + added.to(own))]

    def rows(
        self, receivers: Sequence[tuple[int, End]]
    ) -> Iterator[tuple[int, Int[Tensor, " sender"], list[list[Replacement]]]]:
        """Yield the replacements that patch the paths into the receivers of one layer.

        For each receiver, yields its index, the indices of the senders that it reads, and for each of these the
        activations to replace.
        """
        heads: dict[str, list[tuple[int, End]]] = {}
        for j, receiver in receivers:
            if receiver.kind in PARTS:
                heads.setdefault(receiver.kind, []).append((j, receiver))
            elif which := self._reaching(receiver):
                yield j, torch.tensor(which), self._written(receiver, [self._changed(i, receiver) for i in which])
        for part, chosen in heads.items():
            first = chosen[0][1]  # one receiver is enough, as all heads of a layer read the same stream
            if which := self._reaching(first):
                z = self._heads(part, first.layer, [self._changed(i, first) for i in which])
                for j, one in chosen:
                    head = one.index
                    yield j, torch.tensor(which), [[Replacement("z", one.layer, None, head, of[:, head])] for of in z]

    def _reaching(self, receiver: End) -> list[int]:
        return [i for i, sender in enumerate(self.senders) if reaches(self.lm, sender, receiver)]

    def _written(self, receiver: End, read: list[list[Replacement]]) -> list[list[Replacement]]:
        """Return, for each input of `read`, the replacements to make in the patched run.

        They set the receiver's output to what it computes from this input. If the receiver is the logits, they set its
        input.
        """
        if receiver.kind == "logits":
            return read
        layer = receiver.layer
        points = [p for p in ("attn_out", "mlp_out") if receiver.kind in (p, "layer") and has_point(self.lm, p, layer)]
        new = {point: self.target.activations(read, point, layer, self.batch) for point in points}
        return [[Replacement(p, layer, None, None, new[p][n]) for p in points] for n in range(len(read))]

    def _heads(
        self, part: str, layer: int, read: Sequence[list[Replacement]]
    ) -> Float[Tensor, "sender pos head d_head"]:
        """Return each head's z if only one `part` (queries, keys or values) is computed from the changed stream.

        There are two rows for each sender. The first reads the changed stream. The second reads the unchanged stream,
        but this part is copied into it from the first row, before queries and keys are normalised or rotated.
        """
        target = self.target
        _ = self.lm.structure.blocks[layer].attention.layout  # raises an error if the layout is unknown

        def take_over(t: Tensor, _layer: int) -> Tensor:
            t = t.clone()
            t[1::2] = t[::2]
            return t

        same = [Replacement("resid_pre", layer, None, None, target.activation("resid_pre", layer))]
        rows = [row for changed in read for row in (changed, same)]
        size = max(2, (self.batch or TOKENS_AT_ONCE // target.n_pos) // 2 * 2)
        return target.activations(rows, "z", layer, size, {(part, layer): take_over})[1::2]


def _times(t: Float[Tensor, "pos d_model"], gain: float | Tensor) -> Float[Tensor, "pos d_model"]:
    return t * gain.to(t) if isinstance(gain, Tensor) else t if gain == 1.0 else t * gain


def _compositions(
    lm: Decoder, senders: Sequence[End], receivers: Sequence[End]
) -> tuple[Float[Tensor, "sender receiver"], str]:
    """Return the composition score of each pair of heads, with its basis, or the reason why there is none."""
    found = torch.full((len(senders), len(receivers)), float("nan"), dtype=torch.float64)
    heads = [(i, s) for i, s in enumerate(senders) if s.kind == "z"]
    readings = [(j, r) for j, r in enumerate(receivers) if r.kind in PARTS]
    if not heads or not readings:
        return found, ""
    basis = default_basis(lm)

    @cache
    def scores(writing: int, reading: int, part: str) -> Float[Tensor, "head head_reading"]:
        """Return the composition scores of the heads of two layers; `Paths.composition` gives the formula."""
        return ratios_of(writers(lm, [writing], basis), [readers(lm, [reading], part, basis)])[0].cpu()

    refused: UnembedError | None = None
    for j, r in readings:
        for i, s in heads:
            if s.layer >= r.layer:
                continue
            try:
                found[i, j] = scores(s.layer, r.layer, r.kind)[s.index, r.index]
            except UnembedError as error:
                refused = refused or error
    if refused is None:
        return found, f"{basis} weights"
    if bool(found.isnan().all()):
        return found, f"none: {refused}"
    return found, f"{basis} weights; not of every pair: {refused}"
