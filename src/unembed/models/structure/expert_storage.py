"""Describe how one module stores the weights of its routed experts, and record their activations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unembed.models.offload import own

Pairs = tuple[Int[Tensor, " pair"], Int[Tensor, " pair"], Float[Tensor, " pair"]]
"""The expert, the position and the gate weight of each row of activations."""


@dataclass
class ExpertPass:
    """What was recorded in one forward pass through the experts: the router's choices, and the activations."""

    chosen: Tensor | None = None
    weights: Tensor | None = None
    activations: list[Tensor] = field(default_factory=list)
    pairs: Pairs | None = None
    """The expert, position and gate weight of each row of activations, if the router returns them itself (JetMoE)."""
    shared: Tensor | None = None
    shared_gate: Tensor | None = None

    def begin(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record, before the experts run, which experts the router chose and with which weights."""
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        self.activations.clear()
        self.chosen = next((t for t in tensors[1:] if not t.is_floating_point()), None)
        self.weights = next((t for t in tensors[1:] if t.is_floating_point()), None)

    def note(self, activation: Tensor) -> Tensor:
        """Record the input of a down-projection, and return it unchanged."""
        self.activations.append(activation)
        return activation


@dataclass(frozen=True, eq=False)
class ExpertStorage(ABC):
    """The weights of the routed experts of one FFN, as their module stores them."""

    module: nn.Module
    n_experts: int
    d_expert: int

    @property
    def is_gated(self) -> bool:
        """True if an expert's activation is act(gate) * up; False if it is act(up)."""
        return True

    @property
    def has_bias(self) -> bool:
        """True if the experts' down-projections have a bias."""
        return False

    @abstractmethod
    def values(self) -> Float[Tensor, "expert d_expert d_model"]:
        """Return the value vectors (rows of the down-projection); a view of the weight unless it is offloaded."""

    def value_biases(self) -> Float[Tensor, "expert d_model"] | None:
        """Return the biases of the experts' down-projections; None if they have none."""
        return None

    @abstractmethod
    def keys(self, which: str) -> Float[Tensor, "expert d_expert d_model"]:
        """Return the key vectors: those of the up-projection (`which="up"`) or of the gate projection ("gate")."""

    def key_biases(self, which: str) -> Float[Tensor, "expert d_expert"] | None:
        """Return the biases of the up-projection (`which="up"`) or gate projection ("gate"); None if it has none."""
        return None

    @abstractmethod
    def install(self, stack: ExitStack, current: ExpertPass) -> None:
        """Until `stack` is closed, record the activations and the router's choices of every pass in `current`."""

    @abstractmethod
    def pairs(self, current: ExpertPass, n_positions: int) -> tuple[Pairs, Float[Tensor, "pair d_expert"]]:
        """Return the recorded activations, and for each of their rows the expert, the position and the gate weight."""


@dataclass(frozen=True, eq=False)
class Stacked(ExpertStorage):
    """Expert weights stacked along the first axis, as in most of transformers (`gate_up_proj`, `down_proj`)."""

    is_transposed: bool
    """True if the rows of each expert's stored down-projection are value vectors; False if its columns are."""
    is_interleaved: bool
    """True if gate and up columns alternate in their common weight; False if all of one kind come before the other."""
    order: str
    """The order in which the experts' module computes the pairs of position and expert: see the function `ordered`."""

    @property
    def is_gated(self) -> bool:
        """True if an expert's activation is act(gate) * up; False if it is act(up)."""
        return isinstance(getattr(self.module, "gate_up_proj", None), Tensor)

    @property
    def has_bias(self) -> bool:
        """True if the experts' down-projections have a bias."""
        return isinstance(getattr(self.module, "down_proj_bias", None), Tensor)

    def values(self) -> Float[Tensor, "expert d_expert d_model"]:
        """Return the value vectors (rows of the down-projection); a view of the weight unless it is offloaded."""
        down = own(self.module, "down_proj")
        return down if self.is_transposed else down.transpose(1, 2)

    def value_biases(self) -> Float[Tensor, "expert d_model"] | None:
        """Return the biases of the experts' down-projections; None if they have none."""
        return own(self.module, "down_proj_bias") if self.has_bias else None

    def keys(self, which: str) -> Float[Tensor, "expert d_expert d_model"]:
        """Return the key vectors: those of the up-projection (`which="up"`) or of the gate projection ("gate")."""
        both = own(self.module, "gate_up_proj" if self.is_gated else "up_proj")
        return self._half(both.transpose(1, 2) if self.is_transposed else both, which)

    def key_biases(self, which: str) -> Float[Tensor, "expert d_expert"] | None:
        """Return the biases of the up-projection (`which="up"`) or gate projection ("gate"); None if it has none."""
        name = "gate_up_proj_bias" if self.is_gated else "up_proj_bias"
        return self._half(own(self.module, name), which) if self.has_bias else None

    def _half(self, both: Tensor, which: str) -> Tensor:
        """Return the "gate" half or the "up" half of a weight that contains both along its second axis."""
        if not self.is_gated:
            return both
        at = 0 if which == "gate" else 1
        if not self.is_interleaved:
            return both.chunk(2, dim=1)[at]
        return both.index_select(1, torch.arange(at, both.shape[1], 2, device=both.device))

    def install(self, stack: ExitStack, current: ExpertPass) -> None:
        """Until `stack` is closed, record the activations before the down-projection in every pass.

        transformers' "eager" and fused implementations do not expose these activations. Experts that use one of them
        compute with grouped matrix products until then (with batched ones in float64).
        """
        module: Any = self.module
        stack.callback(module.register_forward_pre_hook(current.begin, with_kwargs=True).remove)
        if self.is_gated:
            gate = module._apply_gate
            stack.enter_context(replaced(module, "_apply_gate", lambda x: current.note(gate(x))))
        else:
            stack.callback(module.act_fn.register_forward_hook(lambda _m, _a, out: current.note(out)).remove)
        stack.enter_context(_grouped(module))

    def pairs(self, current: ExpertPass, n_positions: int) -> tuple[Pairs, Float[Tensor, "pair d_expert"]]:
        """Return the recorded activations, and for each of their rows the expert, the position and the gate weight."""
        assert current.chosen is not None and current.weights is not None
        activation = torch.cat(current.activations) if len(current.activations) > 1 else current.activations[0]
        k = current.chosen.shape[-1]
        ids, weights = current.chosen.reshape(-1, k), current.weights.reshape(-1, k)
        implementation = getattr(getattr(self.module, "config", None), "_experts_implementation", None)
        order = "pairs" if self.order == "sorted" and implementation == "batched_mm" else self.order
        expert, position, slot = ordered(ids, order)
        weight = weights[position, slot].to(activation.dtype)
        if _repeats(ids):  # DeepSeek-V4's table of experts by token id may list one twice
            expert, position, weight, activation = _merged(expert, position, weight, activation)
        return (expert, position, weight), activation


def stack_of(weight: Any) -> Tensor | None:
    """Return the weight if it is a stack of matrices, else None."""
    return weight if isinstance(weight, Tensor) and weight.dim() == 3 and weight.is_floating_point() else None


@contextmanager
def replaced(module: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """A context in which one attribute of an object, such as a method, is replaced by a function."""
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
    """A context in which the experts use one of transformers' implementations whose activations can be recorded."""
    config = getattr(module, "config", None)
    before = getattr(config, "_experts_implementation", None)
    if config is None or before in (None, "grouped_mm", "batched_mm"):
        yield
        return
    # Grouped matrix products do not support float64, so batched ones are used instead.
    config._experts_implementation = "batched_mm" if module.down_proj.dtype == torch.float64 else "grouped_mm"
    try:
        yield
    finally:
        config._experts_implementation = before


def _repeats(chosen: Int[Tensor, "position k"]) -> bool:
    """Tell whether the router chose the same expert twice at one position.

    Comparing the few choices of a position is faster than sorting them.
    """
    slots = chosen.T.contiguous()
    return any(bool((slots[n + 1 :] == slots[n]).any()) for n in range(len(slots) - 1))


def _merged(
    expert: Int[Tensor, " pair"],
    position: Int[Tensor, " pair"],
    weight: Float[Tensor, " pair"],
    activation: Float[Tensor, "pair width"],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Merge rows with the same position and expert into one, whose gate weight is the sum of theirs."""
    keys = expert * (int(position.max()) + 1) + position
    _, inverse = keys.unique(return_inverse=True)
    order = torch.arange(len(keys), device=keys.device)
    first = torch.full_like(order[: int(inverse.max()) + 1], len(keys)).scatter_reduce(0, inverse, order, "amin")
    total = weight.new_zeros(len(first)).index_add_(0, inverse, weight)
    return expert[first], position[first], total, activation[first]


def ordered(chosen: Int[Tensor, "position k"], order: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each row of activations, its expert, its position, and the expert's rank among the choices there.

    `order` is "sorted" for experts as `torch.sort` orders them (transformers' grouped products), "pairs" for one
    position after another (its batched products), or "slots" for one expert after another and, within an expert, first
    choices before second ones (loops over experts).
    """
    n, k = chosen.shape
    if order == "slots":
        expert, at = chosen.T.reshape(-1).sort(stable=True)
        return expert, at % n, at // n
    flat_ids = chosen.reshape(-1)
    expert, at = (flat_ids, torch.arange(n * k, device=chosen.device)) if order == "pairs" else torch.sort(flat_ids)
    return expert, at // k, at % k
