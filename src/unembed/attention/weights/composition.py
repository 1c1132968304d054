"""How strongly an earlier head's output is read by a later head: Q-, K- and V-composition of all pairs.

A writer is the earlier head, a reader the later one. Since ||A B||_F^2 = <A'A, BB'>, all pairs follow from inner
products of the writers' with the readers' Gram matrices. These are symmetric, formed a few rows at a time, and never
stored.

Source: Elhage et al. 2021, "Two-layer attention-only transformers", composition scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Annotated, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from unembed.attention.weights.composed_weights import require_ov
from unembed.attention.weights.folded_weights import check_basis, reading_weights, require_heads, writing_weights
from unembed.attention.weights.missing_circuits import missing_circuits, not_available
from unembed.attention.weights.paper import NO_NUMBERS, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Section
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis, Mode, head_name
from unembed.options import CircuitBasis, Option, Seed, Top
from unembed.results import Provenance, Records, format_spread
from unembed.validation import valid_seed

MODES = get_args(Mode)
_BYTES = 32 << 20
"""Largest number of bytes for the Gram rows of the writers, or of the readers."""
_HEADS = 256
"""Number of writers, and of readers, that are processed at once. This is enough for full speed, and few enough for the
factors to fit in memory in models of 8 billion parameters."""
_TOGETHER = 48
"""Number of readers compared in one matrix product."""


@dataclass(frozen=True, eq=False)
class Gram:
    """The Gram matrices outer @ middle @ outer' of many heads, stored as the factors outer and outer @ middle."""

    outer: Float[Tensor, "head d_model d_head"]
    weighted: Float[Tensor, "head d_model d_head"]
    """outer @ middle."""

    @classmethod
    def of(cls, outer: Float[Tensor, "head d_model d_head"], inner: Float[Tensor, "head m d_head"]) -> Gram:
        """Return the Gram matrices of the products outer @ inner', which are outer (inner' inner) outer'."""
        return cls(outer, outer @ (inner.mT @ inner))

    def norms(self) -> Float[Tensor, " head"]:
        """Return ||outer @ inner'||_F of each head, as the square root of the Gram matrix's trace."""
        return (self.outer * self.weighted).sum(dim=(1, 2), dtype=torch.float64).clamp_min(0).sqrt()

    def block(self, rows: slice, columns: slice) -> Float[Tensor, "head entry"]:
        """Return a block of every Gram matrix, flattened to one row per head."""
        return (self.weighted[:, rows] @ self.outer[:, columns].mT).flatten(1)


