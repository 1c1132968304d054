"""Treat a mixture of experts as memories (FFN neurons): which coefficient multiplies which value vector.

A routed expert adds `gate weight * down(activation)`, so the coefficient of its memory is the gate weight times the
activation, and 0 where the router did not choose the expert. A shared expert adds `down(activation)`, times its own
gate if it has one. The memories of a layer are numbered consecutively: expert 0, expert 1, ..., then the shared expert.
If an expert's down-projection has a bias, the bias is the expert's last memory, whose coefficient is the gate weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unembed.errors import Unsupported
from unembed.models.offload import own
from unembed.models.structure.expert_storage import ExpertStorage


@dataclass(frozen=True, eq=False)
class RoutedCoefficients:
    """The memory coefficients of one layer in one forward pass, only for the experts that the router chose."""

    experts: Experts
    n_positions: int
    """Number of positions of the forward pass, all prompts of the batch together."""
    expert: Int[Tensor, " pair"]
    """The expert of each pair: one pair for each position and each expert that the router chose there."""
    position: Int[Tensor, " pair"]
    weight: Float[Tensor, " pair"]
    activation: Float[Tensor, "pair width"]
    shared: Float[Tensor, "position shared"] | None
    """Coefficients of the shared expert."""

    def to(self, device: torch.device) -> RoutedCoefficients:
        """Return a copy on another device, or the object itself if it is already there."""
        if self.activation.device == device:
            return self
        return replace(
            self,
            expert=self.expert.to(device),
            position=self.position.to(device),
            weight=self.weight.to(device),
            activation=self.activation.to(device),
            shared=None if self.shared is None else self.shared.to(device),
        )

    @cached_property
    def routed(self) -> Float[Tensor, "pair memory"]:
        """Gate weight times activation; if experts have a bias, the last column is the gate weight itself."""
        m = self.activation * self.weight[:, None]
        return torch.cat([m, self.weight[:, None]], dim=1) if self.experts.has_bias else m

    def parts(self) -> Iterator[tuple[Int[Tensor, " row"], Int[Tensor, " row"], Float[Tensor, "row memory"]]]:
        """Yield three tensors for the routed experts, then three for the shared expert if there is one.

        They have one row for each pair of an expert and a position that uses it: the number of the expert's first
        memory in the layer, the position, and the coefficients of the expert's memories. Rows are sorted by expert.
        """
        expert, position, m = self.expert, self.position, self.routed
        if len(expert) > 1 and bool((expert[1:] < expert[:-1]).any()):
            expert, order = expert.sort(stable=True)
            position, m = position[order], m[order]
        yield expert * self.experts.width, position, m
        if self.shared is not None:
            everywhere = torch.arange(self.n_positions, device=m.device)
            yield torch.full_like(everywhere, self.experts.n_routed), everywhere, self.shared

    def by_expert(self) -> Iterator[tuple[int, Int[Tensor, " some"], Float[Tensor, "some memory"]]]:
        """Yield the number of the first memory, the positions and the coefficients of each expert that was used.

        The shared expert, if there is one, comes last, with all positions.
        """
        for first, position, m in self.parts():
            starts, counts = first.unique_consecutive(return_counts=True)
            sizes = counts.tolist()
            yield from zip(starts.tolist(), position.split(sizes), m.split(sizes), strict=True)

    def dense(self) -> Float[Tensor, "position memory"]:
        """Return the coefficients of all memories of the layer, 0 where an expert was not chosen.

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
        """Return the coefficients of the memories with these numbers in the layer."""
        experts = self.experts
        m = self.activation.new_zeros(self.n_positions, len(numbers))
        for column, number in enumerate(numbers):
            expert, index = experts.expert_of(number)
            if expert is None:
                assert self.shared is not None
                m[:, column] = self.shared[:, index]
                continue
            pairs = (self.expert == expert).nonzero()[:, 0]
            coefficients = self.weight[pairs]
            if index < experts.d_expert:
                coefficients = coefficients * self.activation[pairs, index]
            m[self.position[pairs], column] = coefficients
        return m

    def gate_weights(self) -> Float[Tensor, "position expert"]:
        """Return the gate weight of every routed expert at every position, 0 where it was not chosen."""
        weights = self.weight.new_zeros(self.n_positions, self.experts.n_experts)
        weights[self.position, self.expert] = self.weight
        return weights


@dataclass(frozen=True, eq=False)
class SharedExpert:
    """An expert that processes every position; the router does not choose it."""

    down_proj: nn.Module
    up_proj: nn.Module | None
    """The up-projection; None if no known formula gives the input of the down-projection."""
    gate_proj: nn.Module | None
    """The gate projection, or None; the same module as `up_proj` if both are fused in one weight."""
    gate_first: bool
    gate: nn.Module | None
    """The projection to one number whose sigmoid multiplies the expert's output; None if there is no such factor."""
    multiplier: float
    width: int

    def keys(self, which: str) -> Float[Tensor, "d_model memory"]:
        """Return the key vectors as columns: of the up-projection (`which="up"`) or of the gate projection ("gate").

        Raises:
            Unsupported: the keys were not found, because no known formula gives the coefficients.
        """
        module = self.gate_proj if which == "gate" else self.up_proj
        if module is None:
            raise Unsupported(
                "the keys of a shared expert",
                why="the input of its down-projection follows no known formula",
                instead="Use values, coefficients or sub-updates, which work",
            )
        columns = own(module).T
        if self.gate_proj is not self.up_proj:
            return columns
        return columns.chunk(2, dim=1)[int((which == "gate") != self.gate_first)]


