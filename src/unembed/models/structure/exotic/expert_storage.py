"""The experts of Llama 4, DBRX and JetMoE, whose weights are stored or used in a way that only one family has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.offload import own
from unembed.models.structure.expert_storage import (
    ExpertPass,
    ExpertStorage,
    Pairs,
    Stacked,
    ordered,
    replaced,
    stack_of,
)


@dataclass(frozen=True, eq=False)
class EveryPosition(Stacked):
    """Stacked expert weights of Llama 4, in which every expert processes every position.

    The router's weight multiplies the expert's input, and is 0 where the expert was not chosen.
    """

    def install(self, stack: ExitStack, current: ExpertPass) -> None:
        """Replace the experts' `forward`, until `stack` is closed, by an equal one that also records activations."""
        module: Any = self.module

        def forward(hidden_states: Tensor) -> Tensor:
            x = hidden_states.view(module.gate_up_proj.shape[0], -1, module.gate_up_proj.shape[1])
            gate, up = torch.bmm(x, module.gate_up_proj).chunk(2, dim=-1)
            current.activations.clear()
            activation = current.note(up * module.act_fn(gate))
            return torch.bmm(activation, module.down_proj).view(-1, module.down_proj.shape[2])

        # To load offloaded weights, accelerate replaces `forward` by a wrapper that loads them and then calls
        # `_old_forward`. The wrapper must still run, so `_old_forward` is replaced in that case.
        stack.enter_context(replaced(module, "_old_forward" if hasattr(module, "_old_forward") else "forward", forward))

    def pairs(self, current: ExpertPass, n_positions: int) -> tuple[Pairs, Float[Tensor, "pair d_expert"]]:
        """Return the recorded activations, and for each of their rows the expert, the position and the gate weight.

        All gate weights are returned as 1, because Llama 4 has already multiplied the experts' inputs by them.
        """
        activation = current.activations[0].flatten(0, 1)
        numbers = torch.arange(len(activation), device=activation.device)
        chosen = activation.any(dim=1)  # an expert that was not chosen reads zeros
        expert, position = (numbers // n_positions)[chosen], (numbers % n_positions)[chosen]
        return (expert, position, activation.new_ones(len(expert))), activation[chosen]


@dataclass(frozen=True, eq=False)
class Concatenated(ExpertStorage):
    """Three matrices with the rows of all experts one after another: w1 (gates), v1 (keys) and w2 (values) (DBRX)."""

    def values(self) -> Float[Tensor, "expert d_expert d_model"]:
        """Return the value vectors (rows of the down-projection); a view of the weight unless it is offloaded."""
        return self._rows("w2")

    def keys(self, which: str) -> Float[Tensor, "expert d_expert d_model"]:
        """Return the key vectors: those of the up-projection (`which="up"`) or of the gate projection ("gate")."""
        return self._rows("w1" if which == "gate" else "v1")

    def _rows(self, name: str) -> Tensor:
        return own(self.module.get_submodule("mlp"), name).unflatten(0, (self.n_experts, self.d_expert))

    def install(self, stack: ExitStack, current: ExpertPass) -> None:
        """Replace the experts' `forward`, until `stack` is closed, by an equal one that also records activations."""
        glu: Any = self.module.get_submodule("mlp")

        def forward(x: Tensor, w1: Tensor, v1: Tensor, w2: Tensor) -> Tensor:
            return current.note(glu.activation_fn(x.matmul(w1.T)) * x.matmul(v1.T)).matmul(w2)

        stack.callback(self.module.register_forward_pre_hook(current.begin, with_kwargs=True).remove)
        stack.enter_context(replaced(glu, "forward", forward))

    def pairs(self, current: ExpertPass, n_positions: int) -> tuple[Pairs, Float[Tensor, "pair d_expert"]]:
        """Return the recorded activations, and for each of their rows the expert, the position and the gate weight."""
        assert current.chosen is not None and current.weights is not None
        expert, position, slot = ordered(current.chosen, "slots")
        return (expert, position, current.weights[position, slot]), torch.cat(current.activations)


@dataclass(frozen=True, eq=False)
class ParallelModules(ExpertStorage):
    """JetMoE's experts: a router and two modules with stacked weights.

    `input_linear` holds the gates, then the keys, of each expert; `output_linear` holds the values.
    """

    def values(self) -> Float[Tensor, "expert d_expert d_model"]:
        """Return the value vectors (rows of the down-projection); a view of the weight unless it is offloaded."""
        return own(self.module.get_submodule("output_linear")).transpose(1, 2)

    def keys(self, which: str) -> Float[Tensor, "expert d_expert d_model"]:
        """Return the key vectors: those of the up-projection (`which="up"`) or of the gate projection ("gate")."""
        both = own(self.module.get_submodule("input_linear"))
        return both.chunk(2, dim=1)[0 if which == "gate" else 1]

    def install(self, stack: ExitStack, current: ExpertPass) -> None:
        """Until `stack` is closed, record the router's output and the input of the down-projections."""

        def route(_module: nn.Module, _args: Any, output: Any) -> None:
            _, position, weight, counts, _ = output
            numbers = torch.arange(len(counts), device=position.device)
            current.pairs = torch.repeat_interleave(numbers, torch.tensor(counts).to(numbers)), position, weight

        def read(_module: nn.Module, args: Any) -> None:
            current.activations.clear()
            current.note(args[0])

        stack.callback(self.module.get_submodule("router").register_forward_hook(route).remove)
        stack.callback(self.module.get_submodule("output_linear").register_forward_pre_hook(read).remove)

    def pairs(self, current: ExpertPass, n_positions: int) -> tuple[Pairs, Float[Tensor, "pair d_expert"]]:
        """Return the recorded activations, and for each of their rows the expert, the position and the gate weight."""
        assert current.pairs is not None
        return current.pairs, current.activations[0]


def unusual_storages_of(ffn: nn.Module, path: str, module: nn.Module) -> Iterator[tuple[str, list[ExpertStorage]]]:
    """Yield the path of a module that has experts as in DBRX or JetMoE, and how it stores them."""
    w2, output = getattr(module, "w2", None), getattr(getattr(module, "output_linear", None), "weight", None)
    if isinstance(w2, Tensor) and w2.dim() == 2 and path.endswith("mlp"):
        outer = path.rpartition(".")[0]
        holder: Any = ffn.get_submodule(outer)
        yield outer, [Concatenated(holder, holder.num_experts, holder.ffn_hidden_size)]
    elif (stack := stack_of(output)) is not None and hasattr(module, "input_linear") and hasattr(module, "router"):
        yield path, [ParallelModules(module, stack.shape[0], stack.shape[2])]
