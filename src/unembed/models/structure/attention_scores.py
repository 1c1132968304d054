"""Find the formula by which an attention pattern follows from queries and keys.

Scales, rotations, soft caps, position biases and windows are tried; a formula is accepted if the softmax of its scores
equals the pattern of a recorded forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.structure.attention_layout import Heads, Mixing, heads_of
from unembed.models.structure.families import facts_of
from unembed.models.structure.probe import relative
from unembed.models.structure.rotary import Rotary, rotary_candidates
from unembed.models.structure.structure import ScoreRule

_QK_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm"))


def score_rule(
    mixing: Mixing,
    q: Float[Tensor, "pos q_width"],
    k: Float[Tensor, "pos k_width"],
    n_kv_heads: int,
    missing: str,
) -> ScoreRule:
    """Find the formula that turns queries and keys into the recorded attention pattern.

    Some models ignore the sliding window that their config states, so other windows are tried if that one does not give
    the recorded pattern.

    Args:
        missing: the reason to store in the rule if no formula is found.
    """
    q, k = heads_of(mixing.clamped(q), mixing.n_heads), heads_of(mixing.clamped(k), n_kv_heads)
    stated, rotaries = _window(mixing), _rotaries(mixing)
    unknown = ScoreRule(window=stated, missing=missing)
    names = _qk_norms(mixing)
    earlier: Rotary | None = None
    if names is not None:
        unknown = replace(unknown, q_norm=getattr(mixing.module, names[0]), k_norm=getattr(mixing.module, names[1]))
        normed_q, normed_k = _normed(mixing, names[0], mixing.n_heads), _normed(mixing, names[1], n_kv_heads)
        if normed_q is None or normed_k is None:
            return unknown
        earlier = _rotation_before_norm(mixing, names[0], q, rotaries)
        q, k = normed_q, normed_k
    fitting = (_fitting(mixing, q, k, [] if earlier else rotaries, window) for window in _windows(mixing, stated))
    found = next((rule for rule in fitting if rule is not None), None)
    if found is None:
        return unknown
    found = replace(found, q_norm=unknown.q_norm, k_norm=unknown.k_norm)
    return found if earlier is None else replace(found, rotary=earlier, norm_after_rotary=True)


def _fitting(
    mixing: Mixing, q: Heads, k: Float[Tensor, "kv_head pos d_head"], rotaries: list[Rotary], window: int | None
) -> ScoreRule | None:
    """Return the formula that reproduces the pattern with a given window; None if no known formula does.

    With an attention sink the weights of a row add up to less than 1, so each row is divided by its sum before the
    comparison.
    """
    assert mixing.pattern is not None
    pattern = mixing.pattern
    pattern = pattern / pattern.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(pattern.dtype).tiny)
    n_heads, pos, d_head = q.shape
    q, k = q.double(), k.double().repeat_interleave(n_heads // k.shape[0], 0)
    mask = torch.full((pos, pos), -math.inf, dtype=torch.float64, device=q.device).triu(1)
    if window is not None:
        mask = mask + mask.new_full((pos, pos), -math.inf).tril(-window)
    scales = _scales(mixing.module, d_head)
    narrow = [r for r in rotaries if 2 * r.frequencies.numel() <= d_head]
    cap, tolerance = getattr(mixing.probe.config, "attn_logit_softcapping", None), mixing.probe.tolerance
    rules: list[tuple[float, ScoreRule]] = []
    for rule, scores in _unbiased(q, k, narrow, scales, cap):
        if relative((scores + mask).softmax(-1), pattern) <= tolerance:
            rules.append((_score_error(scores, pattern, mask), replace(rule, window=window)))
    if rules:
        return _best(rules)
    biased = _with_alibi(q, k, scales, pattern, mask, tolerance)
    if biased is None:
        return None
    scale, slopes = biased
    slopes = slopes / 2 if facts_of(mixing.probe.config.model_type).eager_alibi_is_doubled else slopes
    return ScoreRule(scale=scale, alibi_slopes=slopes, window=window, missing="")


def _unbiased(
    q: Heads, k: Heads, rotaries: list[Rotary], scales: Sequence[float], softcap: float | None
) -> Iterator[tuple[ScoreRule, Float[Tensor, "head dst src"]]]:
    """Yield every formula without a position bias, with its scores; formulas with rotary positions come first."""
    where = torch.arange(q.shape[1], device=q.device)
    for rotary in [*rotaries, None]:
        rotated_q, rotated_k = (t if rotary is None else rotary.rotate(t, where) for t in (q, k))
        for scale in scales:
            scores = scale * rotated_q @ rotated_k.transpose(-1, -2)
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            yield ScoreRule(scale=scale, rotary=rotary, softcap=softcap, missing=""), scores


def _with_alibi(
    q: Heads,
    k: Heads,
    scales: Sequence[float],
    pattern: Float[Tensor, "head dst src"],
    mask: Float[Tensor, "dst src"],
    tolerance: float,
) -> tuple[float, Float[Tensor, " head"]] | None:
    """Return the scale and the ALiBi slope of each head that reproduce the pattern; None if there are none."""
    where = torch.arange(q.shape[1], device=q.device)
    for scale in scales:
        scores = scale * q @ k.transpose(-1, -2)
        left = pattern.double()[:, -1].log() - scores[:, -1]
        steps = left[:, 1:] - left[:, :-1]
        if bool(torch.isfinite(steps).all()) and float(steps.std(-1).max()) < max(1e-4, 100 * tolerance):
            slopes = steps.mean(-1)
            if relative((scores + slopes[:, None, None] * where + mask).softmax(-1), pattern) <= 10 * tolerance:
                return scale, slopes
    return None


def _score_error(
    scores: Float[Tensor, "head dst src"], pattern: Float[Tensor, "head dst src"], mask: Float[Tensor, "dst src"]
) -> float:
    """Return the relative error of scores against the logarithm of a pattern, after each row's mean is subtracted.

    Logarithms are compared because small scores make all patterns nearly uniform.
    """
    visible = ((mask == 0) & (pattern > 1e-4)).to(scores.dtype)
    n = visible.sum(dim=-1, keepdim=True).clamp_min(1)

    def centred(t: Tensor) -> Tensor:
        return (t - (t * visible).sum(dim=-1, keepdim=True) / n) * visible

    return relative(centred(scores), centred(pattern.double().clamp_min(1e-30).log()))


def _best(rules: list[tuple[float, ScoreRule]]) -> ScoreRule:
    """Return the first formula whose error is at most twice the smallest error.

    If a formula with another rotation, or with none, also has so small an error, the rotation is marked as uncertain.
    """
    least = min(error for error, _ in rules)
    close = [rule for error, rule in rules if error <= 2 * least + 1e-9]
    first = close[0]
    if first.rotary is not None and any(rule.rotary is not first.rotary for rule in close):
        return replace(first, rotary=replace(first.rotary, certain=False))
    return first


def _scales(module: nn.Module, d_head: int) -> list[float]:
    """Return the factors of q . k to try.

    They are the module's attributes, 1 / sqrt(d_head), 1, and 1 / (sqrt(d_head) * (layer + 1)), an option of GPT-2.
    """
    number = getattr(module, "layer_idx", None)
    by_layer = d_head**-0.5 / (1 if number is None else number + 1)
    named = (getattr(module, name, None) for name in ("scaling", "softmax_scale"))
    return [s for s in (*named, d_head**-0.5, 1.0, by_layer) if isinstance(s, float)]


def _rotaries(mixing: Mixing) -> list[Rotary]:
    """Return the rotary embeddings to try: from angles that the module receives, computes, or stores in a buffer."""
    config, calls = mixing.probe.config, mixing.probe.recording.calls
    in_buffer = facts_of(config.model_type).rotary_in_buffer
    own = calls.get(f"{mixing.path}.rotary_emb")  # RecurrentGemma's attention computes its angles itself
    angles = calls[mixing.path].rotary
    if angles is None and own is not None and own.returned is not None and len(own.others) == 1:
        angles = own.returned, own.others[0]
    if not getattr(mixing.module, "use_rope", True):
        angles = None  # SmolLM3 passes the angles to every layer, but some (`use_rope` False) ignore them
    return rotary_candidates(mixing.probe.hf, angles, getattr(config, "rotary_dim", None) if in_buffer else None)


def _window(mixing: Mixing) -> int | None:
    """Return the length of the sliding window that the config or the module states for this layer, in tokens."""
    number, config = int(mixing.block.rsplit(".", 1)[-1]), mixing.probe.config
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return getattr(config, "sliding_window", None) if "sliding" in kinds[number] else None
    local = getattr(config, "attention_layers", None)
    if local is not None:
        return config.window_size if local[number] == "local" else None
    if hasattr(mixing.module, "sliding_window"):
        window = mixing.module.sliding_window
        return window if isinstance(window, int) else None
    in_use = getattr(config, "use_sliding_window", True)
    return getattr(config, "sliding_window", None) if in_use else None


def _windows(mixing: Mixing, stated: int | None) -> list[int | None]:
    """Return the window lengths to try: the one stated for this layer, the config's `sliding_window`, and no window."""
    named = getattr(mixing.probe.config, "sliding_window", None)
    return list(dict.fromkeys((stated, named if isinstance(named, int) else None, None)))


