"""Path patching: the prediction when one writer is replaced for one reader only.

What the sender adds to the stream is taken from the other run, and the difference is carried to the receiver alone:
every other head, FFN and norm below it works on the run's own numbers. The receiver is recomputed from what it then
reads, with the model's own modules, and everything after it runs on.

Source: Wang et al. 2022, "Interpretability in the wild", section 3.1 (path patching); Goldowsky-Dill et al. 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.weights.composition import inner_products, readers, writers
from unembed.attention.weights.folded_weights import default_basis
from unembed.causality.metrics import Metric, MetricFunction, bound
from unembed.causality.patching import Alignment, Direction, GaussianNoise, patched_pair, taken_from
from unembed.causality.path_ends import PARTS, Receiver, Sender, reaches, receivers_of, senders_of
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import TOKENS_AT_ONCE, Rerun
from unembed.errors import InvalidInput, UnembedError, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis
from unembed.results import Displayed, Provenance, Table
from unembed.stream.capture_points import has_point, require_point
from unembed.stream.decomposition import require_unnormalised_stream
from unembed.stream.interventions import Edits, as_edits
from unembed.stream.run import Tokens


@dataclass(frozen=True, eq=False, repr=False)
class Paths(Displayed):
    """The metric when a sender is replaced for a receiver alone.

    Attributes:
        senders: what writes, such as "L0H3".
        receivers: what reads, such as "L1H4.k".
        values: the metric of the patched run; NaN where the receiver does not come after the sender.
        composition: for two heads, ||W_OV_a W_b||_F / (||W_OV_a|| ||W_b||); NaN for other pairs.
        clean: the metric of the clean run.
        corrupted: the metric of the corrupted run.
        direction: "denoising" takes the sender from the clean run into the corrupted one, "noising" the reverse.
        alignment: how the prompts were aligned, in words.
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
        """The fraction of the way from the patched run's metric to the other run's: 0 no effect, 1 all of it."""
        start, end = (self.corrupted, self.clean) if self.direction == "denoising" else (self.clean, self.corrupted)
        return (self.values - start) / (end - start)

    def to_table(self) -> Table:
        """One row for each path, the largest effect first."""
        recovered = self.recovered.flatten()
        order = [i for i in recovered.nan_to_num(0).abs().argsort(descending=True).tolist() if recovered[i].isfinite()]
        composition = self.composition.flatten()
        n = len(self.receivers)
        columns: dict[str, list[Any]] = {
            "sender": [self.senders[i // n] for i in order],
            "receiver": [self.receivers[i % n] for i in order],
            "metric": [float(self.values.flatten()[i]) for i in order],
            "recovered": [float(recovered[i]) for i in order],
        }
        if bool(composition.isfinite().any()):
            columns["composition"] = [float(composition[i]) if composition[i].isfinite() else None for i in order]
        title = (
            f"Path patching ({self.direction}): {self.metric}, clean {self.clean:+.4g}, corrupted {self.corrupted:+.4g}"
        )
        return Table(title, columns, self.provenance)


@torch.no_grad()
def patch_paths(
    lm: Decoder,
    clean: Tokens,
    corrupted: Tokens | GaussianNoise,
    senders: str | Sequence[str] = "heads",
    receivers: str | Sequence[str] = "heads",
    metric: Metric | MetricFunction | None = None,
    *,
    positions: Sequence[int] | None = None,
    alignment: Alignment | None = None,
    direction: Direction = "denoising",
    edits: Edits = (),
    batch: int | None = None,
) -> Paths:
    """Replace each sender for each receiver alone, and measure the prediction after the last token.

    Args:
        clean: the prompt with the behaviour.
        corrupted: the prompt without it, or `GaussianNoise` on the clean prompt's embeddings.
        senders: "L0H3" (a head), "L5M278" (a memory), "attn_out 2", "mlp_out 2", "layer 2"; "heads" for all heads.
        receivers: "L1H4.q", "L1H4.k", "L1H4.v", "L1H4" (the three), "attn_out 2", "mlp_out 2", "layer 2", "logits";
            "heads" for queries, keys and values of all heads.
        metric: of the logits after the last token; by default as in `patch`.
        positions: positions of the patched run at which the sender is replaced; all corresponding ones if not given.
        alignment: pairs (position in clean, position in corrupted), or "auto"; needed where lengths differ.
        direction: "denoising": the sender's clean activation into the corrupted run; "noising": the reverse.
        edits: changes that hold in all runs.
        batch: rows in memory at once.

    Raises:
        InvalidInput: no receiver comes after a sender, prompts without an alignment, or a metric that does not differ.
        OutOfRange: no such layer, head or memory.
        Unsupported: the receiver's queries, keys and values could not be found in this model, or its stream is not
            only added to and rescaled.

    Cost: for each layer with receivers, one pass of that layer for each sender, then one pass of the layers above for
    each path: all pairs of heads of a model with L layers of H heads take 3 L (L - 1) H^2 / 2 rows.

    Memory: what each sender adds, the activations of one layer of receivers for all senders, and one batch of rows.

    Source: Wang et al. 2022, section 3.1.
    """
    require_unnormalised_stream(lm, "path patching")
    if any(e.target == "stream" and e.action != "add" for e in as_edits(edits)):
        raise Unsupported("path patching with a replaced stream", why="the edit ends every path that crosses it")
    from_, to = senders_of(lm, senders), receivers_of(lm, receivers)
    if not any(reaches(lm, s, r) for s in from_ for r in to):
        raise InvalidInput("these paths", why="no receiver reads the stream after a sender has written to it")
    for end in (*from_, *to):
        if end.kind in ("attn_out", "mlp_out"):
            require_point(lm, end.kind, end.layer)
    points = {point for s in from_ for point in s.points if has_point(lm, point, s.layer)}
    if any(r.kind == "mlp_out" and lm.structure.blocks[r.layer].is_sequential for r in to):
        points.add("resid_mid")
    if any(r.kind == "logits" for r in to):
        points.add("resid_post")
    pair = patched_pair(lm, clean, corrupted, sorted(points), alignment, direction, positions, edits)
    function, label = bound(lm, metric, pair.clean.reference, pair.corrupted.reference)
    ends = pair.ends(function, label)
    paths = _Paths(lm, pair.source, pair.target, pair.pairs, from_, batch)
    values = torch.full((len(from_), len(to)), float("nan"), dtype=torch.float64)
    for layer in sorted({r.layer for r in to}):
        for j, row, rows in paths.rows([(j, r) for j, r in enumerate(to) if r.layer == layer]):
            values[row, j] = pair.target.measured(rows, function, batch)
    composition, basis = _compositions(lm, from_, to)
    return Paths(
        label,
        tuple(map(str, from_)),
        tuple(map(str, to)),
        values,
        composition,
        *ends,
        direction,
        pair.alignment,
        lm.provenance(
            seed=corrupted.seed if isinstance(corrupted, GaussianNoise) else None,
            notes={"alignment": pair.alignment} | ({"composition": basis} if basis else {}),
        ),
    )


class _Paths:
    """What the receivers of one run compute when a sender is replaced for them alone."""

    def __init__(
        self,
        lm: Decoder,
        source: Rerun,
        target: Rerun,
        pairs: Sequence[tuple[int, int]],
        senders: Sequence[Sender],
        batch: int | None,
    ) -> None:
        """Compute how much more each sender adds to the stream than in the patched run."""
        self.lm, self.target, self.senders, self.batch = lm, target, senders, batch
        self.added: list[Float[Tensor, "pos d_model"]] = [self._added(s, source, pairs) for s in senders]

    def _added(self, sender: Sender, source: Rerun, pairs: Sequence[tuple[int, int]]) -> Float[Tensor, "pos d_model"]:
        """What the sender adds at its layer, from the other run minus its own.

        A second row replaces the sender's activation with itself, so that an unchanged sender adds exactly nothing.
        """
        if sender.index is not None:
            (point,) = sender.points
            rows = [[taken_from(*one, sender.index)] for one in self._two(source, point, sender.layer, pairs)]
            there, here = self.target.activations(rows, "attn_out" if point == "z" else "mlp_out", sender.layer)
            return there - here
        total = torch.zeros_like(self.target.activation("resid_pre", sender.layer))
        for point in sender.points:
            if not has_point(self.lm, point, sender.layer):
                continue  # a layer without a mixer or without an FFN
            difference = torch.zeros_like(total)
            there, here = (taken_from(*one) for one in self._two(source, point, sender.layer, pairs))
            difference[there.positions] = there.value - here.value
            if sender.kind == "layer" and point == "attn_out":
                difference = self._after_middle(difference, sender.layer)
            total = total + difference
        return total

    def _two(
        self, source: Rerun, point: str, layer: int, pairs: Sequence[tuple[int, int]]
    ) -> list[tuple[Rerun, str, int, Sequence[tuple[int, int]]]]:
        """An activation of the other run, and the patched run's own at the same positions."""
        return [(source, point, layer, pairs), (self.target, point, layer, [(c, c) for _, c in pairs])]

    def _after_middle(self, added: Tensor, layer: int) -> Tensor:
        """What a mixer added, through the gain between it and the FFN."""
        block = self.lm.structure.blocks[layer]
        return _times(added, block.middle_gain) if block.is_sequential else added

    def _carried(self, i: int, receiver: Receiver) -> Float[Tensor, "pos d_model"]:
        """What a sender added, as a receiver reads it: through the gains between them."""
        sender, blocks = self.senders[i], self.lm.structure.blocks
        added, block = self.added[i], blocks[sender.layer]
        if receiver.layer == sender.layer:
            return added
        if sender.kind in ("z", "attn_out"):
            added = self._after_middle(added, sender.layer)
        added = _times(added, block.exit_gain)
        for between in blocks[sender.layer + 1 : receiver.layer]:
            for gain in (between.entry_gain, between.middle_gain, between.exit_gain):
                added = _times(added, gain)
        if receiver.kind == "mlp_out" and blocks[receiver.layer].is_sequential:
            added = _times(added, blocks[receiver.layer].entry_gain)
        return added

    def rows(
        self, receivers: Sequence[tuple[int, Receiver]]
    ) -> Iterator[tuple[int, Int[Tensor, " sender"], list[list[Replacement]]]]:
        """For each receiver of one layer: its number, the senders that reach it, and what each path replaces."""
        lm, target = self.lm, self.target
        heads: dict[str, list[tuple[int, Receiver]]] = {}
        for j, receiver in receivers:
            which = [i for i, s in enumerate(self.senders) if reaches(lm, s, receiver)]
            if not which:
                continue
            if receiver.kind in PARTS:
                heads.setdefault(receiver.kind, []).append((j, receiver))
                continue
            layer = receiver.layer
            if receiver.kind == "logits":
                last = lm.n_layers - 1
                own = target.activation("resid_post", last)
                rows = [
                    [Replacement("resid_post", last, None, None, own + self._carried(i, receiver).to(own))]
                    for i in which
                ]
                yield j, torch.tensor(which), rows
                continue
            points = [p for p in ("attn_out", "mlp_out") if receiver.kind in (p, "layer") and has_point(lm, p, layer)]
            read = [self._read(i, receiver) for i in which]
            new = {point: target.activations(read, point, layer, self.batch) for point in points}
            yield (
                j,
                torch.tensor(which),
                [[Replacement(p, layer, None, None, new[p][n]) for p in points] for n in range(len(which))],
            )
        for part, chosen in heads.items():
            layer = chosen[0][1].layer
            which = [i for i, s in enumerate(self.senders) if reaches(lm, s, chosen[0][1])]
            z = self._heads(part, layer, [self._carried(i, chosen[0][1]) for i in which])
            for j, receiver in chosen:
                head = receiver.index
                yield (
                    j,
                    torch.tensor(which),
                    [[Replacement("z", layer, None, head, one[:, head])] for one in z],
                )

    def _read(self, i: int, receiver: Receiver) -> list[Replacement]:
        """What a component reads when a sender's part of the stream is replaced."""
        added = self._carried(i, receiver)
        if receiver.kind == "mlp_out" and self.lm.structure.blocks[receiver.layer].is_sequential:
            own = self.target.activation("resid_mid", receiver.layer)
            return [Replacement("resid_mid", receiver.layer, None, None, own + added.to(own))]
        own = self.target.activation("resid_pre", receiver.layer)
        return [Replacement("resid_pre", receiver.layer, None, None, own + added.to(own))]

    def _heads(
        self, part: str, layer: int, added: Sequence[Float[Tensor, "pos d_model"]]
    ) -> Float[Tensor, "sender pos head d_head"]:
        """Each head's z when its queries, keys or values alone are computed from the changed stream.

        Two rows for each sender: one reads the changed stream, the other takes the chosen part of what its projection
        returns, before any norm or rotation of queries and keys.
        """
        lm, target = self.lm, self.target
        _ = lm.structure.blocks[layer].attention.layout  # refuses with the reason where there is none
        own = target.activation("resid_pre", layer)

        def take_over(t: Tensor, _layer: int) -> Tensor:
            t = t.clone()
            t[1::2] = t[::2]
            return t

        same = [Replacement("resid_pre", layer, None, None, own)]
        rows = [row for a in added for row in ([Replacement("resid_pre", layer, None, None, own + a.to(own))], same)]
        size = max(2, (self.batch or TOKENS_AT_ONCE // target.n_pos) // 2 * 2)
        return target.activations(rows, "z", layer, size, {(part, layer): take_over})[1::2]


def _times(t: Float[Tensor, "pos d_model"], gain: float | Tensor) -> Float[Tensor, "pos d_model"]:
    return t * gain.to(t) if isinstance(gain, Tensor) else t if gain == 1.0 else t * gain


def _compositions(
    lm: Decoder, senders: Sequence[Sender], receivers: Sequence[Receiver]
) -> tuple[Float[Tensor, "sender receiver"], str]:
    """The composition score of each pair of heads, and the basis it is in, or the reason why there is none."""
    found = torch.full((len(senders), len(receivers)), float("nan"), dtype=torch.float64)
    heads = [(i, s) for i, s in enumerate(senders) if s.kind == "z"]
    readings = [(j, r) for j, r in enumerate(receivers) if r.kind in PARTS]
    if not heads or not readings:
        return found, ""
    basis = default_basis(lm)
    scores = _Compositions(lm, basis)
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


class _Compositions:
    """Composition scores of the heads of two layers, each computed once."""

    def __init__(self, lm: Decoder, basis: HeadBasis) -> None:
        self.lm = lm
        self.basis: HeadBasis = basis
        self._known: dict[tuple[int, int, str], Tensor] = {}

    def __call__(self, writing: int, reading: int, part: str) -> Float[Tensor, "head head_reading"]:
        """||W_OV_a W_b||_F / (||W_OV_a|| ||W_b||)."""
        key = (writing, reading, part)
        if key not in self._known:
            a = writers(self.lm, [writing], self.basis)
            b = readers(self.lm, [reading], part, self.basis)
            norms = a.norms()[:, None] * b.norms()
            squares = inner_products(a, [b])[0].clamp_min(0)
            self._known[key] = (squares.sqrt() / norms.clamp_min(torch.finfo(torch.float64).tiny)).cpu()
        return self._known[key]
