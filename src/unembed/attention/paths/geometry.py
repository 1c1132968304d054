"""Measure how heads and FFNs share the residual stream: what each writes and reads, and how many dimensions it uses.

Source: Elhage et al. 2021, "The residual stream as a communication channel", "virtual weights", "memory management".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.weights.composed_weights import PARTS, is_composed
from unembed.attention.weights.folded_weights import (
    at_least_float32,
    check_basis,
    embedding,
    reading_weights,
    unembedding,
    without_channel_mean,
    writing_weights,
)
from unembed.attention.weights.stream_gains import read_at_end, written_to_end
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.models.structure.mixer_names import site_name
from unembed.names import HeadBasis
from unembed.results import Displayed, Provenance, Table, format_number

NO_MATRICES = "it is neither attention nor an FFN, so it has no matrices of heads or memories"


@dataclass(frozen=True, eq=False)
class StreamPort:
    """The vectors that one matrix reads from the stream or writes to it, as a Gram matrix (d_model, d_model).

    `location` counts half layers: the embedding is at -1, attention of layer l at 2 l, its FFN at 2 l + 1 (2 l where
    both run in parallel), the unembedding last. A reader receives the output of every earlier location.
    """

    label: str
    location: int
    gram: Float[Tensor, "d_model d_model"]


@dataclass(frozen=True, eq=False)
class StreamPorts:
    """All writers and readers of a model that are fixed matrices: what adds to the residual stream, and what reads it.

    Attributes:
        missing: by name of a writer or reader (such as "K 0", "mixer (Mamba) 2"), why it has no matrix here.
    """

    writers: list[StreamPort]
    readers: list[StreamPort]
    missing: dict[str, str]


@torch.no_grad()
def writers_and_readers(lm: Decoder, basis: HeadBasis = "raw", *, centre: bool = True) -> StreamPorts:
    """Collect all writers (OV outputs, FFN values) and readers (Q, K, V, FFN keys) of a model.

    A gated FFN reads twice, with its keys (gate) and its up-projection. A folded key of latent attention reads twice as
    well, with its content part and its rotary part, because no fixed matrix gives both.

    Args:
        centre: subtract what changes no probability (see `folded_weights`): the mean over channels from what writers
            add, and the mean column from the unembedding.

    Memory: one (d_model, d_model) matrix for each writer and reader.
    """
    check_basis(basis)
    ports = StreamPorts([StreamPort("embedding", -1, _written(lm, embedding(lm, basis), centre))], [], {})
    for n, block in enumerate(lm.structure.blocks):
        others = [w.label for w in (*block.early_writers, *block.late_writers)]
        if block.mixer is not None and block.mixer.is_attention:
            _add_attention(lm, n, basis, centre, ports)
        elif block.mixer is not None:
            others.insert(0, site_name(block.mixer))
        for label in others:
            ports.missing[f"{label} {n}"] = NO_MATRICES
        site = block.feed_forward
        if site is not None and site.has_memories:
            _add_memories(lm, n, basis, centre, ports)
        elif site is not None:
            ports.missing[f"FFN {n}"] = site.memories_missing
    read = unembedding(lm, basis, centre=centre)
    ports.readers.append(StreamPort("unembedding", 2 * lm.n_layers, _columns_gram(read.T)))
    return ports


def _written(lm: Decoder, rows: Tensor, centre: bool) -> Float[Tensor, "d_model d_model"]:
    return _columns_gram(without_channel_mean(lm, rows) if centre else rows)


def _add_attention(lm: Decoder, layer: int, basis: HeadBasis, centre: bool, ports: StreamPorts) -> None:
    """Add what the heads of a layer write, and their queries, keys and values."""
    try:
        W_O = writing_weights(lm, layer, basis).flatten(0, 1)
        ports.writers.append(StreamPort(f"attention {layer}", 2 * layer, _written(lm, W_O, centre)))
    except Unsupported as error:
        ports.missing[f"attention {layer}"] = error.why
    site = lm.structure.blocks[layer].attention
    in_parts = basis == "folded" and is_composed(site) and site.readings is not None and site.readings.has_latent_keys
    for which in "qkv":
        for part in reversed(PARTS) if which == "k" and in_parts else (None,):
            name = f"{which.upper()} {layer}" + (f" ({part})" if part else "")
            try:
                matrix = reading_weights(lm, layer, which, basis, grouped=True, part=part)
            except Unsupported as error:
                ports.missing[name] = error.why
                continue
            rows = matrix.transpose(1, 2).flatten(0, 1)  # (kv * d_head, d_model)
            ports.readers.append(StreamPort(name, 2 * layer, _columns_gram(rows)))


def _add_memories(lm: Decoder, layer: int, basis: HeadBasis, centre: bool, ports: StreamPorts) -> None:
    """Add the value and key vectors of a layer's memories, and the up-projection where there is one."""
    block = lm.structure.blocks[layer]
    location = 2 * layer if block.parallel else 2 * layer + 1
    try:
        ports.writers.append(StreamPort(f"values {layer}", location, _written(lm, values_of(lm, layer, basis), centre)))
    except Unsupported as error:
        ports.missing[f"values {layer}"] = error.why
    ports.readers.append(StreamPort(f"keys {layer}", location, _columns_gram(keys_of(lm, layer, basis).T)))
    if (up := up_projection_of(lm, layer, basis)) is not None:
        ports.readers.append(StreamPort(f"up {layer}", location, _columns_gram(up.T)))


