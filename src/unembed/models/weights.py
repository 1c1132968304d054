"""A model's weights in the field's orientation, as views on the live parameters.

Rows are vectors and matrices act on the right. Nothing is copied: a view changes when the model does. There are two
exceptions: queries of a grouped, fused projection, which cannot be one strided view, and offloaded layers, whose
matrices are fetched at every reading (`unembed.models.offload`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from unembed.errors import OutOfRange, Unsupported
from unembed.models.offload import parameter
from unembed.models.structure.structure import AttentionSite, FeedForwardSite, Structure

T = TypeVar("T")


class PerLayer(Sequence[T], Generic[T]):
    """One matrix for each layer, read on demand."""

    def __init__(self, n_layers: int, read: Callable[[int], T]) -> None:
        """Remember how to read a layer; nothing is read yet."""
        self._n_layers = n_layers
        self._read = read

    @overload
    def __getitem__(self, layer: int) -> T: ...
    @overload
    def __getitem__(self, layer: slice) -> list[T]: ...
    def __getitem__(self, layer: int | slice) -> T | list[T]:
        """The matrix of a layer (negative counts from the end), or a list of them for a slice."""
        if isinstance(layer, slice):
            return [self._read(i) for i in range(*layer.indices(self._n_layers))]
        if not -self._n_layers <= layer < self._n_layers:
            raise OutOfRange(f"layer {layer}", why=f"the model has {self._n_layers} layers, 0 to {self._n_layers - 1}")
        return self._read(layer % self._n_layers)

    def __len__(self) -> int:
        """The number of layers."""
        return self._n_layers

    def __iter__(self) -> Iterator[T]:
        """The matrices from the first layer to the last."""
        return (self._read(i) for i in range(self._n_layers))


def in_out(module: nn.Module) -> Float[Tensor, "d_in d_out"]:
    """A linear module's matrix with inputs as rows, whichever way the module stores it."""
    return _turned(module, parameter(module))


def _turned(module: nn.Module, weight: object) -> Float[Tensor, "d_in d_out"]:
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        raise Unsupported(
            f"the weights of {type(module).__name__}",
            why="they are quantized or packed, not a matrix of numbers",
            instead="Load the model without quantization",
        )
    weight = weight.detach()
    return weight if isinstance(module, Conv1D) else weight.T


def _bias(module: nn.Module | None) -> Tensor | None:
    bias = None if module is None else parameter(module, "bias")
    return None if bias is None else bias.detach()


class Weights:
    """The matrices of the transformer-circuits papers, for any decoder that opens."""

    def __init__(self, structure: Structure) -> None:
        """Keep the structure; matrices are read when asked for."""
        self._structure = structure
        n = len(structure.blocks)
        site = self._attention
        self.W_Q = PerLayer(n, lambda i: _head_matrix(site(i), "q"))
        self.W_K = PerLayer(n, lambda i: _head_matrix(site(i), "k"))
        self.W_V = PerLayer(n, lambda i: _head_matrix(site(i), "v"))
        self.W_O = PerLayer(n, lambda i: _out_matrix(site(i)))
        self.b_Q = PerLayer(n, lambda i: _head_bias(site(i), "q"))
        self.b_K = PerLayer(n, lambda i: _head_bias(site(i), "k"))
        self.b_V = PerLayer(n, lambda i: _head_bias(site(i), "v"))
        self.b_O = PerLayer(n, lambda i: _bias(site(i).out_proj))
        ffn = self._feed_forward
        self.W_in = PerLayer(n, lambda i: _reading(ffn(i), "up"))
        self.W_gate = PerLayer(n, lambda i: _reading(ffn(i), "gate") if ffn(i).is_gated else None)
        self.W_out = PerLayer(n, lambda i: in_out(_required(ffn(i).down_proj)))
        self.b_in = PerLayer(n, lambda i: _reading_bias(ffn(i), "up"))
        self.b_gate = PerLayer(n, lambda i: _reading_bias(ffn(i), "gate") if ffn(i).is_gated else None)
        self.b_out = PerLayer(n, lambda i: _bias(ffn(i).down_proj))
        self.n_memories = PerLayer(n, lambda i: _rows(_required(ffn(i).down_proj)))
        """How many rows W_out has, without fetching it."""

    def _attention(self, layer: int) -> AttentionSite:
        return self._structure.blocks[layer].attention

    def _feed_forward(self, layer: int) -> FeedForwardSite:
        site = self._structure.blocks[layer].feed_forward
        if site is None:
            raise Unsupported(
                f"memories of layer {layer}",
                why="this model is attention-only: it has no feed-forward layers",
                instead="Ask for its heads, or open another model",
            )
        if not site.has_memories:
            raise Unsupported(
                f"memories of layer {layer}",
                why="its FFN is a mixture of experts, and memories belong to experts",
                instead="Streams, heads and attributions by component work for this model",
            )
        return site

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """The token embedding as it is stored (before the embedding scale, if the family has one)."""
        own = getattr(self._structure.embedding, "W_E", None)  # adaptive input: several tables and projections
        if isinstance(own, Tensor):
            return own
        table = parameter(self._structure.embedding)
        assert table is not None
        return table.detach()

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"] | None:
        """Learned positions, one row each, or None. OPT keeps two unused rows in front; they are left out."""
        module = self._structure.position_embedding
        if module is None:
            module = self._structure.read_positions
        weight = None if module is None else parameter(module)
        return None if weight is None else weight.detach()[getattr(module, "offset", 0) :]

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """The unembedding: what the head multiplies by. The final norm is not folded in."""
        own = getattr(self._structure.head, "W_U", None)
        return own if isinstance(own, Tensor) else in_out(self._structure.head)

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"] | None:
        """The head's bias, or None."""
        return _bias(self._structure.head)


