"""A model's weights with rows as vectors and matrices that act on the right, as views on the live parameters.

Nothing is copied: a view changes when the model does. There are four exceptions: queries of a grouped, fused
projection, which cannot be one strided view; layers on another device than the embedding, whose matrices are copied to
that device; offloaded layers, whose matrices are loaded (`unembed.models.offload`); and linear layers that are
quantized or wrapped (LoRA), whose matrix is dequantized or measured. The last three are computed again at every access,
one layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from unembed.errors import OutOfRange, Unsupported
from unembed.models.offload import device_of, parameter
from unembed.models.structure.effective_matrix import own_bias
from unembed.models.structure.structure import AttentionSite, FeedForwardSite, Structure

T = TypeVar("T")


class PerLayer(Sequence[T], Generic[T]):
    """A sequence with one matrix for each layer, computed when it is accessed."""

    def __init__(self, n_layers: int, read: Callable[[int], T]) -> None:
        self._n_layers = n_layers
        self._read = read

    @overload
    def __getitem__(self, layer: int) -> T: ...
    @overload
    def __getitem__(self, layer: slice) -> list[T]: ...
    def __getitem__(self, layer: int | slice) -> T | list[T]:
        """Return the matrix of a layer (negative numbers count from the end), or a list of matrices for a slice."""
        if isinstance(layer, slice):
            return [self._read(i) for i in range(*layer.indices(self._n_layers))]
        if not -self._n_layers <= layer < self._n_layers:
            raise OutOfRange(f"layer {layer}", why=f"the model has {self._n_layers} layers, 0 to {self._n_layers - 1}")
        return self._read(layer % self._n_layers)

    def __len__(self) -> int:
        return self._n_layers

    def __iter__(self) -> Iterator[T]:
        return (self._read(i) for i in range(self._n_layers))


def _as_matrix(module: nn.Module, weight: object) -> Float[Tensor, "d_in d_out"]:
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        raise Unsupported(
            f"the weights of {type(module).__name__}",
            why="they are stored packed (quantized), not as a matrix of numbers",
            instead="Load the model without quantization",
        )
    weight = weight.detach()
    return weight if isinstance(module, Conv1D) else weight.T


class Weights:
    """The weight matrices of a decoder, named as in the transformer-circuits papers (W_E, W_Q, W_out, W_U, ...)."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        n, near = len(structure.blocks), self._near
        site = self._attention
        self.W_Q = PerLayer(n, lambda i: near(self._head_matrix(site(i), "q")))
        self.W_K = PerLayer(n, lambda i: near(self._head_matrix(site(i), "k")))
        self.W_V = PerLayer(n, lambda i: near(self._head_matrix(site(i), "v")))
        self.W_O = PerLayer(n, lambda i: near(self._out_matrix(i)))
        self.b_Q = PerLayer(n, lambda i: near(self._head_bias(site(i), "q")))
        self.b_K = PerLayer(n, lambda i: near(self._head_bias(site(i), "k")))
        self.b_V = PerLayer(n, lambda i: near(self._head_bias(site(i), "v")))
        self.b_O = PerLayer(n, lambda i: near(self._bias(self._mixer(i).out_proj)))
        ffn = self.feed_forward
        self.W_in = PerLayer(n, lambda i: near(self._reading(ffn(i), "up")))
        self.W_gate = PerLayer(n, lambda i: near(self._reading(ffn(i), "gate") if ffn(i).is_gated else None))
        self.W_out = PerLayer(n, lambda i: near(self.values(i)))
        self.b_in = PerLayer(n, lambda i: near(self._reading_bias(ffn(i), "up")))
        self.b_gate = PerLayer(n, lambda i: near(self._reading_bias(ffn(i), "gate") if ffn(i).is_gated else None))
        self.b_out = PerLayer(n, lambda i: near(self._value_bias(ffn(i))))
        self.n_memories = PerLayer(n, lambda i: self._n_memories(ffn(i)))
        """How many rows W_out has, without fetching it."""

    def _near(self, t: Tensor | None) -> Any:
        """Move a matrix or bias to the device of the embedding, on which analyses compute."""
        device = device_of(self._structure.embedding)
        return t if t is None or device is None else t.to(device)

    def _attention(self, layer: int) -> AttentionSite:
        return self._structure.blocks[layer].attention

    def _mixer(self, layer: int) -> AttentionSite:
        block = self._structure.blocks[layer]
        return block.attention if block.mixer is None else block.mixer  # without a mixer, `attention` raises

    def _checked(self, module: nn.Module) -> None:
        if module in self._structure.not_linear:
            is_head = module is self._structure.head
            raise Unsupported(
                "the weights of a projection",
                why=self._structure.not_linear[module],
                instead=("Streams, edits and generation" if is_head else "Streams and attributions by component")
                + " work; for anything else, load the model without quantization",
            )

    def projection(self, module: nn.Module) -> Float[Tensor, "d_in d_out"]:
        """Return the matrix that a linear layer of the model multiplies by; its rows are inputs.

        Raises:
            Unsupported: the layer is not linear in its input, or quantized in an unknown way.
        """
        return self._near(self._matrix(module))

    def projection_bias(self, module: nn.Module) -> Float[Tensor, " d_out"] | None:
        """Return the bias of a linear layer of the model, or None."""
        return self._near(self._bias(module))

    def _matrix(self, module: nn.Module) -> Float[Tensor, "d_in d_out"]:
        """Return the matrix that a linear layer multiplies by; its rows are inputs."""
        self._checked(module)
        if module in self._structure.effective:
            return self._structure.effective[module].matrix(module)
        return _as_matrix(module, parameter(module))

    def _bias(self, module: nn.Module | None) -> Tensor | None:
        if module is None:
            return None
        self._checked(module)
        if module in self._structure.effective:
            return self._structure.effective[module].bias(module)
        return own_bias(module)

    def values(self, layer: int, rows: slice | Tensor = slice(None)) -> Float[Tensor, "memory d_model"]:
        """Return rows of W_out: the value vectors of some memories (FFN neurons) of a layer, all by default.

        In a mixture of experts, only these rows are copied.
        """
        site = self.feed_forward(layer)
        if site.experts is not None:
            return self._near(site.experts.values(rows))
        matrix = self._near(self._matrix(_required(site.down_proj)))
        return matrix if isinstance(rows, slice) and rows == slice(None) else matrix[rows]

    def _n_memories(self, site: FeedForwardSite) -> int:
        return self._n_rows(_required(site.down_proj)) if site.experts is None else site.experts.n_memories

    def _n_rows(self, module: nn.Module) -> int:
        """Return the number of inputs of a linear layer, even if its matrix cannot be read."""
        if module in self._structure.not_linear and isinstance(rows := getattr(module, "in_features", None), int):
            return rows
        self._checked(module)
        if module in self._structure.effective:
            return self._structure.effective[module].d_in
        return _as_matrix(module, module.weight).shape[0]

    def _head_matrix(self, site: AttentionSite, which: str) -> Float[Tensor, "head d_model d_head"]:
        module = getattr(site.layout, which)
        return site.split_heads(self._matrix(module), which).movedim(0, -2)  # (in, head, d_head) -> (head, in, d_head)

    def _head_bias(self, site: AttentionSite, which: str) -> Float[Tensor, "head d_head"] | None:
        bias = self._bias(getattr(site.layout, which))
        return None if bias is None else site.split_heads(bias, which)

    def _out_matrix(self, layer: int) -> Float[Tensor, "n_heads d_head d_model"]:
        site = self._mixer(layer)
        return self._matrix(site.out_proj).view(site.n_heads, site.d_head, -1)

    def _reading(self, site: FeedForwardSite, which: str) -> Float[Tensor, "d_model d_mlp"]:
        if site.experts is not None:
            return site.experts.keys(which)
        matrix = self._matrix(_key_module(site, which))
        return site.half(matrix, which)

    def _reading_bias(self, site: FeedForwardSite, which: str) -> Float[Tensor, " d_mlp"] | None:
        if site.experts is not None:
            return site.experts.key_biases(which)
        bias = self._bias(_key_module(site, which))
        return None if bias is None else site.half(bias, which)

    def _value_bias(self, site: FeedForwardSite) -> Float[Tensor, " d_model"] | None:
        return self._bias(site.down_proj) if site.experts is None else site.experts.bias

    def feed_forward(self, layer: int) -> FeedForwardSite:
        """Return the FFN of a layer, which must have memories (FFN neurons).

        Raises:
            Unsupported: the layer has no memories.
        """
        site = self._structure.blocks[layer].feed_forward
        if site is None:
            others = any(block.feed_forward is not None for block in self._structure.blocks)
            raise Unsupported(
                f"memories of layer {layer}",
                why="it has no FFN" if others else "no layer of the model has an FFN",
                instead="Choose a layer with an FFN" if others else "Use attributions by component",
            )
        if not site.has_memories:
            raise Unsupported(
                f"memories of layer {layer}",
                why=site.memories_missing,
                instead="Use attributions by component",
            )
        return site

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """The token embedding as it is stored (before the embedding scale, if the family has one)."""
        own = getattr(self._structure.embedding, "W_E", None)  # an adaptive input combines its tables in W_E
        if isinstance(own, Tensor):
            return own
        table = parameter(self._structure.embedding)
        assert table is not None
        # The output layer of Mllama has extra rows for images, which the model never predicts.
        return table.detach()[: getattr(self._structure.head, "out_features", None)]

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"] | None:
        """Learned positions, one row each, or None. OPT's two unused rows at the start are left out."""
        module = self._structure.position_embedding
        if module is None:
            module = self._structure.read_positions
        weight = None if module is None else parameter(module)
        return None if weight is None else self._near(weight.detach()[getattr(module, "offset", 0) :])

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """The unembedding matrix of the language-model head; the final norm is not folded in."""
        own = getattr(self._structure.head, "W_U", None)
        return self._near(own if isinstance(own, Tensor) else self._matrix(self._structure.head))

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"] | None:
        """The bias of the language-model head, or None."""
        return self._near(self._bias(self._structure.head))


def _key_module(site: FeedForwardSite, which: str) -> nn.Module:
    module = site.gate_proj if which == "gate" else site.up_proj
    if module is None:
        raise Unsupported(
            "the keys of an FFN",
            why="what its down-projection receives is neither activation(key) nor activation(gate) * up for a known "
            "activation",
            instead="Use values, coefficients or sub-updates, which work",
        )
    return module


def _required(module: nn.Module | None) -> nn.Module:
    assert module is not None
    return module