def _qk_norms(mixing: Mixing) -> tuple[str, str] | None:
    """Return the names of the norms applied to queries and keys; None if the module called no such norms."""

    def called(name: str) -> bool:
        part = getattr(mixing.module, name)
        inside = () if part is None else (f"{mixing.path}.{name}.{sub}".rstrip(".") for sub, _ in part.named_modules())
        return any(path in mixing.probe.recording.calls for path in inside)

    return next((pair for pair in _QK_NORMS if hasattr(mixing.module, pair[0]) and called(pair[0])), None)


def _normed(mixing: Mixing, name: str, n_heads: int) -> Heads | None:
    """Return the recorded output of a query or key norm with an axis of heads; None if its shape is not recognised."""
    call = mixing.probe.recording.calls.get(f"{mixing.path}.{name}")
    if call is None or call.returned is None:
        return None
    pos, returned = mixing.probe.recording.tokens.shape[1], call.returned
    returned = returned[0] if returned.dim() > 2 and returned.shape[0] == 1 else returned
    if returned.dim() == 3 and returned.shape[:2] == (n_heads, pos):
        return returned
    if returned.dim() == 3 and returned.shape[:2] == (pos, n_heads):
        return returned.transpose(0, 1)
    return heads_of(returned, n_heads) if returned.dim() == 2 and returned.shape[0] == pos else None


def _rotation_before_norm(mixing: Mixing, name: str, q: Heads, rotaries: list[Rotary]) -> Rotary | None:
    """Return the rotary embedding that was applied to the queries before their norm; None if there was none."""
    given, plain = mixing.probe.recording.calls[f"{mixing.path}.{name}"].given, q.double()
    if given is None or given.shape[1:] != q.shape or relative(plain, given[0]) <= mixing.probe.tolerance:
        return None
    where = torch.arange(q.shape[1], device=q.device)
    return next((r for r in rotaries if relative(r.rotate(plain, where), given[0]) <= mixing.probe.tolerance), None)
