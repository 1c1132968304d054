"""A mixture of experts as memories: which numbers multiply which values, read out of the experts' own forward pass.

A routed expert adds `gate weight * down(activation)`, so the coefficient of its memory is gate weight times activation,
and 0 where the router did not choose the expert. A shared expert adds `down(activation)`, times a gate of its own where
it has one. The memories of a layer are numbered through: expert 0, expert 1, ..., then the shared expert's. Where an
expert's down-projection has a bias, the bias is the expert's last memory: its coefficient is the gate weight.

What was found is checked on the dry run: coefficients times values have to give what the FFN returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unembed.errors import Unsupported
from unembed.models.offload import parameter
from unembed.models.structure.dry_run import first_tensor
from unembed.models.structure.probe import Probe, flat, is_linear

_FACTORS = ("routed_scaling_factor", "moe_routed_scaling_factor", "route_scale")
_ORDERS = ("sorted", "pairs", "slots")


@dataclass(frozen=True, eq=False)
class RoutedCoefficients:
    """The coefficients of one layer in one pass, without the zeros of experts that were not chosen."""

    experts: Experts
    n_positions: int
    """Positions of the pass, batch and position flattened."""
    expert: Int[Tensor, " pair"]
    """The expert of each pair of a position and an expert that its router chose."""
    position: Int[Tensor, " pair"]
    weight: Float[Tensor, " pair"]
    """The gate weight."""
    activation: Float[Tensor, "pair width"]
    shared: Float[Tensor, "position shared"] | None
    """Coefficients of the shared expert."""

    @cached_property
    def routed(self) -> Float[Tensor, "pair memory"]:
        """Gate weight times activation, and the gate weight itself where experts have a bias."""
        m = self.activation * self.weight[:, None]
        return torch.cat([m, self.weight[:, None]], dim=1) if self.experts.has_bias else m

    def by_expert(self) -> Iterator[tuple[int, Int[Tensor, " some"], Float[Tensor, "some memory"]]]:
        """For each expert that was chosen, and the shared one: its first memory, the positions, the coefficients."""
        expert, position, m = self.expert, self.position, self.routed
        if len(expert) > 1 and bool((expert[1:] < expert[:-1]).any()):
            expert, order = expert.sort(stable=True)
            position, m = position[order], m[order]
        chosen, counts = expert.unique_consecutive(return_counts=True)
        sizes = counts.tolist()
        for e, where, own in zip(chosen.tolist(), position.split(sizes), m.split(sizes), strict=True):
            yield e * self.experts.width, where, own
        if self.shared is not None:
            yield self.experts.n_routed, torch.arange(self.n_positions, device=m.device), self.shared

    def dense(self) -> Float[Tensor, "position memory"]:
        """All memories of the layer, 0 where an expert was not chosen.

        Memory: positions times memories.
        """
        experts = self.experts
        m = self.activation.new_zeros(self.n_positions, experts.n_memories)
        routed = m[:, : experts.n_routed].view(self.n_positions, experts.n_experts, experts.width)
        routed[self.position, self.expert] = self.routed
        if self.shared is not None:
            m[:, experts.n_routed :] = self.shared
        return m

    def columns(self, numbers: Sequence[int]) -> Float[Tensor, "position some"]:
        """Some memories of the layer, by their numbers in it."""
        experts = self.experts
        m = self.activation.new_zeros(self.n_positions, len(numbers))
        for column, number in enumerate(numbers):
            expert, index = experts.expert_of(number)
            if expert is None:
                assert self.shared is not None
                m[:, column] = self.shared[:, index]
                continue
            pairs = (self.expert == expert).nonzero()[:, 0]
            own = self.weight[pairs]
            if index < experts.d_expert:
                own = own * self.activation[pairs, index]
            m[self.position[pairs], column] = own
        return m

    def gate_weights(self) -> Float[Tensor, "position expert"]:
        """The gate weight of every routed expert, 0 where it was not chosen."""
        weights = self.weight.new_zeros(self.n_positions, self.experts.n_experts)
        weights[self.position, self.expert] = self.weight
        return weights


@dataclass(frozen=True, eq=False)
class SharedExpert:
    """An expert that reads every position."""

    down_proj: nn.Module
    up_proj: nn.Module | None
    """None where what the down-projection receives has no known formula."""
    gate_proj: nn.Module | None
    """The same module as `up_proj` when both are fused in one weight."""
    gate_first: bool
    gate: nn.Module | None
    """The projection to one number whose sigmoid multiplies the expert's output; None where nothing does."""
    multiplier: float
    width: int

    def keys(self, which: str) -> Float[Tensor, "d_model memory"]:
        """The keys ("up") or gates ("gate"), as columns.

        Raises:
            Unsupported: there is no formula for the coefficients.
        """
        module = self.gate_proj if which == "gate" else self.up_proj
        own = None if module is None else parameter(module)
        if own is None:
            raise Unsupported(
                "the keys of a shared expert",
                why="what its down-projection receives has no known formula",
                instead="Values, coefficients and sub-updates work",
            )
        columns = own.detach().T
        if self.gate_proj is not self.up_proj:
            return columns
        return columns.chunk(2, dim=1)[int((which == "gate") != self.gate_first)]


