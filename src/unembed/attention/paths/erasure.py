"""Find memories (FFN neurons) and heads whose weights remove what earlier layers wrote, and check them on text.

Source: Elhage et al. 2021, "The residual stream as a communication channel": memory management.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers.activations import ACT2FN

from unembed.attention.paths.geometry import keys_of, up_projection_of, values_of
from unembed.attention.weights.by_layer import by_layer
from unembed.attention.weights.folded_weights import (
    at_least_float32,
    check_basis,
    reading_weights,
    require_heads,
    writing_weights,
)
from unembed.attention.weights.missing_circuits import missing_circuits
from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis, Point
from unembed.results import Displayed, Provenance, Table, format_number
from unembed.stream.decomposition import attention_branch
from unembed.stream.run import Run, run
from unembed.validation import positive_int

_MOST_ACTIVE = 0.02
"""A memory or head is checked at this share of the text positions, namely those where it writes most."""
_RANDOM_HEADS = 64


@dataclass(frozen=True)
class ErasureOnText:
    """What a memory or head does to the direction that it writes along, at the text positions where it writes most.

    Attributes:
        before: mean |x . v| of the stream x along the direction v, before the FFN or attention is added.
        after: the same, after it is added.
        opposes: share of the positions where what it writes along v has the opposite sign of x . v before.
    """

    before: float
    after: float
    opposes: float
    n_positions: int

    @property
    def erases(self) -> bool | None:
        """Whether the stream becomes smaller along v because what is written opposes it.

        True if mean |x . v| is smaller after the write, and the write has the opposite sign of x . v at more than half
        of the positions. False if mean |x . v| is not smaller, or the sign is opposite at fewer than half of them. None
        if the 95 % confidence interval of that share includes one half.
        """
        if self.after >= self.before:
            return False
        half = 1.96 * (self.opposes * (1 - self.opposes) / self.n_positions) ** 0.5
        return True if self.opposes - half > 0.5 else False if self.opposes + half < 0.5 else None


@dataclass(frozen=True)
class ErasingMemory:
    """A memory (FFN neuron) with opposite key and value vectors: it reads a direction and writes its negative.

    Memories of gated layers read through two matrices; see `MemoryManagement.memories`.
    """

    layer: int
    index: int
    cosine: float
    """The cosine of key and value vector; in a gated layer, see `MemoryManagement.memories`."""
    on_text: ErasureOnText | None = None
    """What was measured on text; None if no text was read."""


@dataclass(frozen=True)
class ErasingHead:
    """A head whose OV circuit has mostly negative eigenvalues."""

    layer: int
    head: int
    negative_share: float
    """-sum(min(Re lambda, 0)) / sum(|lambda|) over the eigenvalues of W_V W_O."""
    on_text: ErasureOnText | None = None


@dataclass(frozen=True, eq=False, repr=False)
class MemoryManagement(Displayed):
    """Memories and heads that remove what earlier layers wrote.

    Attributes:
        memories: the memories with the most negative cosine of key and value vector, the most negative first. A gated
            memory has two keys, and flipping the signs of one of them (`up`) and of the value has no effect.
            Therefore the key is replaced by the gradient of the memory's coefficient with respect to the FFN's input,
            averaged over positions of text: the direction along which the coefficient rises.
        counts: the number of memories with a cosine below `threshold`, by layer.
        threshold: minus five standard deviations of the cosine of random directions, -5 / sqrt(d_model).
        n_memories: number of memories that were compared.
        heads: the negative share of the eigenvalues of each head's W_V W_O (see `ErasingHead`); NaN where there is no
            OV circuit.
        erasing_heads: the heads with the largest share, largest first.
        chance: mean and standard deviation of the same share, measured on random heads of the same shape.
    """

    memories: tuple[ErasingMemory, ...]
    counts: tuple[int, ...]
    threshold: float
    n_memories: int
    heads: Float[Tensor, "layer head"]
    erasing_heads: tuple[ErasingHead, ...]
    chance: tuple[float, float]
    provenance: Provenance
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    """Layers whose heads or memories were not compared, such as "heads of layer 0", and why."""

    def to_table(self) -> Table:
        """One row for each listed memory, then for each listed head; cells that do not apply are empty."""
        parts: list[ErasingMemory | ErasingHead] = [*self.memories, *self.erasing_heads]
        columns: dict[str, list[Any]] = {
            "layer": [part.layer for part in parts],
            "memory": [part.index if isinstance(part, ErasingMemory) else None for part in parts],
            "head": [part.head if isinstance(part, ErasingHead) else None for part in parts],
            "cosine": [part.cosine if isinstance(part, ErasingMemory) else None for part in parts],
            "negative_share": [part.negative_share if isinstance(part, ErasingHead) else None for part in parts],
        }
        for one in fields(ErasureOnText):
            if any(part.on_text is not None for part in parts):
                columns[one.name] = [part.on_text and getattr(part.on_text, one.name) for part in parts]
        below = (
            f"{sum(self.counts):,} of {self.n_memories:,} memories have a cosine below {format_number(self.threshold)}"
        )
        return Table(f"Memories and heads that erase; {below}", columns, self.provenance)

    @property
    def head_threshold(self) -> float:
        """Five standard deviations above the mean share of random heads."""
        return self.chance[0] + 5 * self.chance[1]


@torch.no_grad()
def memory_management(
    lm: Decoder,
    basis: HeadBasis = "raw",
    *,
    top: int = 20,
    corpus: CorpusSource = None,
    verify: bool = False,
    max_tokens: int = 4096,
) -> MemoryManagement:
    """Find erasing memories and heads by their weights; with `verify`, measure on text whether they erase.

    Args:
        top: number of memories and of heads listed.
        corpus: anything `unembed.open_corpus` takes; read only with `verify`, and for gated layers.
        verify: measure how large the stream is along the direction that each memory or head writes, before and after
            its output is added.
        max_tokens: the largest number of tokens to read from the text.
    """
    check_basis(basis)
    require_heads(lm, "memory management")
    top, threshold = positive_int("top", top), -5.0 * lm.d_model**-0.5
    missing: dict[str, str] = {}
    cosines: dict[int, Tensor] = {}
    rising, without_gradient = _mean_gradients(lm, basis, corpus, max_tokens)
    missing |= {f"memories of layer {n}": why for n, why in without_gradient.items()}
    for n in lm.memory_layers:
        if n in without_gradient:
            continue
        try:
            values = values_of(lm, n, basis).double()
            keys = rising[n] if n in rising else keys_of(lm, n, basis).T.double()
        except Unsupported as error:
            missing[f"memories of layer {n}"] = error.why
        else:
            cosines[n] = torch.nn.functional.cosine_similarity(keys, values, dim=1)
    memories: list[ErasingMemory] = []
    if cosines:
        every = torch.cat(list(cosines.values()))
        owners = [(n, i) for n, c in cosines.items() for i in range(len(c))]
        for at in every.topk(min(top, len(every)), largest=False).indices.tolist():
            layer, index = owners[at]
            memories.append(ErasingMemory(layer, index, float(every[at])))
    shares: dict[int, Tensor] = {}
    without = missing_circuits(lm, basis).ov
    for n in lm.attention_layers:
        if n in without:
            missing[f"heads of layer {n}"] = without[n]
            continue
        W_O, W_V = writing_weights(lm, n, basis).double(), reading_weights(lm, n, "v", basis).double()
        shares[n] = _negative_share(W_O @ W_V)
    heads = by_layer(lm.n_layers, shares) if shares else torch.full((lm.n_layers, lm.n_heads), torch.nan).double()
    known = int((~heads.isnan()).sum())
    best = heads.nan_to_num(-torch.inf).flatten().topk(min(top, known))
    erasing = [
        ErasingHead(*divmod(int(i), heads.shape[1]), float(v)) for i, v in zip(best.indices, best.values, strict=True)
    ]
    if verify:
        memories, erasing = _verified(lm, memories, erasing, basis, corpus, max_tokens)
    return MemoryManagement(
        tuple(memories),
        tuple(int((cosines[n] < threshold).sum()) if n in cosines else 0 for n in range(lm.n_layers)),
        threshold,
        sum(len(c) for c in cosines.values()),
        heads,
        tuple(erasing),
        _random_negative_share(lm),
        lm.provenance(basis=basis),
        missing,
    )


@torch.no_grad()
def _mean_gradients(
    lm: Decoder, basis: HeadBasis, corpus: CorpusSource, max_tokens: int
) -> tuple[dict[int, Float[Tensor, "d_mlp d_model"]], dict[int, str]]:
    """Return the mean gradient of every gated memory's coefficient with respect to what its FFN reads.

    A coefficient is act(a) b with a = gate . x and b = up . x, x being the normed stream; its gradient is
    act'(a) b gate + act(a) up. The first position of a window is left out: in many models its activations are far
    larger than those of all other positions, and would dominate the mean.

    Returns:
        The gradients of each gated layer; and, for gated layers without gradients, the reason.

    Memory: gate and up of every gated layer at 256 positions.
    """
    gated, missing = [n for n in lm.memory_layers if lm.is_signed(n)], dict[int, str]()
    for n in list(gated):
        if lm.experts_of(n) is not None:
            missing[n] = "its gates belong to experts that a router chooses"
        elif (activation := lm.feed_forward(n).activation) not in ACT2FN:
            missing[n] = f"the derivative of its activation, {activation}, is not known"
        elif lm.tokenizer is None:
            missing[n] = "its coefficients have two factors and are read on text, and the model has no tokenizer"
    gated = [n for n in gated if n not in missing]
    if not gated:
        return {}, missing
    sums = {n: torch.zeros(2, lm.n_memories_of(n), dtype=torch.float64) for n in gated}
    read = 0
    for batch in windows_of(corpus, min(lm.n_ctx or 256, 256), overlap=0).batches(lm, tokens=256):
        real = batch.mask.bool().clone()
        real[:, 0] = False
        captured = run(lm, batch.tokens, ("gate", "up"), logits=False, layers=gated, attention_mask=batch.mask.long())
        for n in gated:
            a, b = (at_least_float32(captured.at(point, n)[real.to(lm.device)]) for point in ("gate", "up"))
            slope, height = _slope(lm.feed_forward(n).activation, a)
            sums[n] += torch.stack([(slope * b).double().sum(dim=0), height.double().sum(dim=0)]).cpu()
        read += int(real.sum())
        if read >= max_tokens:
            break
    found = {}
    for n in gated:
        slope, height = sums[n].to(lm.device)[..., None] / max(read, 1)
        up = up_projection_of(lm, n, basis)
        assert up is not None
        found[n] = slope * keys_of(lm, n, basis).T.double() + height * up.T.double()
    return found, missing


def _slope(activation: str, a: Float[Tensor, "pos d_mlp"]) -> tuple[Tensor, Tensor]:
    """Return the derivative of an activation function, and its value."""
    with torch.enable_grad():
        a = a.detach().requires_grad_()
        height = ACT2FN[activation](a)
        (slope,) = torch.autograd.grad(height.sum(), a)
    return slope, height.detach()


def _negative_share(cores: Float[Tensor, "head d_head d_head"]) -> Float[Tensor, " head"]:
    """Return the sum of the negative real parts of the eigenvalues of W_V W_O over the sum of their absolute values.

    The non-zero eigenvalues are those of the small matrices W_O W_V (`cores`).
    """
    values = torch.linalg.eigvals(cores)
    return -values.real.clamp_max(0).sum(dim=-1) / values.abs().sum(dim=-1)


def _random_negative_share(lm: Decoder) -> tuple[float, float]:
    """Return the mean and standard deviation of the negative share for random Gaussian W_V and W_O.

    The mean is about 1 / pi.
    """
    g = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(_RANDOM_HEADS, *shape, generator=g, dtype=torch.float64)
        for shape in ((lm.d_head, lm.d_model), (lm.d_model, lm.d_head))
    )
    shares = _negative_share(left @ right)
    return float(shares.mean()), float(shares.std())


class _Gathered:
    """Collects, for each position, what is written along a direction, and the stream along it before and after that."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, written: Float[Tensor, " pos"], before: Float[Tensor, " pos"], after: Float[Tensor, " pos"]) -> None:
        """Add the positions of a batch; all values are signed lengths along the direction."""
        self.parts.append((written.double().cpu(), before.double().cpu(), after.double().cpu()))

    def result(self) -> ErasureOnText:
        written, before, after = (torch.cat(column) for column in zip(*self.parts, strict=True))
        where = written.abs().topk(max(1, int(_MOST_ACTIVE * len(written)))).indices
        opposes = float((written[where] * before[where] < 0).double().mean())
        return ErasureOnText(float(before[where].abs().mean()), float(after[where].abs().mean()), opposes, len(where))