def _rows(module: nn.Module) -> int:
    return _turned(module, module.weight).shape[0]


def _required(module: nn.Module | None) -> nn.Module:
    assert module is not None
    return module


def _grouped(site: AttentionSite, weight: Tensor, which: str) -> Tensor:
    """The rows (out) of a fused or separate projection that belong to q, k or v: (heads, d_head, ...)."""
    per, kv, d = site.queries_per_kv, site.n_kv_heads, site.d_head
    rest = weight.shape[1:]
    kind = site.layout.kind
    if kind == "split":
        return weight.view(-1, d, *rest)
    if kind == "stacked":
        start = {"q": 0, "k": site.n_heads * d, "v": (site.n_heads + kv) * d}[which]
        length = (site.n_heads if which == "q" else kv) * d
        return weight[start : start + length].view(-1, d, *rest)
    groups = weight.view(kv, per + 2, d, *rest)
    if which == "q":
        # One strided view only if a group holds one query head or there is one group; else torch copies here.
        return groups[:, :per].reshape(kv * per, d, *rest)
    return groups[:, per if which == "k" else per + 1]


def _head_matrix(site: AttentionSite, which: str) -> Float[Tensor, "head d_model d_head"]:
    module = getattr(site.layout, which)
    return _grouped(site, in_out(module).T, which).transpose(-1, -2)


def _head_bias(site: AttentionSite, which: str) -> Float[Tensor, "head d_head"] | None:
    bias = _bias(getattr(site.layout, which))
    return None if bias is None else _grouped(site, bias, which)


def _out_matrix(site: AttentionSite) -> Float[Tensor, "n_heads d_head d_model"]:
    return in_out(site.out_proj).view(site.n_heads, site.d_head, -1)


def _half(site: FeedForwardSite, t: Tensor, which: str) -> Tensor:
    """The half of a fused gate-up weight (last axis) that is the gate's or the up branch's."""
    first, second = t.chunk(2, dim=-1)
    return first if (which == "gate") == site.gate_first else second


def _reading(site: FeedForwardSite, which: str) -> Float[Tensor, "d_model d_mlp"]:
    module = _required(site.gate_proj if which == "gate" else site.up_proj)
    matrix = in_out(module)
    return _half(site, matrix, which) if site.is_fused else matrix


def _reading_bias(site: FeedForwardSite, which: str) -> Float[Tensor, " d_mlp"] | None:
    bias = _bias(site.gate_proj if which == "gate" else site.up_proj)
    return None if bias is None else _half(site, bias, which) if site.is_fused else bias
