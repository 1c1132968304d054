"""Find the experts of an FFN, and check that coefficients times value vectors give the FFN's recorded output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from unembed.models.offload import parameter
from unembed.models.structure.exotic import EveryPosition, unusual_storages_of
from unembed.models.structure.expert_pass import observed
from unembed.models.structure.expert_storage import ExpertStorage, Stacked, stack_of
from unembed.models.structure.experts import Experts, RoutedCoefficients, SharedExpert
from unembed.models.structure.probe import Probe, flat, is_linear, relative
from unembed.results import format_error

_FACTORS = ("routed_scaling_factor", "moe_routed_scaling_factor", "route_scale")

Formula = Callable[
    [Probe, str, dict[str, tuple[nn.Module, Tensor | None]], Tensor],
    tuple[nn.Module | None, nn.Module | None, bool, str],
]
"""A function that finds how coefficients are computed. It returns the up-projection, the gate projection, whether the
gate is the first half of a fused weight, and the name of the activation (see `feed_forward`)."""


def find_experts(
    probe: Probe, ffn_path: str, raw: Tensor, formula: Formula, inner_norm: nn.Module | None
) -> Experts | str:
    """Return the experts of an FFN, or the reason why their memories cannot be read.

    Args:
        probe: the model and its recorded forward pass.
        raw: the FFN's output, before any norm between the FFN and the stream.
        formula: a function that finds the keys of a shared expert.
        inner_norm: the norm inside the FFN that computes its output, if there is one.
    """
    ffn = probe.hf.get_submodule(ffn_path)
    found = list(_storages_of(ffn, probe.d_model))
    if len(found) != 1:
        return f"the weights of the experts of {type(ffn).__name__} do not lie in one module"
    inside, storages = found[0]
    path = f"{ffn_path}.{inside}" if inside else ffn_path
    bias = parameter(ffn, "bias") if not inside else None
    target = raw.reshape(-1, raw.shape[-1])
    target = target if bias is None else target - bias.to(target.device)
    routed = target if not inside else flat(probe.recording.returned(path))
    if routed is None or routed.shape[-1] != target.shape[-1]:
        return f"the experts of {type(ffn).__name__} write in a separate space"
    if len(routed) != len(target):  # every expert processed all positions (Llama 4)
        routed = routed.view(-1, *target.shape).sum(0)
    shared, multiplier = _shared_expert(probe, ffn_path, path, target, routed, formula)
    d_model = target.shape[-1]
    common: dict[str, Any] = dict(
        d_model=d_model,
        multiplier=multiplier,
        shared=shared,
        router=_router(ffn, storages[0].n_experts, d_model),
        bias=None if bias is None else bias.detach(),
        inner_norm=inner_norm,
    )
    best = float("inf")
    for storage in storages:
        experts = Experts(storage, **common)
        error = _error(experts, ffn, probe.recording.calls[ffn_path].arguments, target)
        if error <= 10 * probe.tolerance:
            return experts
        best = min(best, error)
    if any(type(module).__module__.startswith("peft.") for module in ffn.modules()):
        kind = type(ffn).__name__
        return f"an adapter of PEFT changes the experts' weights in {kind}; merge it first (merge_and_unload)"
    return f"coefficients times values miss what {type(ffn).__name__} returns (relative error {format_error(best, 2)})"


def _storages_of(ffn: nn.Module, d_model: int) -> Iterator[tuple[str, list[ExpertStorage]]]:
    """Yield each module of an FFN that has expert weights: its path in the FFN, and the possible ways to read them."""
    for path, module in ffn.named_modules():
        down = stack_of(getattr(module, "down_proj", None))
        if down is None:
            yield from unusual_storages_of(ffn, path, module)
            continue
        is_transposed = getattr(module, "is_transposed", down.shape[2] == d_model and down.shape[1] != d_model)
        sizes = (module, down.shape[0], down.shape[1] if is_transposed else down.shape[2])
        form = (is_transposed, not getattr(module, "is_concatenated", True))
        if hasattr(module, "_apply_gate") or not isinstance(getattr(module, "gate_up_proj", None), Tensor):
            yield path, [Stacked(*sizes, *form, order) for order in ("sorted", "pairs", "slots")]
        else:
            yield path, [EveryPosition(*sizes, *form, "all")]


def _router(ffn: nn.Module, n_experts: int, d_model: int) -> nn.Module | None:
    for module in ffn.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.shape == (n_experts, d_model):
            return module
    return None


def _shared_expert(
    probe: Probe, ffn_path: str, experts_path: str, target: Tensor, routed: Tensor, formula: Formula
) -> tuple[SharedExpert | None, float]:
    """Return the shared expert (or None), and the factor by which the routed experts' sum is multiplied."""
    ffn = probe.hf.get_submodule(ffn_path)
    linear = {
        n: m for n, m in ffn.named_modules() if n and is_linear(m) and not f"{ffn_path}.{n}".startswith(experts_path)
    }
    returned = {n: flat(probe.recording.returned(f"{ffn_path}.{n}")) for n in linear}
    downs = [n for n, t in returned.items() if t is not None and t.shape == target.shape]
    gates = [n for n, t in returned.items() if t is not None and t.shape[-1] == 1]
    choices: list[tuple[float, str | None, str | None, list[float]]] = []
    for down in (None, *downs):
        for gate in (None, *gates) if down is not None else (None,):
            vectors = [routed]
            if down is not None:
                own = returned[down]
                assert own is not None
                by = returned[gate] if gate is not None else None
                vectors.append(own if by is None else own * torch.sigmoid(by))
            columns = torch.stack([v.double().flatten() for v in vectors], dim=1).cpu()
            goal = target.double().flatten().cpu()
            numbers = torch.linalg.lstsq(columns, goal[:, None]).solution[:, 0]
            choices.append((relative(columns @ numbers, goal), down, gate, numbers.tolist()))
    # A further term always makes the error of a fit a little smaller, so a shared expert is accepted only if the error
    # without it is at least 1.5 times as large.
    _, down, gate, numbers = min(choices, key=lambda c: c[0] * (1 + 0.5 * (c[1] is not None)))
    numbers = [_snapped(probe, n) for n in numbers]
    if down is None:
        return None, numbers[0]
    mlp = down.rpartition(".")[0]
    inner = flat(probe.recording.given(f"{ffn_path}.{down}"))
    assert inner is not None
    readers = {
        n.rpartition(".")[2]: (m, returned[n])
        for n, m in linear.items()
        if n not in (down, gate) and n.rpartition(".")[0] == mlp
    }
    up_proj, gate_proj, gate_first, _ = formula(probe, f"{ffn_path}.{mlp}", readers, inner)
    own_gate = None if gate is None else linear[gate]
    shared = SharedExpert(linear[down], up_proj, gate_proj, gate_first, own_gate, numbers[1], inner.shape[-1])
    return shared, numbers[0]


def _snapped(probe: Probe, number: float) -> float:
    """Return 1 or a factor in the config if a fitted value rounds to it, else the fitted value."""
    configured = [getattr(probe.config, name, None) for name in _FACTORS]
    known = [1.0, *(float(v) for v in configured if isinstance(v, int | float))]
    closest = min(known, key=lambda k: abs(k - number))
    return closest if abs(closest - number) <= max(100 * probe.tolerance, 1e-3) else number


def _error(
    experts: Experts, ffn: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], target: Tensor
) -> float:
    """Call the FFN again, and return the relative error of coefficients times value vectors against its output."""
    found: list[Tensor] = []

    def see(coefficients: RoutedCoefficients, _output: Tensor) -> None:
        found.append(coefficients.dense())

    try:
        with torch.no_grad(), observed(experts, ffn, see):
            args, kwargs = arguments  # routers also read token ids (DeepSeek-V4) or an earlier router's state (ZAYA)
            ffn(*args, **kwargs)
        total = found[0].double() @ experts.values().double()
    except (AttributeError, RuntimeError, IndexError, TypeError, AssertionError):
        return float("inf")
    return relative(total.to(target.device), target)
