"""The residual stream as a shared channel: what is written to it and read from it, how wide, and what is erased.

Source: Elhage et al. 2021, "The residual stream as a communication channel", "virtual weights", "memory management".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.sides import check_basis, embedding, reading, unembedding, writing
from unembed.attention.windows import windows_of
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.models.norms import Norm
from unembed.stream.run import run


@dataclass(frozen=True, eq=False)
class Side:
    """Something that reads the stream or writes to it, as its Gram matrix over the stream's directions.

    `place` counts halves of layers: the embedding stands at -1, attention of layer l at 2 l, its FFN at 2 l + 1 (2 l
    where both run in parallel), the unembedding last. A reader hears every writer of an earlier place.
    """

    label: str
    place: int
    gram: Float[Tensor, "d_model d_model"]


@torch.no_grad()
def sides(lm: Decoder, basis: str = "raw") -> tuple[list[Side], list[Side]]:
    """All writers and all readers: attention as OV outputs and as Q, K and V, FFNs as values and as keys.

    Memory: one (d_model, d_model) matrix each.
    """
    check_basis(basis)
    writers, readers = [Side("embedding", -1, _columns_gram(embedding(lm, basis)))], []
    for n, block in enumerate(lm.structure.blocks):
        writers.append(Side(f"attention {n}", 2 * n, _columns_gram(writing(lm, n, basis).flatten(0, 1))))
        for which in "qkv":
            matrix = reading(lm, n, which, basis, grouped=True)
            readers.append(Side(f"{which.upper()} {n}", 2 * n, _columns_gram(matrix.transpose(1, 2).flatten(0, 1))))
        site = block.feed_forward
        if site is None or not site.has_memories:
            continue
        place = 2 * n if block.parallel else 2 * n + 1
        writers.append(Side(f"values {n}", place, _columns_gram(_values(lm, n, basis))))
        readers.append(Side(f"keys {n}", place, _columns_gram(_keys(lm, n, basis).T)))
    readers.append(Side("unembedding", 2 * lm.n_layers, _columns_gram(unembedding(lm, basis).T)))
    return writers, readers


def _columns_gram(rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "d_model d_model"]:
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return (rows.T @ rows).double()


def _keys(lm: Decoder, layer: int, basis: str) -> Float[Tensor, "d_model d_mlp"]:
    """Key vectors: gate columns in a gated layer, whose sign decides whether the memory fires."""
    gate = lm.weights.W_gate[layer]
    matrix = lm.weights.W_in[layer] if gate is None else gate
    norm = lm.feed_forward(layer).pre_norm
    return norm.folded(matrix) if basis == "folded" and norm is not None else matrix


def _values(lm: Decoder, layer: int, basis: str) -> Float[Tensor, "d_mlp d_model"]:
    site, matrix = lm.feed_forward(layer), lm.weights.W_out[layer]
    if basis == "raw":
        return matrix
    if site.branch_norm is not None:
        matrix = site.branch_norm.frozen(matrix, torch.ones(1, dtype=matrix.dtype, device=matrix.device))
    return matrix * site.multiplier


@dataclass(frozen=True, eq=False)
class VirtualWeights:
    """||W_out W_in||_F / (||W_out|| ||W_in||) of every writer and every later reader; NaN where the reader is earlier.

    `chance` is what writers and readers in random directions have: 1 / sqrt(d_model).
    """

    writers: tuple[str, ...]
    readers: tuple[str, ...]
    ratio: Float[Tensor, "writer reader"]
    chance: float


@torch.no_grad()
def virtual_weights(lm: Decoder, basis: str = "raw") -> VirtualWeights:
    """How strongly each part of the model reads what each earlier part writes, through the stream.

    Memory: one (d_model, d_model) matrix for each writer and reader.
    """
    writers, readers = sides(lm, basis)
    w = torch.stack([side.gram.flatten() for side in writers])
    r = torch.stack([side.gram.flatten() for side in readers])
    traces = [torch.stack([side.gram.trace() for side in some]) for some in (writers, readers)]
    ratio = ((w @ r.T).clamp_min(0) / (traces[0][:, None] * traces[1])).sqrt()
    before = torch.tensor([side.place for side in writers])[:, None] < torch.tensor([side.place for side in readers])
    ratio = torch.where(before.to(ratio.device), ratio, torch.nan)
    return VirtualWeights(
        tuple(s.label for s in writers), tuple(s.label for s in readers), ratio, float(lm.d_model) ** -0.5
    )


@dataclass(frozen=True, eq=False)
class Subspaces:
    """How many directions each side uses, and how far what one writes and another reads coincide.

    Attributes:
        labels: of all writers, then all readers.
        n_writers: how many of them write.
        effective_rank: participation ratio (sum s^2)^2 / sum s^4 of the singular values s.
        overlap: mean squared cosine of the principal angles between the leading subspaces of two sides, whose sizes
            are their effective ranks; 1 where the smaller lies in the larger, `chance` for random ones.
        chance: the larger size over d_model.
    """

    labels: tuple[str, ...]
    n_writers: int
    effective_rank: Float[Tensor, " side"]
    overlap: Float[Tensor, "side side"]
    chance: Float[Tensor, "side side"]


@torch.no_grad()
def subspaces(lm: Decoder, basis: str = "raw") -> Subspaces:
    """Effective ranks and principal angles of everything that writes to the stream or reads from it."""
    writers, readers = sides(lm, basis)
    both = writers + readers
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
    return Subspaces(tuple(s.label for s in both), len(writers), torch.tensor(ranks).double(), overlap, chance)


@dataclass(frozen=True)
class Eraser:
    """A memory whose key and value point against each other: it reads a direction and writes its negative.

    `before` and `after` are the mean of x . v, v its value's direction, in the stream before and after its FFN, over
    the positions of text where it was most active; `opposes` is the share of these where what it writes has the other
    sign than what was there. None where no text was read.
    """

    layer: int
    index: int
    cosine: float
    before: float | None = None
    after: float | None = None
    opposes: float | None = None


@dataclass(frozen=True, eq=False)
class MemoryManagement:
    """Memories and heads that take away what earlier layers wrote.

    Attributes:
        memories: the most strongly anti-parallel key-value pairs, strongest first.
        counts: how many lie below `threshold`, by layer.
        threshold: minus five standard deviations of random directions' cosine, 5 / sqrt(d_model).
        n_memories: in all.
        heads: share of a head's OV eigenvalues (on the stream) that is negative: -sum(min(Re, 0)) / sum(|.|).
    """

    memories: tuple[Eraser, ...]
    counts: tuple[int, ...]
    threshold: float
    n_memories: int
    heads: Float[Tensor, "layer head"]


@torch.no_grad()
def memory_management(
    lm: Decoder, basis: str = "raw", *, top: int = 20, corpus: Any = None, verify: bool = False, max_tokens: int = 4096
) -> MemoryManagement:
    """Find erasing memories and heads by their weights; with `verify`, look whether they erase on text.

    Args:
        lm: the model.
        basis: "raw" or "folded".
        top: memories listed.
        corpus: anything `unembed.open_corpus` takes; read only with `verify`.
        verify: measure each listed memory's direction before and after its layer where it is active.
        max_tokens: of the text.
    """
    check_basis(basis)
    threshold = -5.0 * lm.d_model**-0.5
    cosines: dict[int, Tensor] = {}
    for n, block in enumerate(lm.structure.blocks):
        if block.feed_forward is not None and block.feed_forward.has_memories:
            keys, values = _keys(lm, n, basis).T.double(), _values(lm, n, basis).double()
            cosines[n] = torch.nn.functional.cosine_similarity(keys, values, dim=1)
    listed: list[Eraser] = []
    if cosines:
        every = torch.cat(list(cosines.values()))
        owners = [(n, i) for n, c in cosines.items() for i in range(len(c))]
        for at in every.topk(min(top, len(every)), largest=False).indices.tolist():
            layer, index = owners[at]
            listed.append(Eraser(layer, index, float(every[at])))
    if verify and listed:
        listed = _verified(lm, listed, corpus, max_tokens)
    counts = tuple(int((cosines[n] < threshold).sum()) if n in cosines else 0 for n in range(lm.n_layers))
    heads = []
    for n in range(lm.n_layers):
        core = writing(lm, n, basis).double() @ reading(lm, n, "v", basis).double()
        values = torch.linalg.eigvals(core)
        heads.append(-values.real.clamp_max(0).sum(dim=-1) / values.abs().sum(dim=-1))
    n_memories = sum(len(c) for c in cosines.values())
    return MemoryManagement(tuple(listed), counts, threshold, n_memories, torch.stack(heads))


def _verified(lm: Decoder, listed: list[Eraser], corpus: Any, max_tokens: int, share: float = 0.02) -> list[Eraser]:
    """The listed memories with the energy along their value before and after, where they are most active."""
    seen: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {e.layer: [] for e in listed}
    directions = {n: torch.stack([_unit(lm.weights.W_out[n][e.index]) for e in listed if e.layer == n]).T for n in seen}
    chosen = {n: [e.index for e in listed if e.layer == n] for n in seen}
    read = 0
    text = windows_of(corpus, min(lm.n_ctx or 256, 256), overlap=0)
    for batch in text.batches(lm, tokens=1024):
        for n in seen:
            before = "resid_pre" if lm.structure.blocks[n].parallel else "resid_mid"
            kept = run(
                lm, batch.tokens, (before, "mlp_out", "coefficients"), logits=False, layers=[n],
                attention_mask=batch.mask.long(),
            )  # fmt: skip
            real = batch.mask.bool()
            x, y, m = (kept[point][0].cpu()[real] for point in (before, "mlp_out", "coefficients"))
            d = directions[n].to(x.dtype).cpu()
            seen[n].append((m[:, chosen[n]], x @ d, (x + y) @ d))
        read += int(batch.mask.sum())
        if read >= max_tokens:
            break
    found = {}
    for n, parts in seen.items():
        active, before, after = (torch.cat(column) for column in zip(*parts, strict=True))
        k = max(1, int(share * len(active)))
        for column, index in enumerate(chosen[n]):
            where = active[:, column].abs().topk(k).indices
            then, now = (t[where, column].double() for t in (before, after))
            opposes = float((then * active[where, column] < 0).double().mean())
            found[n, index] = (float(then.mean()), float(now.mean()), opposes)
    return [Eraser(e.layer, e.index, e.cosine, *found[e.layer, e.index]) for e in listed]


def _unit(v: Tensor) -> Tensor:
    return v / v.norm().clamp_min(torch.finfo(v.dtype).tiny)


def random_rotation(d_model: int, seed: int = 0, *, keep_mean: bool = False) -> Float[Tensor, "d_model d_model"]:
    """A random orthogonal matrix, float64; with `keep_mean` one that leaves the all-ones direction where it is.

    LayerNorm takes the mean over channels away, so only rotations that keep its direction leave it unchanged.
    """
    g = torch.Generator().manual_seed(seed)
    if not keep_mean:
        q, r = torch.linalg.qr(torch.randn(d_model, d_model, generator=g, dtype=torch.float64))
        return q * r.diagonal().sign()
    frame = torch.randn(d_model, d_model, generator=g, dtype=torch.float64)
    frame[:, 0] = 1.0
    basis, _ = torch.linalg.qr(frame)  # first column: the mean direction
    inner = torch.eye(d_model, dtype=torch.float64)
    inner[1:, 1:] = random_rotation(d_model - 1, seed + 1)
    return basis @ inner @ basis.T


@torch.no_grad()
def rotate_stream(lm: Decoder, seed: int = 0) -> int:
    """Turn every weight that touches the stream by one random rotation, in place; the model computes what it did.

    Norm gains are first folded into what reads through them. For a model that is not needed afterwards: give a copy.

    Returns:
        How many matrices were turned.

    Raises:
        InvalidInput: the model has a norm on a branch's output, ties its unembedding to the embedding behind a gain,
            or keeps part of its reading inside modules that are not understood; its stream has a privileged basis
            then, or cannot be turned in place.
    """
    structure = lm.structure
    norms = [b.attention.pre_norm for b in structure.blocks] + [
        b.feed_forward.pre_norm for b in structure.blocks if b.feed_forward is not None
    ]
    _check_rotatable(lm)
    centred = any(norm is not None and norm.centred for norm in [*norms, structure.final_norm])
    R = random_rotation(lm.d_model, seed, keep_mean=centred)
    weights, turned = lm.weights, 0

    def reads(matrix: Tensor, norm: Norm | None) -> None:
        """Rows of the matrix are stream channels: W becomes R' g W."""
        nonlocal turned
        gained = matrix.double() if norm is None else norm.gain.double()[:, None] * matrix.double()
        matrix.copy_((R.T.to(matrix.device) @ gained).to(matrix.dtype))
        turned += 1

    def writes(matrix: Tensor | None) -> None:
        """The last axis is the stream: W becomes W R."""
        nonlocal turned
        if matrix is not None:
            matrix.copy_((matrix.double() @ R.to(matrix.device)).to(matrix.dtype))
            turned += 1

    def flat(matrix: Tensor) -> Tensor:
        return matrix.transpose(0, 1).reshape(matrix.shape[1], -1)

    tied = weights.W_U.data_ptr() == weights.W_E.data_ptr()
    for n, block in enumerate(structure.blocks):
        site, ffn = block.attention, block.feed_forward
        for per_layer in (weights.W_Q, weights.W_K, weights.W_V):
            matrix = per_layer[n]
            whole = flat(matrix).clone()
            reads(whole, site.pre_norm)
            matrix.copy_(whole.view(matrix.shape[1], matrix.shape[0], -1).transpose(0, 1))
        writes(weights.W_O[n])
        writes(weights.b_O[n])
        if ffn is not None:
            gate = weights.W_gate[n]
            for matrix in (weights.W_in[n], gate):
                if matrix is not None:
                    reads(matrix, ffn.pre_norm)
            writes(weights.W_out[n])
            writes(weights.b_out[n])
    if not tied:
        reads(weights.W_U, structure.final_norm)
    writes(weights.W_E)
    writes(None if structure.position_embedding is None else structure.position_embedding.weight)  # type: ignore[arg-type]
    writes(None if structure.read_positions is None else structure.read_positions.weight)  # type: ignore[arg-type]
    for norm in {id(n.module): n for n in [*norms, structure.final_norm] if n is not None}.values():
        _level(norm, R)
    return turned