@dataclass(frozen=True, eq=False)
class Experts:
    """The experts of one FFN."""

    module: nn.Module
    """Holds the experts' weights, stacked along the first axis."""
    n_experts: int
    d_expert: int
    d_model: int
    has_bias: bool
    is_gated: bool
    is_transposed: bool
    """True where values are the rows of each expert's down-projection as it is stored."""
    is_interleaved: bool
    """True where gate and up alternate along the width of their common weight, instead of standing side by side."""
    multiplier: float
    """What the sum of the routed experts is multiplied by."""
    order: str
    """The order in which the pairs of position and expert are computed; "all" where every expert reads all positions,
    scaled by the gate weight before the activation (Llama 4)."""
    shared: SharedExpert | None
    router: nn.Module | None
    """The module whose `weight` holds one direction for each expert."""

    @property
    def width(self) -> int:
        """Memories of one routed expert: its activations, and its bias where it has one."""
        return self.d_expert + self.has_bias

    @property
    def n_routed(self) -> int:
        """Memories of all routed experts."""
        return self.n_experts * self.width

    @property
    def n_memories(self) -> int:
        """Memories of the layer."""
        return self.n_routed + (0 if self.shared is None else self.shared.width)

    @torch.no_grad()
    def values(self, rows: slice | Tensor = slice(None)) -> Float[Tensor, "memory d_model"]:
        """The values of memories, by their numbers in the layer; copies. Memory: the result."""
        down, bias = self._stacked("down_proj"), self._stacked("down_proj_bias") if self.has_bias else None
        assert down is not None
        by_memory = down if self.is_transposed else down.transpose(1, 2)
        if isinstance(rows, slice) and rows == slice(None):
            parts = [by_memory] if bias is None else [by_memory, bias[:, None]]
            routed = torch.cat(parts, dim=1).reshape(self.n_routed, -1)
            return routed if self.shared is None else torch.cat([routed, self._shared_values()])
        rows = torch.arange(self.n_memories)[rows] if isinstance(rows, slice) else rows
        rows = rows.to(down.device)
        found = down.new_empty(len(rows), self.d_model)
        is_routed = rows < self.n_routed
        expert, index = rows[is_routed] // self.width, rows[is_routed] % self.width
        own = by_memory[expert, index.clamp_max(self.d_expert - 1)]
        if bias is not None:
            own = torch.where((index == self.d_expert)[:, None], bias[expert], own)
        found[is_routed] = own
        if self.shared is not None and not bool(is_routed.all()):
            found[~is_routed] = self._shared_values()[rows[~is_routed] - self.n_routed]
        return found

    @torch.no_grad()
    def keys(self, which: str) -> Float[Tensor, "d_model memory"]:
        """The keys ("up") or gates ("gate") of all memories, as columns; those of biases are 0. Copies."""
        name = "gate_up_proj" if self.is_gated else "up_proj"
        both = self._stacked(name)
        assert both is not None
        by_key = both.transpose(1, 2) if self.is_transposed else both  # (expert, key, d_model)
        keys = self._half(by_key, which, 1)
        if self.has_bias:
            keys = torch.cat([keys, torch.zeros_like(keys[:, :1])], dim=1)
        routed = keys.reshape(self.n_routed, -1).T
        if self.shared is None:
            return routed
        return torch.cat([routed, self.shared.keys(which)], dim=1)

    @torch.no_grad()
    def key_biases(self, which: str) -> Float[Tensor, " memory"] | None:
        """The biases of the keys or gates; None where experts have none."""
        both = self._stacked("gate_up_proj_bias" if self.is_gated else "up_proj_bias") if self.has_bias else None
        if both is None:
            return None
        own = self._half(both, which, 1)
        routed = torch.cat([own, torch.zeros_like(own[:, :1])], dim=1).flatten()
        return routed if self.shared is None else torch.cat([routed, routed.new_zeros(self.shared.width)])

    def _half(self, both: Tensor, which: str, axis: int) -> Tensor:
        """The gate's or the up branch's part of a stacked weight whose `axis` runs over keys."""
        if not self.is_gated:
            return both
        at = 0 if which == "gate" else 1
        if not self.is_interleaved:
            return both.chunk(2, dim=axis)[at]
        return both.index_select(axis, torch.arange(at, both.shape[axis], 2, device=both.device))

    def _stacked(self, name: str) -> Tensor | None:
        own = parameter(self.module, name)
        return None if own is None else own.detach()

    def _shared_values(self) -> Tensor:
        assert self.shared is not None
        own = parameter(self.shared.down_proj)
        assert own is not None
        return own.detach().T

    def number(self, expert: int | None, index: int) -> int:
        """The number in the layer of a memory of an expert, or of the shared one (None)."""
        return self.n_routed + index if expert is None else expert * self.width + index

    def expert_of(self, number: int) -> tuple[int | None, int]:
        """The expert (None: the shared one) and the index in it of a memory's number in the layer."""
        return (None, number - self.n_routed) if number >= self.n_routed else divmod(number, self.width)