def _columns_gram(rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "d_model d_model"]:
    rows = at_least_float32(rows)
    return (rows.T @ rows).double()


def keys_of(lm: Decoder, layer: int, basis: HeadBasis) -> Float[Tensor, "d_model d_mlp"]:
    """Return the key vectors; in a gated layer, the gate's columns, which decide whether a memory is active."""
    gate = lm.weights.W_gate[layer]
    return _read_by_ffn(lm, layer, lm.weights.W_in[layer] if gate is None else gate, basis)


def up_projection_of(lm: Decoder, layer: int, basis: HeadBasis) -> Float[Tensor, "d_model d_mlp"] | None:
    """Return the up-projection of a gated layer, which multiplies the gate; None in a layer without a gate."""
    return None if lm.weights.W_gate[layer] is None else _read_by_ffn(lm, layer, lm.weights.W_in[layer], basis)


def _read_by_ffn(
    lm: Decoder, layer: int, matrix: Float[Tensor, "d_model d_mlp"], basis: HeadBasis
) -> Float[Tensor, "d_model d_mlp"]:
    norm = lm.feed_forward(layer).pre_norm
    if basis == "raw":
        return matrix
    matrix = at_least_float32(matrix)
    return read_at_end(lm, matrix if norm is None else norm.folded(matrix), layer, "ffn")


def values_of(lm: Decoder, layer: int, basis: HeadBasis) -> Float[Tensor, "d_mlp d_model"]:
    """Return the value vectors.

    In the folded basis, they are multiplied by the norm's gain and the multiplier on the FFN's output, and by the
    factors that later blocks apply to the stream.

    Raises:
        Unsupported: a gate on every channel follows the FFN.
    """
    site, matrix = lm.feed_forward(layer), lm.weights.W_out[layer]
    if site.channel_gate is not None:
        raise Unsupported(
            f"the directions in which memories of layer {layer} of {lm.name} write",
            why="a gate, different at each position, multiplies each channel of what they write",
            instead="Use an attribution by memory, which includes the gate",
        )
    if basis == "raw":
        return matrix
    matrix = at_least_float32(matrix)
    if site.branch_norm is not None:
        matrix = site.branch_norm.frozen(matrix, torch.ones(1, dtype=matrix.dtype, device=matrix.device))
    return written_to_end(lm, matrix * site.multiplier, layer, "ffn")


