"""Find a module whose output is an attention's values, where queries, keys and values have no standard layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.structure.attention_layout import Mixing
from unembed.models.structure.probe import factor_of, relative
from unembed.models.structure.structure import ValueSource

_FORMS = ("heads", "latent", "qkv_blocks", "head_axis", "head_axis_first", "halves")
_GATES = (torch.sigmoid, torch.nn.functional.silu, torch.nn.functional.softplus, lambda t: 2 * torch.sigmoid(t))

Output = tuple[nn.Module, int, Tensor]
"""A module, a tensor that it returned, and the index of that tensor among all that it returned."""


def find_values(
    mixing: Mixing, outputs: Sequence[Output], norms: Sequence[tuple[Tensor, Tensor]], tolerance: float
) -> ValueSource | None:
    """Return which module's output, mixed by the attention pattern, gives z (the input of the out-projection).

    A constant factor, a norm or a gate may come between the mixed values and z.

    Args:
        mixing: the attention in the recorded forward pass, with its pattern and z.
        outputs: the outputs of the modules inside the attention.
        norms: the input and output of each norm inside the attention, each (1, pos, ...).
        tolerance: the largest relative error.
    """
    mixed = list(_mixed(mixing, outputs))
    found = _ungated(mixing, mixed, norms, tolerance)
    return _gated(mixing, mixed, outputs, tolerance) if found is None else found


def _mixed(mixing: Mixing, outputs: Sequence[Output]) -> Iterator[tuple[ValueSource, Float[Tensor, "pos width"]]]:
    """Yield each way to read an output as values, with the attention pattern times these values."""
    assert mixing.pattern is not None
    n_heads, pos = mixing.pattern.shape[:2]
    for module, item, out in outputs:
        for form in _FORMS:
            for n_kv in (k for k in range(1, n_heads + 1) if n_heads % k == 0):
                source = ValueSource(module, form, n_heads, n_kv, mixing.d_head, 1.0, None, "", item)
                if _fits(source, out, pos):
                    values = source.split(out)[0].repeat_interleave(n_heads // n_kv, 0)
                    yield source, (mixing.pattern.to(values.dtype) @ values).transpose(0, 1).reshape(pos, -1)


def _ungated(
    mixing: Mixing,
    mixed: Sequence[tuple[ValueSource, Tensor]],
    norms: Sequence[tuple[Tensor, Tensor]],
    tolerance: float,
) -> ValueSource | None:
    """Return the values that give z, the out-projection's input, without a gate.

    Their mixture (pattern times values) is a multiple of z, or of the input of a norm whose output is a multiple of z.
    """
    z = mixing.z
    assert z is not None
    alike = [(g.reshape(z.shape), out.reshape(z.shape)) for g, out in norms if g.numel() == out.numel() == z.numel()]
    goals = [(g, "norm") for g, out in alike if relative(factor_of(out, z) * out, z) <= tolerance / 10]
    # A norm before z is tried first, and "no norm" last: where the norm's scale varies little, its input and output are
    # nearly proportional, so "no norm" would fit too, by mistake.
    for goal, normed in (*goals, (z, "")):
        for source, total in mixed:
            factor = factor_of(total, goal)
            if relative(factor * total, goal) <= tolerance:
                return replace(source, factor=1.0 if abs(factor - 1) <= tolerance else factor, gate=normed)
    return None


def _gated(
    mixing: Mixing, mixed: Sequence[tuple[ValueSource, Tensor]], outputs: Sequence[Output], tolerance: float
) -> ValueSource | None:
    """Return the values whose mixture (pattern times values) times a gate is z.

    The gate has one factor for each position and head, or one for each position and channel.
    """
    z, n_heads, d_head = mixing.z, mixing.n_heads, mixing.d_head
    assert z is not None
    gates = list(_gate_candidates(outputs, n_heads, d_head, len(z)))
    for source, total in mixed:
        # A gate with one number for each head and position need not be the output of a module: with an attention sink,
        # for instance, it is the share of attention that the sink leaves to the tokens. So the number is fitted to z,
        # and accepted if it fits all channels.
        by_head, goal = (t.double().view(-1, n_heads, d_head) for t in (total, z))
        per_head = (by_head * goal).sum(-1, keepdim=True) / by_head.square().sum(-1, keepdim=True).clamp_min(1e-30)
        if relative(per_head * by_head, goal) <= tolerance:
            return replace(source, gate="head")
        if any(relative(total * g, z) <= tolerance for g in gates):
            return replace(source, gate="channel")
    return None


def _fits(source: ValueSource, out: Tensor, pos: int) -> bool:
    kv, d, n = source.n_kv_heads, source.d_head, source.n_heads
    if source.form == "head_axis":
        return out.shape == (1, pos, kv, d)
    if source.form == "head_axis_first":
        return out.shape == (1, kv, pos, d)
    if out.dim() == 4 and out.shape[1] == 1:
        out = out.squeeze(1)
    if out.dim() != 3 or out.shape[:2] != (1, pos):
        return False
    width = out.shape[-1]
    if source.form == "latent":
        return kv == n and width % n == 0 and width // n > d
    if source.form == "halves":
        return width == kv * d and d % 2 == 0
    return width == kv * d if source.form == "heads" else kv == n and n % 4 == 0 and width == 3 * n * d


def _gate_candidates(
    outputs: Sequence[Output], n_heads: int, d_head: int, pos: int
) -> Iterator[Float[Tensor, "pos width"]]:
    """Yield every projection output that could be a gate of z (per channel or head), after each activation function."""
    for _, _, out in outputs:
        if out.dim() != 3 or out.shape[:2] != (1, pos):
            continue
        t, raw = out[0], []
        if t.shape[-1] == n_heads * d_head:
            raw.append(t)
        elif t.shape[-1] == n_heads:
            raw.append(t.repeat_interleave(d_head, -1))
        elif t.shape[-1] > 2 * n_heads * d_head and t.shape[-1] % n_heads == 0:  # each head's slice ends with its gate
            raw.append(t.view(pos, n_heads, -1)[..., -d_head:].reshape(pos, -1))
        elif t.shape[-1] == 2 * n_heads * d_head:  # the gate is the second half: of each head's slice, or of all
            raw += [t.view(pos, n_heads, 2, d_head)[:, :, 1].reshape(pos, -1), t[:, n_heads * d_head :]]
        for gate in raw:
            yield from (activation(gate) for activation in _GATES)
