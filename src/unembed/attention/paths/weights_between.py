"""Virtual weights between two heads or memories: how strongly the later one (reader) reads what the earlier one writes.

The output weights of the writer times the input weights of the reader are weights between the two, through the residual
stream: W_O W_Q for two heads, v W_V for a memory and a head, W_O k for a head and a memory, v k for two memories (v is
a value vector, k a key vector). The measure is the Frobenius norm of this product over the product of the two norms;
random directions have 1 / sqrt(d_model). If every norm in the model subtracts the mean over channels, that mean is
first subtracted from what is written, unless `centre` is False.

Source: Elhage et al. 2021, "Virtual weights and the residual stream as a communication channel".
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.paths.geometry import NO_MATRICES, keys_of, up_projection_of, values_of
from unembed.attention.weights.folded_weights import (
    at_least_float32,
    check_basis,
    reading_weights,
    without_channel_mean,
    writing_weights,
)
from unembed.attention.weights.paper import of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.exhibits import exhibit
from unembed.document.model import Answer, Section
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.structure.mixer_names import site_name
from unembed.models.structure.structure import AttentionSite
from unembed.names import HeadBasis, head_name, head_named, memory_name, parse_memory
from unembed.options import CircuitBasis, Option, Top
from unembed.results import Records, format_number
from unembed.validation import as_str, positive_int

Input = Literal["Q", "K", "V", "key", "up"]
_OF_HEADS: dict[Input, str] = {"Q": "q", "K": "k", "V": "v"}


@dataclass(frozen=True)
class Part:
    """A head or a memory (FFN neuron)."""

    kind: Literal["head", "memory"]
    layer: int
    index: int

    @classmethod
    def named(cls, lm: Decoder, name: str) -> Part:
        """Return the head or memory with a name such as L0H3 or L5M278.

        Raises:
            InvalidInput: the name is not that of a head or memory.
            OutOfRange: the model has no such head or memory.
        """
        if head := head_named(as_str("part", name)):
            return cls("head", *lm.layer_and_head(*head))
        if memory := parse_memory(name):
            return cls("memory", *lm.memory(*memory))
        raise InvalidInput(f"part {name!r:.40}", why="a head is written L0H3, a memory L5M278")

    @property
    def name(self) -> str:
        """The name, such as L0H3 or L5M278."""
        return (head_name if self.kind == "head" else memory_name)(self.layer, self.index)

    def location(self, lm: Decoder) -> int:
        """The position in the order of the forward pass, counted in half layers.

        The attention of layer l is at 2 l, its FFN at 2 l + 1 (2 l where both run in parallel).
        """
        in_parallel = lm.structure.blocks[self.layer].parallel
        return 2 * self.layer + (0 if self.kind == "head" or in_parallel else 1)


@dataclass(frozen=True)
class VirtualWeight:
    """How strongly one head or memory (the reader) reads what an earlier one (the writer) adds to the stream.

    Attributes:
        input: the reader's input: "Q", "K" or "V" of a head; "key" of a memory (in a gated layer, its column of W_gate)
            or, in a gated layer, "up" (its column of W_in).
        ratio: ||W_out W_in||_F / (||W_out|| ||W_in||).
        cosine: the cosine of value and key vector between two memories; None if one of the two is a head.
    """

    writer: str
    reader: str
    input: Input
    ratio: float
    cosine: float | None = None


@dataclass(frozen=True)
class FoundWeights:
    """The virtual weights of one head or memory, unsorted, and the reasons why some inputs or layers have none."""

    weights: list[VirtualWeight]
    missing: dict[str, str]
    """For each input, mixer or FFN without a fixed matrix, by its name (such as "K 0", "mixer (Mamba) 2"): the
    reason."""


def written_by(lm: Decoder, part: Part, basis: HeadBasis, centre: bool = True) -> Float[Tensor, "row d_model"]:
    """Return what a head or memory writes to the stream: W_O of a head, the value vector of a memory."""
    if part.kind == "head":
        rows = writing_weights(lm, part.layer, basis)[part.index]
    else:
        rows = values_of(lm, part.layer, basis)[part.index][None]
    return _centred(lm, rows, centre)


def _centred(lm: Decoder, rows: Float[Tensor, "*any d_model"], centre: bool) -> Float[Tensor, "*any d_model"]:
    rows = at_least_float32(rows)
    return without_channel_mean(lm, rows) if centre else rows


def _inputs_of(
    lm: Decoder, part: Part, basis: HeadBasis
) -> tuple[dict[Input, Float[Tensor, "d_model column"]], dict[str, str]]:
    """Return the input matrices of a head (W_Q, W_K, W_V) or a memory (key, up-projection).

    The second result gives the reason for each input that has no fixed matrix.

    Raises:
        Unsupported: no input of the head is a fixed matrix.
    """
    if part.kind == "head":
        read, refused = _inputs_of_heads(lm, part.layer, basis)
        return {name: W[part.index] for name, W in read.items()}, refused
    found: dict[Input, Tensor] = {"key": at_least_float32(keys_of(lm, part.layer, basis)[:, part.index, None])}
    if (up := up_projection_of(lm, part.layer, basis)) is not None:
        found["up"] = at_least_float32(up[:, part.index, None])
    return found, {}


def _inputs_of_heads(
    lm: Decoder, layer: int, basis: HeadBasis
) -> tuple[dict[Input, Float[Tensor, "head d_model column"]], dict[str, str]]:
    """Return the input matrices of a layer's heads, and the reason for each input that has no fixed matrix."""
    found: dict[Input, Tensor] = {}
    refused: dict[str, Unsupported] = {}
    for name, which in _OF_HEADS.items():
        try:
            found[name] = at_least_float32(reading_weights(lm, layer, which, basis))
        except Unsupported as error:
            refused[f"{name} {layer}"] = error
    if not found:
        raise next(iter(refused.values()))
    return found, {name: error.why for name, error in refused.items()}