def _verified(
    lm: Decoder,
    memories: Sequence[ErasingMemory],
    heads: Sequence[ErasingHead],
    basis: HeadBasis,
    corpus: CorpusSource,
    max_tokens: int,
) -> tuple[list[ErasingMemory], list[ErasingHead]]:
    """Measure on text whether memories and heads erase, and return them with the result in `on_text`."""
    directions = {
        (m.layer, m.index): torch.nn.functional.normalize(
            at_least_float32(values_of(lm, m.layer, basis)[m.index]), dim=0
        )
        for m in memories
    }
    of_memories = {key: _Gathered() for key in directions}
    of_heads = {(h.layer, h.head): _Gathered() for h in heads}
    layers_by_points = _layers_by_points(lm, {m.layer for m in memories}, {h.layer for h in heads})
    read = 0
    for batch in windows_of(corpus, min(lm.n_ctx or 256, 256), overlap=0).batches(lm, tokens=1024):
        for tokens, real in zip(batch.tokens.split(1), batch.mask.bool().split(1), strict=True):
            for layers, points in layers_by_points:
                captured = run(lm, tokens, points, logits=False, layers=layers, attention_mask=real.long())
                for n in layers:
                    _gather(lm, n, captured, real, directions, of_memories, of_heads)
        read += int(batch.mask.sum())
        if read >= max_tokens:
            break
    return (
        [replace(m, on_text=of_memories[m.layer, m.index].result()) for m in memories],
        [replace(h, on_text=of_heads[h.layer, h.head].result()) for h in heads],
    )


