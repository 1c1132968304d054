"""Memories and heads that take away what earlier layers wrote, by their weights and on text.

Source: Elhage et al. 2021, "The residual stream as a communication channel": memory management.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.folded_weights import check_basis, reading_weights, writing_weights
from unembed.attention.geometry import keys_of, values_of
from unembed.attention.windows import windows_of
from unembed.models.decoder import Decoder
from unembed.stream.run import run


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
            keys, values = keys_of(lm, n, basis).T.double(), values_of(lm, n, basis).double()
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
        core = writing_weights(lm, n, basis).double() @ reading_weights(lm, n, "v", basis).double()
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