@torch.no_grad()
def virtual_weight(
    lm: Decoder, writer: str, reader: str, basis: HeadBasis = "raw", *, centre: bool = True
) -> dict[Input, Float[Tensor, "row column"]]:
    """Return the weights between two heads or memories, by input of the reader, of shape (d_head or 1, d_head or 1).

    Args:
        writer: name of the earlier head or memory, such as L0H3 or L5M278.
        reader: name of the head or memory that reads what the writer adds to the stream.
        centre: subtract the mean over channels from what is written, if the norm before every reader subtracts it.

    Raises:
        InvalidInput: a name is not that of a head or memory, or the reader does not come after the writer.
        OutOfRange: the model has no such head or memory.
    """
    check_basis(basis)
    a, b = Part.named(lm, writer), Part.named(lm, reader)
    if a.location(lm) >= b.location(lm):
        raise InvalidInput(f"virtual weights of {a.name} and {b.name}", why="the reader does not come after the writer")
    rows = written_by(lm, a, basis, centre)
    return {name: rows @ columns for name, columns in _inputs_of(lm, b, basis)[0].items()}


@torch.no_grad()
def readers_of(
    lm: Decoder, writer: str, top: int = 20, basis: HeadBasis = "raw", *, centre: bool = True
) -> Records[VirtualWeight]:
    """The heads and memories that read most of what one head or memory writes, strongest first.

    Args:
        writer: a name such as L0H3 or L5M278.
        centre: subtract the mean over channels from what is written, if the norm before every reader subtracts it.

    Returns:
        Only readers with fixed matrices; the note "missing" of the provenance names the others, with the reason.

    Raises:
        Unsupported: what the writer writes is not a fixed matrix.

    Memory: the reading weights of a layer.
    """
    part, top = Part.named(lm, writer), positive_int("top", top)
    found = readers_by_layer(lm, part, top, basis, centre)
    return _strongest_of(lm, f"What reads {part.name} most", found, top, basis)