@dataclass(frozen=True, eq=False)
class Experts:
    """The experts of one FFN: the routed experts, the shared one if there is one, and the router."""

    storage: ExpertStorage
    """How the weights of the routed experts are stored."""
    d_model: int
    multiplier: float
    """Factor by which the sum of the routed experts' outputs is multiplied."""
    shared: SharedExpert | None
    router: nn.Module | None
    """The module whose `weight` holds one direction for each expert."""
    bias: Float[Tensor, " d_model"] | None = None
    """A bias that the FFN adds at every position (JetMoE)."""
    inner_norm: nn.Module | None = None
    """The norm inside the FFN that is applied to the sum of the experts' outputs (AXK1)."""

    @property
    def n_experts(self) -> int:
        """The number of routed experts."""
        return self.storage.n_experts

    @property
    def d_expert(self) -> int:
        """The hidden size of one routed expert: the number of its activations."""
        return self.storage.d_expert

    @property
    def has_bias(self) -> bool:
        """True if the experts' down-projections have a bias, which counts as the last memory of each expert."""
        return self.storage.has_bias

    @property
    def is_gated(self) -> bool:
        """True if an expert's activation is act(gate) * up; False if it is act(up)."""
        return self.storage.is_gated

    @property
    def width(self) -> int:
        """The number of memories of one routed expert: its hidden size, plus 1 if its down-projection has a bias."""
        return self.d_expert + self.has_bias

    @property
    def n_routed(self) -> int:
        """The number of memories of all routed experts."""
        return self.n_experts * self.width

    @property
    def n_memories(self) -> int:
        """The number of memories of the layer."""
        return self.n_routed + (0 if self.shared is None else self.shared.width)

    @torch.no_grad()
    def values(self, rows: slice | Tensor = slice(None)) -> Float[Tensor, "memory d_model"]:
        """Return a copy of the value vectors of the memories with these numbers in the layer, all by default."""
        by_memory, bias = self.storage.values(), self.storage.value_biases()
        if isinstance(rows, slice) and rows == slice(None):
            parts = [by_memory] if bias is None else [by_memory, bias[:, None]]
            routed = torch.cat(parts, dim=1).reshape(self.n_routed, -1)
            return routed if self.shared is None else torch.cat([routed, self._shared_values()])
        rows = torch.arange(self.n_memories)[rows] if isinstance(rows, slice) else rows
        rows = rows.to(by_memory.device)
        found = by_memory.new_empty(len(rows), self.d_model)
        is_routed = rows < self.n_routed
        expert, index = rows[is_routed] // self.width, rows[is_routed] % self.width
        chosen = by_memory[expert, index.clamp_max(self.d_expert - 1)]
        if bias is not None:
            chosen = torch.where((index == self.d_expert)[:, None], bias[expert], chosen)
        found[is_routed] = chosen
        if self.shared is not None and not bool(is_routed.all()):
            found[~is_routed] = self._shared_values()[rows[~is_routed] - self.n_routed]
        return found

    @torch.no_grad()
    def keys(self, which: str) -> Float[Tensor, "d_model memory"]:
        """Return a copy of all key vectors as columns; `which` is "up" or "gate". Memories of biases have key 0."""
        keys = self.storage.keys(which)  # (expert, key, d_model)
        if self.has_bias:
            keys = torch.cat([keys, torch.zeros_like(keys[:, :1])], dim=1)
        routed = keys.reshape(self.n_routed, -1).T
        if self.shared is None:
            return routed
        return torch.cat([routed, self.shared.keys(which)], dim=1)

    @torch.no_grad()
    def key_biases(self, which: str) -> Float[Tensor, " memory"] | None:
        """Return the biases of the up-projections or gate projections; None if they have none."""
        biases = self.storage.key_biases(which)
        if biases is None:
            return None
        routed = torch.cat([biases, torch.zeros_like(biases[:, :1])], dim=1).flatten()
        return routed if self.shared is None else torch.cat([routed, routed.new_zeros(self.shared.width)])

    def _shared_values(self) -> Tensor:
        assert self.shared is not None
        return own(self.shared.down_proj).T

    def number(self, expert: int | None, index: int) -> int:
        """Return the number in the layer of memory `index` of an expert (None: the shared expert)."""
        return self.n_routed + index if expert is None else expert * self.width + index

    def expert_of(self, number: int) -> tuple[int | None, int]:
        """Return the expert (None: the shared one) and the index in that expert of the memory with this number."""
        return (None, number - self.n_routed) if number >= self.n_routed else divmod(number, self.width)