@dataclass(frozen=True, eq=False, repr=False)
class VirtualWeights(Displayed):
    """||W_out W_in||_F / (||W_out|| ||W_in||) for every writer and later reader of the stream; NaN for earlier readers.

    A writer adds to the stream (W_out: W_O of heads, value vectors), a reader reads it (W_in: W_Q, W_K, W_V, FFN keys).
    `chance` is the ratio of random directions, 1 / sqrt(d_model). `missing` names the layers' writers and readers that
    are not fixed matrices, with the reason.
    """

    writers: tuple[str, ...]
    readers: tuple[str, ...]
    ratio: Float[Tensor, "writer reader"]
    chance: float
    provenance: Provenance
    missing: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_table(self) -> Table:
        """One row for each writer and later reader, the largest ratio first."""
        found = [
            (writer, reader, ratio)
            for writer, row in zip(self.writers, self.ratio.tolist(), strict=True)
            for reader, ratio in zip(self.readers, row, strict=True)
            if not math.isnan(ratio)  # the reader is not earlier than the writer
        ]
        found.sort(key=lambda row: row[2], reverse=True)
        columns = {
            "writer": [writer for writer, _, _ in found],
            "reader": [reader for _, reader, _ in found],
            "ratio": [ratio for *_, ratio in found],
            "over_chance": [ratio / self.chance for *_, ratio in found],
        }
        return Table(f"Virtual weights (random directions: {format_number(self.chance)})", columns, self.provenance)


@torch.no_grad()
def virtual_weights(lm: Decoder, basis: HeadBasis = "raw", *, centre: bool = True) -> VirtualWeights:
    """Measure how strongly each attention layer and FFN reads what earlier layers write to the stream.

    Arguments as for `writers_and_readers`.

    Memory: one (d_model, d_model) matrix for each writer and reader.
    """
    ports = writers_and_readers(lm, basis, centre=centre)
    writers, readers = ports.writers, ports.readers
    w = torch.stack([side.gram.flatten() for side in writers])
    r = torch.stack([side.gram.flatten() for side in readers])
    traces = [torch.stack([side.gram.trace() for side in some]) for some in (writers, readers)]
    ratio = ((w @ r.T).clamp_min(0) / (traces[0][:, None] * traces[1])).sqrt()
    before = torch.tensor([side.location for side in writers])[:, None] < torch.tensor(
        [side.location for side in readers]
    )
    ratio = torch.where(before.to(ratio.device), ratio, torch.nan)
    return VirtualWeights(
        tuple(s.label for s in writers),
        tuple(s.label for s in readers),
        ratio,
        float(lm.d_model) ** -0.5,
        lm.provenance(basis=basis),
        ports.missing,
    )


@dataclass(frozen=True, eq=False)
class Subspaces:
    """How many dimensions of the stream each writer and reader uses, and how much their subspaces overlap.

    Attributes:
        labels: the labels of all writers, then all readers.
        n_writers: number of writers.
        effective_rank: participation ratio (sum s^2)^2 / sum s^4 of the singular values s.
        overlap: mean squared cosine of the principal angles between two leading subspaces, each with its effective rank
            as its dimension; 1 if the smaller subspace lies in the larger.
        chance: the overlap of random subspaces, the larger dimension over d_model.
    """

    labels: tuple[str, ...]
    n_writers: int
    effective_rank: Float[Tensor, " side"]
    overlap: Float[Tensor, "side side"]
    chance: Float[Tensor, "side side"]


@torch.no_grad()
def subspaces(lm: Decoder, basis: HeadBasis = "raw", *, centre: bool = True) -> Subspaces:
    """Return the effective ranks and subspace overlaps of all matrices that write to the stream or read from it.

    Arguments as for `writers_and_readers`.
    """
    ports = writers_and_readers(lm, basis, centre=centre)
    both = ports.writers + ports.readers
    ranks, bases = [], []
    for side in both:
        values, vectors = torch.linalg.eigh(side.gram)
        values = values.clamp_min(0)
        rank = float(values.sum().square() / values.square().sum())
        ranks.append(rank)
        bases.append(vectors[:, -max(1, round(rank)) :])
    n = len(both)
    overlap, chance = torch.zeros(n, n, dtype=torch.float64), torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            cosines = bases[i].T @ bases[j]
            sizes = (bases[i].shape[1], bases[j].shape[1])
            overlap[i, j] = cosines.square().sum() / min(sizes)
            chance[i, j] = max(sizes) / lm.d_model
    return Subspaces(tuple(s.label for s in both), len(ports.writers), torch.tensor(ranks).double(), overlap, chance)