def readers_by_layer(
    lm: Decoder,
    part: Part,
    top: int,
    basis: HeadBasis,
    centre: bool = True,
    *,
    inputs: Set[Input] = frozenset(get_args(Input)),
) -> FoundWeights:
    """Return the `top` heads and memories of every layer that read the output of `part` most, for each of `inputs`.

    The result is not sorted. The other arguments are those of `readers_of`.
    """
    check_basis(basis)
    rows, at = written_by(lm, part, basis, centre), part.location(lm)
    found: list[VirtualWeight] = []
    missing: dict[str, str] = {}
    for n, block in enumerate(lm.structure.blocks):
        if 2 * n > at and block.mixer is not None and not inputs.isdisjoint(_OF_HEADS):
            try:
                read, without = _inputs_of_heads(lm, n, basis)
            except Unsupported as error:
                read, without = {}, {f"{site_name(block.mixer)} {n}": _why(block.mixer, error)}
            missing |= without
            for name, W in read.items():
                if name not in inputs:
                    continue
                ratio = (rows @ W).norm(dim=(1, 2)) / (rows.norm() * W.norm(dim=(1, 2)))
                found += _strongest(part.name, partial(head_name, n), name, ratio, None, top)
        site = block.feed_forward
        if site is None or Part("memory", n, 0).location(lm) <= at:
            continue
        if not site.has_memories:
            missing[f"FFN {n}"] = site.memories_missing
            continue
        weights_of: dict[Input, Callable[..., Tensor | None]] = {"key": keys_of, "up": up_projection_of}
        for name, weights in weights_of.items():
            if name not in inputs:
                continue
            try:
                columns = weights(lm, n, basis)
            except Unsupported as error:
                missing[f"{name} {n}"] = error.why
                continue
            if columns is not None:
                product = rows @ at_least_float32(columns)  # (row, memory)
                sizes = rows.norm() * at_least_float32(columns).norm(dim=0)
                cosine = product[0] / sizes if part.kind == "memory" else None
                found += _strongest(part.name, partial(memory_name, n), name, product.norm(dim=0) / sizes, cosine, top)
    return FoundWeights(found, missing)


@torch.no_grad()
def writers_of(
    lm: Decoder, reader: str, top: int = 20, basis: HeadBasis = "raw", *, centre: bool = True
) -> Records[VirtualWeight]:
    """Return the heads and memories whose output one head or memory reads most; arguments as in `readers_of`."""
    part, top = Part.named(lm, reader), positive_int("top", top)
    found = writers_by_layer(lm, part, top, basis, centre)
    return _strongest_of(lm, f"What {part.name} reads most", found, top, basis)


def writers_by_layer(
    lm: Decoder,
    part: Part,
    top: int,
    basis: HeadBasis,
    centre: bool = True,
    *,
    inputs: Set[Input] = frozenset(get_args(Input)),
) -> FoundWeights:
    """Return, for each of `inputs`, the `top` heads and memories of every layer whose output `part` reads most."""
    check_basis(basis)
    at, found = part.location(lm), list[VirtualWeight]()
    read, missing = _inputs_of(lm, part, basis)
    read = {name: columns for name, columns in read.items() if name in inputs}
    for n, block in enumerate(lm.structure.blocks[: part.layer + 1]):
        if 2 * n < at and block.mixer is not None:
            try:
                W_O = _centred(lm, writing_weights(lm, n, basis), centre)
            except Unsupported as error:
                missing[f"{site_name(block.mixer)} {n}"] = _why(block.mixer, error)
            else:
                for name, columns in read.items():
                    ratio = (W_O @ columns).norm(dim=(1, 2)) / (W_O.norm(dim=(1, 2)) * columns.norm())
                    found += _strongest(partial(head_name, n), part.name, name, ratio, None, top)
        site = block.feed_forward
        if site is None or Part("memory", n, 0).location(lm) >= at:
            continue
        if not site.has_memories:
            missing[f"FFN {n}"] = site.memories_missing
            continue
        try:
            values = _centred(lm, values_of(lm, n, basis), centre)
        except Unsupported as error:
            missing[f"values {n}"] = error.why
            continue
        for name, columns in read.items():
            product = values @ columns  # (memory, column)
            sizes = values.norm(dim=1) * columns.norm()
            cosine = product[:, 0] / sizes if part.kind == "memory" else None
            found += _strongest(partial(memory_name, n), part.name, name, product.norm(dim=1) / sizes, cosine, top)
    return FoundWeights(found, missing)


