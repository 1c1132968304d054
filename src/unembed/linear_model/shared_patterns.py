"""Let relevance flow through attention patterns to queries and keys: the option `qk="shared"` of a linear pass.

A head's mixed values z = A v are a product of its pattern A and its values v; each receives half of the relevance. The
pattern is the softmax of the scores s, linearized at the scores of the run: A = J s + rest, where J s =
A (s - sum of A s over the sources) and the rest is a constant of the layer. A score is a product of a query and a key;
each receives half of its relevance. Clipping, soft cap and QK-norm multiply by the factor that they had in the run. A
position bias (ALiBi) is part of the constant rest.

Source: Achtibat et al. 2024 (AttnLRP), section 3.3: softmax by its Taylor expansion, products in equal parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import Unsupported
from unembed.linear_model.linear_rules import linearized, ratio
from unembed.linear_model.pass_tensors import LinearPass
from unembed.models.decoder import Decoder
from unembed.models.qk_norm import QKNorm
from unembed.models.structure.structure import AttentionSite
from unembed.names import SUM_TOLERANCE
from unembed.stream.decomposition import prove, tolerance

Heads = Float[Tensor, "batch head pos d_head"]


def require_scores(lm: Decoder, layers: Sequence[int]) -> None:
    """Check that the attention scores of some layers can be computed from their queries and keys.

    Raises:
        Unsupported: the scores of one of the layers cannot be computed in this way.
    """
    for layer in layers:
        site = lm.structure.blocks[layer].attention
        if site.head_layout is None or not site.scores.understood:
            raise Unsupported(
                f"relevance through the attention patterns of layer {layer} of {lm.name}",
                why=site.scores.missing or site.values_missing,
                instead='Use qk="constant", which treats the patterns as constants',
            )


def shared_pattern(
    made: LinearPass,
    layer: int,
    q: Float[Tensor, "batch pos head d_head"],
    k: Float[Tensor, "batch pos kv_head d_head"],
    pattern: Float[Tensor, "batch head dst src"],
) -> Float[Tensor, "batch head dst src"]:
    """Return a layer's attention pattern as a linear function of its queries and keys, computed in float32 or float64.

    Args:
        q: the queries as the projection returned them, with gradients.
        k: the keys as the projection returned them, with gradients.
        pattern: the layer's pattern in the run.

    Raises:
        SumNotProved: the softmax of the scores computed from `q` and `k` is not the run's pattern.

    Memory: four times the pattern.
    """
    lm, site = made.lm, made.lm.structure.blocks[layer].attention
    pattern = pattern.to(torch.promote_types(pattern.dtype, torch.float32))
    turned_q, turned_k = (_turned(made, layer, site, which, t) for which, t in (("q", q), ("k", k)))
    turned_k = turned_k.repeat_interleave(site.queries_per_kv, dim=1)
    products = turned_q @ turned_k.detach().mT + turned_q.detach() @ turned_k.mT
    scores = 0.5 * site.scores.scale * products
    if (cap := site.scores.softcap) is not None:
        scores = scores * ratio(cap * torch.tanh(scores.detach() / cap), scores).to(scores)
    visible = pattern > 0
    _prove(lm, layer, site, scores.detach(), pattern, visible)
    scores = torch.where(visible, scores, 0.0).to(pattern.dtype)
    linear = pattern * (scores - (pattern * scores).sum(-1, keepdim=True))
    factor = made.bias(layer, "patterns").to(pattern.device)[:, None, :, None]
    return linearized(pattern, linear) + factor * (pattern - linear.detach())


def _prove(lm: Decoder, layer: int, site: AttentionSite, scores: Tensor, pattern: Tensor, visible: Tensor) -> None:
    if (slopes := site.scores.alibi_slopes) is not None:
        where = torch.arange(scores.shape[-1], device=scores.device)
        scores = scores + slopes.to(scores)[:, None, None] * where
    # With an attention sink, the rows of the pattern sum to less than 1, so the softmax is scaled to the same sums.
    made = scores.masked_fill(~visible, -torch.inf).softmax(-1) * pattern.sum(-1, keepdim=True)
    what = f"the patterns of layer {layer} of {lm.name} by its queries and keys"
    limit = max(tolerance(lm), SUM_TOLERANCE["float32"])  # float64 models compute the softmax in float32
    prove(what, made, pattern, limit, instead='Use qk="constant", which treats the patterns as constants')


def _turned(made: LinearPass, layer: int, site: AttentionSite, which: str, t: Tensor) -> Heads:
    """Return queries or keys as scores use them: clipped, normalised and rotated.

    They are a linear function of the projection's output.
    """
    lm, rule = made.lm, site.scores
    if site.positions_read:  # position embeddings enter the projection, but not the stream
        t = t + made.bias(layer, "positions").to(t)[..., None, None] * _of_positions(lm, layer, which, t)
    if site.clip is not None:
        t = t * ratio(t.detach().clamp(-site.clip, site.clip), t).to(t)
    t = t.to(torch.promote_types(t.dtype, torch.float32)).transpose(1, 2)
    where = torch.arange(t.shape[2], device=t.device)
    if rule.rotary is not None and rule.norm_after_rotary:
        t = rule.rotary.rotate(t, where)
    if (module := rule.q_norm if which == "q" else rule.k_norm) is not None:
        t = _normed(made, layer, module, t)
    return t if rule.rotary is None or rule.norm_after_rotary else rule.rotary.rotate(t, where)


def _of_positions(lm: Decoder, layer: int, which: str, like: Tensor) -> Float[Tensor, "pos head d_head"]:
    W_pos, weights = lm.weights.W_pos, lm.weights.W_Q if which == "q" else lm.weights.W_K
    assert W_pos is not None
    return torch.einsum("pm,hmd->phd", W_pos[: like.shape[1]].to(like), weights[layer].to(like)).detach()


def _normed(made: LinearPass, layer: int, module: torch.nn.Module, t: Heads) -> Heads:
    """Apply QK-norm to queries or keys; its divisor and its bias are constants of the run."""
    batch, heads, pos, d_head = t.shape
    rows = t.transpose(0, 1).reshape(heads, batch * pos, d_head)
    given = rows.detach().to(made.lm.dtype)
    norm = QKNorm.of(module, heads, d_head, given)
    out = norm.linear(rows) / norm.sizes(given).to(rows)
    if bool(norm.bias.any()):
        bias = norm.bias[:, None].to(rows)
        out = out + bias + made.bias(layer, "attention").to(rows).reshape(1, -1, 1) * bias
    return out.view(heads, batch, pos, d_head).transpose(0, 1)