def _ffn_reads(lm: Decoder, layer: int) -> Point:
    return "resid_mid" if lm.structure.blocks[layer].is_sequential else "resid_pre"


def _layers_by_points(lm: Decoder, of_memories: set[int], of_heads: set[int]) -> list[tuple[list[int], list[Point]]]:
    """Group the layers by the activations that `_gather` needs of them, so that one run captures those of a group."""
    found: dict[tuple[Point, ...], list[int]] = {}
    for n in sorted(of_memories | of_heads):
        ffn: tuple[Point, ...] = (_ffn_reads(lm, n), "coefficients", "mlp_out") if n in of_memories else ()
        attention: tuple[Point, ...] = ("resid_pre", "z", "attn_out") if n in of_heads else ()
        found.setdefault(tuple(dict.fromkeys((*ffn, *attention))), []).append(n)
    return [(layers, list(points)) for points, layers in found.items()]


def _gather(
    lm: Decoder,
    layer: int,
    captured: Run,
    real: Bool[Tensor, "batch pos"],
    directions: dict[tuple[int, int], Tensor],
    of_memories: dict[tuple[int, int], _Gathered],
    of_heads: dict[tuple[int, int], _Gathered],
) -> None:
    """Append to `of_memories` and `of_heads` what the memories and heads of one layer wrote in a run."""
    memories = [index for n, index in of_memories if n == layer]
    heads = [head for n, head in of_heads if n == layer]
    mask = real.to(captured.at("coefficients" if memories else "z", layer).device)

    def at(point: str) -> Tensor:
        return at_least_float32(captured.at(point, layer)[mask])  # (pos, ...)

    for index in memories:
        x = at(_ffn_reads(lm, layer))
        d = directions[layer, index].to(x.device)
        before, after = x @ d.to(x.dtype), (x + at("mlp_out")) @ d.to(x.dtype)
        # The coefficient stands for what the memory writes along its value vector. The division by a norm and the
        # multiplier that may follow the FFN are left out, since both only scale what is written by a positive number.
        of_memories[layer, index].add(at("coefficients")[:, index], before, after)
    if not heads:
        return
    x, z, after = at("resid_pre"), captured.at("z", layer)[mask], at("resid_pre") + at("attn_out")
    branch = attention_branch(lm, layer, z)
    for head in heads:
        raw = at_least_float32(z[:, head]) @ at_least_float32(lm.weights.W_O[layer][head])
        written = branch.written(raw).to(x.dtype)
        length = written.norm(dim=-1, keepdim=True)
        d = written / length.clamp_min(1e-30)
        of_heads[layer, head].add(length[:, 0], (x * d).sum(dim=-1), (after * d).sum(dim=-1))