def _why(mixer: AttentionSite, error: Unsupported) -> str:
    return error.why if mixer.is_attention else NO_MATRICES


def _strongest_of(lm: Decoder, title: str, found: FoundWeights, top: int, basis: HeadBasis) -> Records[VirtualWeight]:
    strongest = sorted(found.weights, key=lambda weight: -weight.ratio)[:top]
    provenance = lm.provenance(basis=basis, notes={"missing": found.missing} if found.missing else None)
    return Records.of_fields(title, VirtualWeight, strongest, provenance)


def _strongest(
    writer: str | Callable[[int], str],
    reader: str | Callable[[int], str],
    name: str,
    ratio: Float[Tensor, " part"],
    cosine: Float[Tensor, " part"] | None,
    top: int,
) -> list[VirtualWeight]:
    """Return the `top` pairs with the largest ratio.

    Of `writer` and `reader`, one is a name, the other a function that returns the name for an index of `ratio`.
    """
    best = ratio.topk(min(top, len(ratio)))
    rows = []
    for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        names = [end if isinstance(end, str) else end(i) for end in (writer, reader)]
        rows.append(VirtualWeight(names[0], names[1], name, value, None if cosine is None else float(cosine[i])))  # type: ignore[arg-type]
    return rows


def virtual_weights_answer(
    circuits: HeadMatrices,
    part: Annotated[str, Option("Name of a head or memory (FFN neuron), such as L0H3 or L5M278.")],
    *,
    basis: CircuitBasis = None,
    top: Top = 20,
) -> Answer:
    """List the heads and memories (FFN neurons) that read a head or memory most, and those that it reads most.

    The column "input" says what reads: Q, K or V of a head; the key of a memory (in a gated layer, its column of
    W_gate); or, in a gated layer, up (its column of W_in).

    Caution: Weights that fit do not prove use: a memory that is never active fits as well. `paths` and `circuit`
    measure on a prompt.
    """
    lm, chosen = circuits.lm, circuits.known_basis(basis)
    provenance, exhibits = lm.provenance(basis=chosen), []
    missing: dict[str, str] = {}
    refused: list[Unsupported] = []
    for name, side, weights_of in (("readers", "reader", readers_of), ("writers", "writer", writers_of)):
        try:
            found = weights_of(lm, part, top, chosen)
        except Unsupported as error:
            refused.append(error)
            missing[f"{name} of {part}"] = error.why
            continue
        missing |= found.provenance.notes.get("missing", {})
        columns = {
            side: [getattr(weight, side) for weight in found],
            "input": [weight.input for weight in found],
            "ratio": [weight.ratio for weight in found],
            "times_random": [weight.ratio * lm.d_model**0.5 for weight in found],
            "cosine": [weight.cosine for weight in found],
        }
        if found:
            exhibits.append(exhibit(name, found.table.title, columns, provenance))
    text = (
        "Ratio: the norm of the product of the writer's output weights and the reader's input weights, divided by the "
        f"product of their norms. For random directions it is {format_number(lm.d_model**-0.5)}. For two memories, "
        "also the cosine of the value vector and the key vector.",
    )
    if len(refused) == 2:
        raise refused[0]
    if missing:
        text = (*text, "Not compared: " + " ".join(f"{name}: {why}." for name, why in missing.items()))
    section = Section("Virtual weights", text, tuple(exhibits))
    return Answer(f"Virtual weights of {part} of {lm.name}", (section,), provenance)


ANALYSIS = of_circuits("virtual-weights", virtual_weights_answer, "virtual-weights L5M278 --model wren", model="wren")