@dataclass
class _Pass:
    """What one pass through the experts has shown so far."""

    chosen: Tensor | None = None
    weights: Tensor | None = None
    activations: list[Tensor] = field(default_factory=list)
    shared: Tensor | None = None
    shared_gate: Tensor | None = None


@contextmanager
def observed(
    experts: Experts, ffn: nn.Module, see: Callable[[RoutedCoefficients, Tensor], Tensor | None]
) -> Iterator[None]:
    """While inside, `see` is called after every pass of the FFN with its coefficients and its output.

    The model's own forward runs; its activations are read between activation and down-projection. Experts whose
    implementation leaves no such place ("eager" and fused kernels) run as grouped products meanwhile.

    Args:
        experts: of the FFN.
        ffn: the module that returns what the experts add together.
        see: may return another output.
    """
    current = _Pass()

    def begin(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        current.activations.clear()
        current.chosen = next((t for t in tensors[1:] if not t.is_floating_point()), None)
        current.weights = next((t for t in tensors[1:] if t.is_floating_point()), None)

    def finish(_module: nn.Module, _args: Any, output: Any) -> Any:
        written = first_tensor(output)
        assert written is not None
        changed = see(_coefficients(experts, current, written), written)
        if changed is None:
            return None
        return changed if isinstance(output, Tensor) else (changed, *output[1:])

    with ExitStack() as stack:
        module: Any = experts.module
        stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
        if experts.order == "all":
            stack.enter_context(_replaced(module, "forward", _all_experts(module, current)))
        elif experts.is_gated:
            gate = module._apply_gate
            stack.enter_context(_replaced(module, "_apply_gate", lambda x: _noted(current, gate(x))))
        else:
            stack.callback(module.act_fn.register_forward_hook(lambda _m, _a, out: _noted(current, out)).remove)
        stack.enter_context(_grouped(module))
        if experts.shared is not None:
            down, own_gate = experts.shared.down_proj, experts.shared.gate
            stack.callback(down.register_forward_pre_hook(lambda _m, a: setattr(current, "shared", a[0])).remove)
            if own_gate is not None:
                hook = own_gate.register_forward_hook(lambda _m, _a, out: setattr(current, "shared_gate", out))
                stack.callback(hook.remove)
        stack.callback(ffn.register_forward_hook(finish).remove)
        yield


def _noted(current: _Pass, activation: Tensor) -> Tensor:
    current.activations.append(activation)
    return activation


def _all_experts(module: Any, current: _Pass) -> Callable[[Tensor], Tensor]:
    """The forward of experts that all read every position, as the class writes it, noting the activations."""

    def forward(hidden_states: Tensor) -> Tensor:
        x = hidden_states.view(module.gate_up_proj.shape[0], -1, module.gate_up_proj.shape[1])
        gate, up = torch.bmm(x, module.gate_up_proj).chunk(2, dim=-1)
        activation = _noted(current, up * module.act_fn(gate))
        return torch.bmm(activation, module.down_proj).view(-1, module.down_proj.shape[2])

    return forward


@contextmanager
def _replaced(module: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """The method of one instance replaced."""
    before = vars(module).get(name)
    setattr(module, name, function)
    try:
        yield
    finally:
        if before is None:
            delattr(module, name)
        else:
            setattr(module, name, before)


@contextmanager
def _grouped(module: Any) -> Iterator[None]:
    """An implementation of the experts whose activations can be read."""
    config = getattr(module, "config", None)
    before = getattr(config, "_experts_implementation", None)
    if config is None or before in (None, "grouped_mm", "batched_mm"):
        yield
        return
    config._experts_implementation = "grouped_mm"
    try:
        yield
    finally:
        config._experts_implementation = before


def _coefficients(experts: Experts, current: _Pass, written: Tensor) -> RoutedCoefficients:
    n = written.numel() // written.shape[-1]
    activation = torch.cat(current.activations) if len(current.activations) > 1 else current.activations[0]
    if experts.order == "all":
        activation = activation.flatten(0, 1)
        numbers = torch.arange(len(activation), device=activation.device)
        expert, position = numbers // n, numbers % n
        chosen = activation.any(dim=1)  # an expert that was not chosen reads zeros
        expert, position, activation = expert[chosen], position[chosen], activation[chosen]
        weight = activation.new_full((len(activation),), experts.multiplier)
    else:
        assert current.chosen is not None and current.weights is not None
        k = current.chosen.shape[-1]
        ids, weights = current.chosen.reshape(-1, k), current.weights.reshape(-1, k)
        implementation = getattr(getattr(experts.module, "config", None), "_experts_implementation", None)
        order = "pairs" if experts.order == "sorted" and implementation == "batched_mm" else experts.order
        expert, position, slot = _pairs(ids, order)
        weight = weights[position, slot].to(activation.dtype)
        weight = weight if experts.multiplier == 1.0 else weight * experts.multiplier
        ordered = ids.sort(dim=1).values
        if bool((ordered[:, 1:] == ordered[:, :-1]).any()):  # a table of hashes may name an expert twice (DeepSeek-V4)
            expert, position, weight, activation = _merged(expert, position, weight, activation)
    shared = None
    if experts.shared is not None:
        assert current.shared is not None
        shared = current.shared.reshape(n, -1)
        if current.shared_gate is not None:
            shared = shared * torch.sigmoid(current.shared_gate.reshape(n, 1))
        shared = shared if experts.shared.multiplier == 1.0 else shared * experts.shared.multiplier
    current.activations.clear()
    return RoutedCoefficients(experts, n, expert, position, weight, activation, shared)


def _merged(
    expert: Int[Tensor, " pair"],
    position: Int[Tensor, " pair"],
    weight: Float[Tensor, " pair"],
    activation: Float[Tensor, "pair width"],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs of the same position and expert as one, with the sum of their gate weights."""
    keys = expert * (int(position.max()) + 1) + position
    _, inverse = keys.unique(return_inverse=True)
    order = torch.arange(len(keys), device=keys.device)
    first = torch.full_like(order[: int(inverse.max()) + 1], len(keys)).scatter_reduce(0, inverse, order, "amin")
    total = weight.new_zeros(len(first)).index_add_(0, inverse, weight)
    return expert[first], position[first], total, activation[first]


def _pairs(chosen: Int[Tensor, "position k"], order: str) -> tuple[Tensor, Tensor, Tensor]:
    """The expert, position and slot of each row of activations.

    "sorted": as `torch.sort` orders the experts of all pairs (transformers' grouped products). "pairs": position by
    position (its batched products). "slots": by expert, within it first choices before second ones (loops over
    experts).
    """
    n, k = chosen.shape
    if order == "slots":
        expert, at = chosen.T.reshape(-1).sort(stable=True)
        return expert, at % n, at // n
    flat_ids = chosen.reshape(-1)
    expert, at = (flat_ids, torch.arange(n * k, device=chosen.device)) if order == "pairs" else torch.sort(flat_ids)
    return expert, at // k, at % k


Formula = Callable[
    [Probe, str, dict[str, tuple[nn.Module, Tensor | None]], Tensor],
    tuple[nn.Module | None, nn.Module | None, bool, str],
]
"""Which readers make a coefficient (`feed_forward`): up, gate, whether the gate is the first half, and how."""


def find_experts(probe: Probe, ffn_path: str, raw: Tensor, read: Tensor, formula: Formula) -> Experts | str:
    """The experts of an FFN, or why their memories cannot be given.

    Args:
        probe: the model and its dry run.
        ffn_path: the FFN.
        raw: what it returned, before any norm on its branch.
        read: what it was given.
        formula: finds the keys of a shared expert.
    """
    ffn = probe.hf.get_submodule(ffn_path)
    paths = [n for n, m in ffn.named_modules() if n and _is_stacked(m)]
    if len(paths) != 1:
        return f"{type(ffn).__name__} does not hold its experts' weights stacked in one module"
    path = f"{ffn_path}.{paths[0]}"
    module: Any = ffn.get_submodule(paths[0])
    target = raw.reshape(-1, raw.shape[-1])
    routed = flat(probe.recording.returned(path))
    if routed is None or routed.shape[-1] != target.shape[-1]:
        return f"the experts of {type(ffn).__name__} write in a space of their own"
    if len(routed) != len(target):  # every expert on all positions
        routed = routed.view(-1, *target.shape).sum(0)
    shared, multiplier = _shared_expert(probe, ffn_path, path, target, routed, formula)
    is_gated = isinstance(getattr(module, "gate_up_proj", None), Tensor)
    down = module.down_proj
    d_model = target.shape[-1]
    is_transposed = getattr(module, "is_transposed", down.shape[2] == d_model and down.shape[1] != d_model)
    common: dict[str, Any] = dict(
        module=module,
        n_experts=down.shape[0],
        d_expert=down.shape[1] if is_transposed else down.shape[2],
        d_model=d_model,
        has_bias=isinstance(getattr(module, "down_proj_bias", None), Tensor),
        is_gated=is_gated,
        is_transposed=is_transposed,
        is_interleaved=not getattr(module, "is_concatenated", True),
        multiplier=multiplier,
        shared=shared,
        router=_router(ffn, down.shape[0], d_model),
    )
    orders = _ORDERS if hasattr(module, "_apply_gate") or not is_gated else ("all",)
    best = float("inf")
    for order in orders:
        experts = Experts(order=order, **common)
        error = _error(experts, ffn, probe.recording.calls[ffn_path].arguments, target)
        if error <= 10 * probe.tolerance:
            return experts
        best = min(best, error)
    return f"coefficients times values miss what {type(ffn).__name__} returns (relative error {best:.1e})"


def _is_stacked(module: nn.Module) -> bool:
    down = getattr(module, "down_proj", None)
    return isinstance(down, Tensor) and down.dim() == 3 and down.is_floating_point()


def _router(ffn: nn.Module, n_experts: int, d_model: int) -> nn.Module | None:
    for module in ffn.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.shape == (n_experts, d_model):
            return module
    return None


def _shared_expert(
    probe: Probe, ffn_path: str, experts_path: str, target: Tensor, routed: Tensor, formula: Formula
) -> tuple[SharedExpert | None, float]:
    """The expert that reads every position, if there is one, and what the routed experts' sum is multiplied by."""
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
            error = float((columns @ numbers - goal).norm() / goal.norm().clamp_min(1e-30))
            choices.append((error, down, gate, numbers.tolist()))
    error, down, gate, numbers = min(choices, key=lambda c: c[0] * (1 + 0.5 * (c[1] is not None)))
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
    """A fitted number replaced by 1 or a configured factor where it is a rounding of it."""
    configured = [getattr(probe.config, name, None) for name in _FACTORS]
    known = [1.0, *(float(v) for v in configured if isinstance(v, int | float))]
    closest = min(known, key=lambda k: abs(k - number))
    return closest if abs(closest - number) <= max(100 * probe.tolerance, 1e-3) else number


def _error(
    experts: Experts, ffn: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], target: Tensor
) -> float:
    """How far coefficients times values are from what the FFN returns, called again as in the dry run."""
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
    return float((total.to(target.device) - target.double()).norm() / target.double().norm().clamp_min(1e-30))
