"""What the weights alone show about positions: which offset a head attends to, whatever the tokens are.

Three kinds of model: a table of positions (learned, added to the stream or read by queries and keys alone) gives the
scores of every pair of positions; rotary positions turn the QK circuit by the offset; ALiBi adds a slope. Other models
have no separate term for positions.

Source: Elhage et al. 2021, "Splitting attention head terms into circuits" (positional terms), "Induction heads"
(previous-token heads).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.weights.composed_weights import require_qk
from unembed.attention.weights.folded_weights import mean_embedding, require_heads
from unembed.attention.weights.low_rank import LowRank
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.errors import Unsupported
from unembed.names import HeadBasis
from unembed.validation import positive_int


@torch.no_grad()
def position_scores(
    circuits: HeadMatrices, layer: int, head: int, basis: HeadBasis = "raw", *, positions: int | None = None
) -> Float[Tensor, "dst src"]:
    """The score of every pair of positions from the table of positions alone, score scale included.

    With norms ("folded") the scores lack the norms' division, which depends on the run.

    Args:
        positions: how many; the model's own when None.

    Raises:
        OutOfRange: there is no such head.
        Unsupported: the model has no table of positions.
    """
    lm = circuits.lm
    layer, head = circuits.resolve_head(layer, head, basis)
    if (table := lm.weights.W_pos) is None:
        site = lm.structure.blocks[layer].attention
        by_offset = site.scores_understood and (site.rotary is not None or site.alibi_slopes is not None)
        raise Unsupported(
            f"scores of positions of layer {layer} of {lm.name}",
            why="it has no table of positions",
            instead="Use scores_by_offset" if by_offset else "Use captured patterns",
        )
    n = table.shape[0] if lm.n_ctx is None else min(table.shape[0], lm.n_ctx)
    table = table[: n if positions is None else min(n, positive_int("positions", positions))]
    qk = circuits.qk(layer, head, 0, basis)
    table = table.to(torch.promote_types(qk.left.dtype, torch.float32))
    scores = LowRank(table @ qk.left.to(table.dtype), qk.right.to(table.dtype) @ table.T).dense()
    return scores * circuits.scales[layer]


@torch.no_grad()
def attention_by_position(scores: Float[Tensor, "dst src"]) -> Float[Tensor, "dst src"]:
    """The causal softmax of scores: where a head would attend if positions were all it saw."""
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.double().masked_fill(hidden, -torch.inf).softmax(dim=-1)


@torch.no_grad()
def previous_token_by_weights(circuits: HeadMatrices, basis: HeadBasis = "raw") -> Float[Tensor, "layer head"] | None:
    """Mean attention to the position before, by the table of positions alone; None without such a table.

    NaN in layers without attention.

    Memory: one matrix of positions for each head of a layer.
    """
    lm = circuits.lm
    require_heads(lm, "attention by positions")
    if lm.weights.W_pos is None:
        return None
    found = torch.full((lm.n_layers, lm.n_heads), torch.nan, dtype=torch.float64)
    for layer in lm.attention_layers:
        for head in range(lm.structure.blocks[layer].attention.n_heads):
            pattern = attention_by_position(position_scores(circuits, layer, head, basis))
            found[layer, head] = pattern.diagonal(-1).mean()
    return found


@torch.no_grad()
def scores_by_offset(
    circuits: HeadMatrices, layer: int, head: int, offsets: Sequence[int], basis: HeadBasis = "raw"
) -> Float[Tensor, " offset"]:
    """The score of a source some number of tokens back, averaged over the token there, score scale included.

    With a table of positions the mean over destinations of the position terms; with rotary positions the score of the
    mean embedding with itself, rotated by the offset; ALiBi added.

    Args:
        offsets: at least 0; with a table, below its length.

    Raises:
        OutOfRange: there is no such head.
        Unsupported: the scores are not understood, or its scores do not depend on positions.
    """
    lm = circuits.lm
    layer, head = circuits.resolve_head(layer, head, basis)
    site = lm.structure.blocks[layer].attention
    require_qk(lm, layer)
    total = torch.zeros(len(offsets), dtype=torch.float64)
    if lm.weights.W_pos is not None:
        scores = position_scores(circuits, layer, head, basis).double()
        total += torch.stack([scores.diagonal(-o).mean() for o in offsets]).cpu()
    elif site.rotary is None and site.alibi_slopes is None:
        added = lm.structure.positions == "added"
        raise Unsupported(
            f"scores by offset of layer {layer} of {lm.name}",
            why="positions are added to its embedding outside any module"
            if added
            else "its scores do not depend on positions",
            instead="Use captured patterns" if added else "Use qk, which is the same at every offset",
        )
    if site.rotary is not None:
        mean = mean_embedding(lm, basis, centre=True).double()
        for i, offset in enumerate(offsets):
            qk = circuits.qk(layer, head, offset, basis).double()
            total[i] += float((mean @ qk.left) @ (qk.right @ mean)) * site.scale
    if site.alibi_slopes is not None:
        total -= float(site.alibi_slopes[head]) * torch.tensor(list(offsets), dtype=torch.float64)
    return total