def ratios_of(
    a: Gram, others: Sequence[Gram], earlier: Sequence[tuple[int, int]] | None = None
) -> list[Float[Tensor, "head_a head_b"]]:
    """Return ||W_OV_a W_b||_F / (||W_OV_a|| ||W_b||) in float64 for all writers a and the readers b of each group.

    The square of the numerator is the inner product <G_a, G_b> of the Gram matrices. Only upper triangles are computed,
    since the matrices are symmetric.

    Args:
        a: Gram matrices of the writers.
        others: Gram matrices of the readers, in groups that all have the same number of heads.
        earlier: which pairs to compare; all when None. Each item (end_b, end_a) stands for a range of consecutive
            readers that ends before reader end_b; these are compared with the first end_a writers.

    Memory: the rows of one block, at most `_BYTES` for each group.
    """
    n_a, d_model = a.outer.shape[:2]
    n_b = len(others[0].outer)
    step = int(min(64, max(1, _BYTES // (max(n_a, n_b) * d_model * a.outer.element_size()))))
    totals = [torch.zeros(n_a, n_b, dtype=torch.float64, device=a.outer.device) for _ in others]
    for start in range(0, d_model, step):
        rows, right = slice(start, start + step), slice(start + step, d_model)
        # The matrices are symmetric, so only the blocks on and above the diagonal are computed. A block above the
        # diagonal counts twice: for itself and for its mirror image below the diagonal.
        for columns, times in ((rows, 1), (right, 2)):
            if columns.start >= d_model:
                continue
            of_a = a.block(rows, columns)
            for total, b in zip(totals, others, strict=True):
                of_b, done = b.block(rows, columns), 0
                for upto, before in earlier or [(n_b, n_a)]:
                    total[:before, done:upto] += (of_a[:before] @ of_b[done:upto].mT) * times
                    done = upto
    norms, least = a.norms()[:, None], torch.finfo(torch.float64).tiny
    return [
        total.clamp_min(0).sqrt() / (norms * b.norms()).clamp_min(least)
        for b, total in zip(others, totals, strict=True)
    ]


def writers(lm: Decoder, layers: Sequence[int], basis: HeadBasis) -> Gram:
    """Return the Gram matrix W_OV' W_OV of the output of each head of some layers."""
    for layer in layers:
        require_ov(lm, layer, basis)
    return Gram.of(_stacked([writing_weights(lm, n, basis).mT for n in layers]), _reads(lm, layers, "v", basis))


def readers(lm: Decoder, layers: Sequence[int], mode: str, basis: HeadBasis) -> Gram:
    """Return Gram matrices of heads' inputs: W_QK W_QK' for queries, W_QK' W_QK for keys, W_OV W_OV' for values."""
    outer = _reads(lm, layers, mode, basis)
    if mode == "v":
        for layer in layers:
            require_ov(lm, layer, basis)
        return Gram.of(outer, _stacked([writing_weights(lm, n, basis).mT for n in layers]))
    return Gram.of(outer, _reads(lm, layers, "k" if mode == "q" else "q", basis))


def _reads(lm: Decoder, layers: Sequence[int], which: str, basis: HeadBasis) -> Tensor:
    return _stacked([reading_weights(lm, n, which, basis) for n in layers])


def _stacked(matrices: list[Tensor]) -> Float[Tensor, "head d_model d_head"]:
    """Stack the matrices of several layers, padded with zeros where a layer has fewer or narrower heads."""
    # Inner products of these matrices sum terms of opposite signs, which cancel, so half precision is too coarse.
    dtype = torch.promote_types(matrices[0].dtype, torch.float32)
    heads, width = (max(m.shape[axis] for m in matrices) for axis in (0, 2))
    filled = [pad(m.to(dtype), (0, width - m.shape[2], 0, 0, 0, heads - m.shape[0])) for m in matrices]
    return torch.cat(filled).contiguous()


@torch.no_grad()
def compositions(
    circuits: HeadMatrices, basis: HeadBasis = "raw", modes: Sequence[Mode] = MODES
) -> dict[str, Float[Tensor, "layer head layer_reading head_reading"]]:
    """Return ||W_OV_a W_b||_F / (||W_OV_a|| ||W_b||) for every head a and every head b of a later layer.

    0 where b's layer is not later; NaN where a layer has no attention or its heads lack a circuit (see
    `missing_circuits`).

    Args:
        modes: which input of b reads: "q" (W_b = W_QK), "k" (W_QK') or "v" (W_OV). Several modes at once are faster.

    Memory: factors of at most `_HEADS` heads a and b, and a block of Gram rows.

    Raises:
        InvalidInput: a mode does not exist.
        Unsupported: no layer has an OV circuit, or none has the circuit of the modes.
    """
    check_basis(basis)
    lm = circuits.lm
    require_heads(lm, "composition")
    for mode in modes:
        if mode not in MODES:
            raise InvalidInput(f"composition {mode!r}", why=f"it is not one of {', '.join(MODES)}")
    writing, by_readers = _composing(lm, modes, basis)
    if not writing or not any(by_readers):
        missing = missing_circuits(lm, basis)
        why = next(iter((missing.ov if not writing else missing.of(modes[0])).values()))
        raw_writing, by_raw_readers = _composing(lm, modes, "raw")
        raise Unsupported(
            f"composition in the {basis} basis of {lm.name}",
            why=why,
            instead="Use basis='raw'" if raw_writing and any(by_raw_readers) else "Use attributions by component",
        )
    found: dict[str, Tensor] = {}
    for reading, some in by_readers.items():
        found |= _between(lm, writing, reading, some, basis)
    return {mode: found[mode] for mode in modes}


def _composing(
    lm: Decoder, modes: Sequence[str], basis: HeadBasis
) -> tuple[list[int], dict[tuple[int, ...], list[str]]]:
    """Return the layers with an OV circuit, and the modes grouped by the layers that have the mode's circuit."""
    missing = missing_circuits(lm, basis)
    by_readers: dict[tuple[int, ...], list[str]] = {}
    for mode in modes:
        reading = tuple(n for n in lm.attention_layers if n not in missing.of(mode))
        by_readers.setdefault(reading, []).append(mode)
    return [n for n in lm.attention_layers if n not in missing.ov], by_readers


def _between(
    lm: Decoder, writing: Sequence[int], reading: Sequence[int], modes: Sequence[str], basis: HeadBasis
) -> dict[str, Float[Tensor, "layer head layer_reading head_reading"]]:
    """Return the compositions between layers that have the circuits, in tensors for the whole model."""
    number = {n: lm.structure.blocks[n].attention.n_heads for n in lm.attention_layers}
    heads = max(number.values())
    out = {mode: torch.full((lm.n_layers, heads, lm.n_layers, heads), nan, dtype=torch.float64) for mode in modes}
    at_once = max(1, _HEADS // heads)
    for first in range(0, len(reading), at_once):
        readers_of = reading[first : first + at_once]
        sides = [readers(lm, readers_of, mode, basis) for mode in modes]
        before = [n for n in writing if n < readers_of[-1]]
        for start in range(0, len(before), at_once):
            writers_of = before[start : start + at_once]
            a = writers(lm, writers_of, basis)
            ratios = ratios_of(a, sides, _earlier(readers_of, writers_of, heads))
            for mode, ratio in zip(modes, ratios, strict=True):
                block = ratio.view(len(writers_of), heads, len(readers_of), heads).cpu()
                for i, writer in enumerate(writers_of):
                    for j, reader in enumerate(readers_of):
                        out[mode][writer, :, reader] = block[i, :, j]
    for of_mode in out.values():
        for writer in writing:
            for reader in reading:
                if reader <= writer:
                    of_mode[writer, :, reader] = 0.0
                of_mode[writer, number[writer] :, reader] = nan
                of_mode[writer, :, reader, number[reader] :] = nan
    return out


def _earlier(reading: Sequence[int], writing: Sequence[int], heads: int) -> list[tuple[int, int]]:
    """Return, for each group of readers, its end and the number of writers to compare it with (see `ratios_of`).

    A reader is compared only with writers of earlier layers. A group has several layers, because small matrix products
    are slow.
    """
    together = max(1, _TOGETHER // heads)
    stretches = []
    for i in range(0, len(reading), together):
        last = min(i + together, len(reading)) - 1
        stretches.append(((last + 1) * heads, sum(n < reading[last] for n in writing) * heads))
    return stretches


@torch.no_grad()
def composition(
    circuits: HeadMatrices, mode: Mode, baseline: bool = False, basis: HeadBasis = "raw", *, seed: int = 0
) -> Float[Tensor, "layer head layer_reading head_reading"]:
    """Return one mode of `compositions`: every earlier head (first two axes) with every later head.

    Args:
        mode: "q", "k" or "v".
        baseline: subtract the mean ratio that was measured for random Gaussian circuits of the same shapes.

    Raises:
        Unsupported: no layer has an OV circuit, or none has the circuit of the mode.
    """
    ratios = compositions(circuits, basis, (mode,))[mode]
    return torch.where(ratios > 0, ratios - random_composition(circuits, seed), ratios) if baseline else ratios


@torch.no_grad()
def random_baseline(lm: Decoder, seed: int = 0) -> tuple[float, float]:
    """Return the mean and standard deviation of the ratio for independent Gaussian circuits of the same shapes.

    They are measured on all pairs of 64 writers and 64 readers, and cached for the model and seed. They are the same
    for Q, K and V, whose circuits are all products of two factors (d_model, d_head).
    """
    seed = valid_seed(seed)

    def measured() -> tuple[float, float]:
        generator = torch.Generator().manual_seed(seed)
        a_out, a_in, b_out, b_in = (torch.randn(64, lm.d_model, lm.d_head, generator=generator) for _ in range(4))
        (ratio,) = ratios_of(Gram.of(a_out, a_in), [Gram.of(b_out, b_in)])
        return float(ratio.mean()), float(ratio.std())

    return lm.once(("random composition", seed), measured)


def random_composition(circuits: HeadMatrices, seed: int = 0) -> float:
    """Return the mean composition of independent Gaussian circuits of the model's shapes, measured."""
    return random_baseline(circuits.lm, seed)[0]


@dataclass(frozen=True)
class ComposingHead:
    """A head that composes with another: one of the two reads the output of the other."""

    mode: str
    """"q", "k" or "v": which input of the later head reads the earlier head's output."""
    relation: str
    """"reads" if this is the earlier head, whose output is read; "is read by" if it is the later head."""
    layer: int
    head: int
    composition: float


def partners(
    circuits: HeadMatrices, layer: int, head: int, basis: HeadBasis = "raw", *, baseline: bool = False, seed: int = 0
) -> Records[ComposingHead]:
    """List every earlier head that a head reads and every later one that reads it, strongest composition first."""
    lm, (layer, head) = circuits.lm, circuits.resolve_head(layer, head, basis)
    chance = random_composition(circuits, seed) if baseline else 0.0
    found = []
    for mode, ratios in compositions(circuits, basis).items():
        for other in lm.attention_layers:
            if other == layer:
                continue
            relation = "reads" if other < layer else "is read by"
            row = ratios[other, :, layer, head] if other < layer else ratios[layer, head, other]
            known = [(h, float(v)) for h, v in enumerate(row) if not v.isnan()]
            found += [ComposingHead(mode, relation, other, h, value - chance) for h, value in known]
    found.sort(key=lambda partner: -partner.composition)
    provenance = lm.provenance(basis=basis, seed=seed if baseline else None)
    return Records.of_fields(f"Heads that compose with {head_name(layer, head)}", ComposingHead, found, provenance)


def composition_section(
    circuits: HeadMatrices, modes: Sequence[Mode], top: int, basis: HeadBasis, seed: int, provenance: Provenance
) -> Section:
    """Show the pairs of heads that compose most, compared with random circuits, and all pairs in one table."""
    lm = circuits.lm
    chance, deviation = random_baseline(lm, seed)
    exhibits, figures = [], []
    heads = lm.n_heads
    names = {"q": "Q-composition", "k": "K-composition", "v": "V-composition"}
    missing = missing_circuits(lm, basis)
    absent: list[str] = []
    refused: list[Unsupported] = []
    for mode in modes:
        absent += not_available(names[mode], {**missing.ov, **missing.of(mode)}, lm)
        try:
            found = composition(circuits, mode, basis=basis).nan_to_num(0.0)  # only pairs above 0 are listed
        except Unsupported as error:
            refused.append(error)
            continue
        best = found.flatten().topk(min(top, int((found > 0).sum())))
        places = torch.stack(torch.unravel_index(best.indices, found.shape), dim=1).tolist()
        columns = {
            "writer": [head_name(a, h) for a, h, _, _ in places],
            "reader": [head_name(b, k) for _, _, b, k in places],
            "ratio": best.values.tolist(),
            "above_random": (best.values - chance).tolist(),
            "z": ((best.values - chance) / deviation).tolist(),
        }
        control = f"random circuits: {format_spread(float(chance), float(deviation))}"
        title = f"{names[mode]}: the strongest of {int((found > 0).sum()):,} pairs ({control})"
        exhibits.append(exhibit(f"{mode}_composition", title, columns, provenance, apart=(("z",),)))
        if lm.n_layers == len(lm.attention_layers) == 2:
            pairs = {
                "writer": [h for h in range(heads) for _ in range(heads)],
                "reader": [k for _ in range(heads) for k in range(heads)],
                "above_random": (found[0, :, 1] - chance).flatten().tolist(),
            }
            table = f"{mode}_composition_pairs"
            exhibits.append(exhibit(table, f"{names[mode]} of every pair", pairs, provenance, folded=True))
            axes = {"rows": "writer", "x_label": "head of layer 1", "y_label": "head of layer 0"}
            name, drawn = f"{mode}_composition", f"{names[mode]} above random"
            shown = {"table": table, "published": NO_NUMBERS, **axes}
            figures.append(drawing("heat", name, drawn, "reader", "above_random", **shown))
    if len(refused) == len(modes):
        raise refused[0]
    if others := [str(n) for n in range(lm.n_layers) if n not in lm.attention_layers]:
        absent.append(f"Layers without attention have no heads that compose: {', '.join(others)}.")
    # All three pictures use the same colour scale, so that their colours can be compared.
    most = max((abs(v) for e in exhibits if e.folded for v in e.table.columns["above_random"]), default=0.0)
    figures = [replace(figure, y_range=(-most, most)) for figure in figures] if most else figures
    text = (
        "How strongly a later head (the reader) reads the output of an earlier head (the writer) through its queries "
        "(Q), keys (K) or values (V). The ratio is the Frobenius norm of the product of both circuits, divided by the "
        "product of their norms. Above random: minus the mean that was measured for random Gaussian circuits of the "
        "same shapes. z: this difference in standard deviations of the random circuits.",
        *dict.fromkeys(absent),
    )
    return Section("Composition", text, tuple(exhibits), tuple(figures))


def composition_answer(
    circuits: HeadMatrices,
    *,
    kind: Annotated[
        Literal["q", "k", "v", "all"],
        Option("Input of the later head that reads the earlier head's output: queries, keys, values, or all three."),
    ] = "all",
    basis: CircuitBasis = None,
    top: Top = 20,
    seed: Seed = 0,
) -> Answer:
    """List the pairs of heads in which the later one reads most of what the earlier one writes.

    Caution: The scores compare weights. Two heads with a high score may never act together on text; `paths` measures
    whether they do.
    """
    chosen = circuits.known_basis(basis)
    provenance = circuits.lm.provenance(basis=chosen, seed=seed)
    modes: tuple[Mode, ...] = MODES if kind == "all" else (kind,)
    made = composition_section(circuits, modes, top, chosen, seed, provenance)
    return Answer(f"Composition in {circuits.lm.name}", (made,), provenance)


ANALYSIS = of_circuits("composition", composition_answer, "composition --kind k")