def _check_rotatable(lm: Decoder) -> None:
    structure, weights = lm.structure, lm.weights
    tied = weights.W_U.data_ptr() == weights.W_E.data_ptr()
    why = None
    if structure.embedding_scale is None:
        why = "a norm or projections follow the embedding table"
    elif any(b.attention.branch_norm is not None for b in structure.blocks):
        why = "a norm's gain on a branch's output prefers the channels it has"
    elif any(b.feed_forward is not None and not b.feed_forward.has_memories for b in structure.blocks):
        why = "its FFN is a mixture of experts"
    elif tied and structure.final_norm is not None and not _is_level(structure.final_norm):
        why = "its unembedding is its embedding, and the final norm's gain cannot be folded into one of the two"
    elif lm.n_heads != lm.n_kv_heads and structure.blocks[0].attention.layout.kind == "per_group":
        why = "its queries are no view on the weights"
    if why is not None:
        raise InvalidInput(f"the stream of {lm.name} cannot be turned in place", why=why)


def _is_level(norm: Norm) -> bool:
    return bool(torch.allclose(norm.gain, torch.ones_like(norm.gain), atol=1e-6))


def _level(norm: Norm, R: Tensor) -> None:
    """Give a norm a gain of 1 and a bias that stands for what it was, behind the folded gain and the rotation."""
    gain, module = norm.gain.double(), norm.module
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        bias.copy_(((bias.double() / gain) @ R.to(bias.device)).to(bias.dtype))
    if isinstance(weight, Tensor):
        # Gemma's gain is 1 + weight: what is added to the weight is what the gain lacks.
        offset = float((gain - weight.double()).mean())
        weight.fill_(1.0 - round(offset))
    norm.__dict__.pop("_answers", None)
    for name in ("gain", "bias"):
        norm.__dict__.pop(name, None)
