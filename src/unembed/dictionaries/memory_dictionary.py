"""The memories (FFN neurons) of one layer as a dictionary, for code that takes sparse autoencoders or transcoders.

SAELens and SAEBench read `encode`, `decode`, `W_enc`, `W_dec`, `b_enc`, `b_dec`, `cfg`, `dtype` and `device`. A layer's
memories are a transcoder that reconstructs exactly: the keys encode, the values decode. That makes them the baseline of
any dictionary trained on the same layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.activations import ACT2FN

from unembed.errors import OutOfRange, Unsupported
from unembed.models.decoder import Decoder, require_decoder
from unembed.models.structure.structure import FeedForwardSite
from unembed.names import SignedMemory
from unembed.validation import as_int, positive_int


@dataclass
class MemoryDictionaryConfig:
    """The fields that SAEBench reads in `cfg`, and SAELens in `cfg` and `cfg.metadata`, which is this object itself."""

    model_name: str
    d_in: int
    d_out: int
    d_sae: int
    hook_layer: int
    hook_name: str
    """The input of the FFN after its norm, with the norm's gain and bias: `mlp_in`."""
    hook_name_out: str
    """The output of the down-projection, before a norm or factor that some models apply to it."""
    dtype: str
    device: str
    architecture: str = "memories"
    k: int | None = None
    apply_b_dec_to_input: bool = False
    normalize_activations: str = "none"
    reshape_activations: str = "none"
    hook_head_index: int | None = None
    context_size: int | None = None
    prepend_bos: bool = True
    seqpos_slice: tuple[int | None, ...] = (None,)
    neuronpedia_id: str | None = None
    model_from_pretrained_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metadata = self

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


class MemoryDictionary(nn.Module):
    """The memories of a layer without experts: `encode` gives their coefficients, `decode` the FFN's output.

    It shares its weights with the model. If it is moved to another device or converted to another dtype, it gets
    copies, and the model's weights do not change.

    Args:
        lm: the model.
        layer: the layer; negative numbers count from the last.
        split_signs: make two features of each memory, one for each sign of its coefficient, so that no activation is
            negative: feature i is memory i, feature n + i is memory i with its value negated (n memories).
        k: keep only the k memories with the largest |coefficient| times length of the value, at each position.

    Raises:
        OutOfRange: there is no such layer, or k is not positive.
        Unsupported: the layer has no FFN or has experts, it is not known how its coefficients are computed from its
            keys, its output is gated, or its weights are offloaded.
    """

    W_enc: Float[Tensor, "d_model feature"]
    """The keys; in a gated FFN, only those of the gate, although coefficients depend on the up-projection too."""
    b_enc: Float[Tensor, " feature"]
    W_dec: Float[Tensor, "feature d_model"]
    """The value vectors."""
    b_dec: Float[Tensor, " d_model"]
    """The bias of the down-projection."""
    value_norms: Float[Tensor, " memory"]
    use_error_term = False
    """SAELens reads this attribute and `hook_dict` when it attaches a transcoder to a model."""

    def __init__(self, lm: Decoder, layer: int, *, split_signs: bool = False, k: int | None = None) -> None:
        super().__init__()
        lm = require_decoder(lm)
        layer = lm.layer(layer)
        values = lm.weights.W_out[layer]  # refuses a layer that has no memories
        site = lm.feed_forward(layer)
        self._up, self._gate, self._activation, self._down = _sharing(site, layer)
        self._is_fused, self._gate_first = site.is_fused, site.gate_first
        self.split_signs, self.k, self.has_unit_values = split_signs, None if k is None else positive_int("k", k), False
        self.hook_dict: dict[str, nn.Module] = {}
        weights = lm.weights
        keys, bias = (weights.W_gate, weights.b_gate) if site.is_gated else (weights.W_in, weights.b_in)
        parts = {
            "W_enc": _twice(keys[layer], split_signs, dim=1),
            "b_enc": _twice(_or_zeros(bias[layer], values[:, 0]), split_signs, dim=0),
            "W_dec": torch.cat([values, -values]) if split_signs else values,
            "b_dec": _or_zeros(weights.b_out[layer], values[0]),
        }
        for name, tensor in parts.items():
            self.register_parameter(name, nn.Parameter(tensor.detach(), requires_grad=False))
        self.register_buffer("value_norms", values.detach().norm(dim=-1).clamp(min=1e-8), persistent=False)
        n, d = self.W_dec.shape
        at = f"blocks.{layer}.mlp"
        self.cfg = MemoryDictionaryConfig(
            lm.name, self.W_enc.shape[0], d, n, layer, f"{at}.hook_in", f"{at}.hook_out", "", "", k=self.k
        )
        self._apply(lambda t: t)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MemoryDictionary:
        super()._apply(fn, recurse)
        self.cfg.dtype, self.cfg.device = str(self.dtype).removeprefix("torch."), str(self.device)
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of features and reconstructions."""
        return self.W_dec.dtype

    @property
    def device(self) -> torch.device:
        """The device of features and reconstructions."""
        return self.W_dec.device

    def memory(self, feature: int) -> SignedMemory:
        """Return the memory, and the sign of its coefficient, that a feature stands for.

        Raises:
            OutOfRange: there is no such feature.
        """
        number, n = as_int("feature", feature), len(self.value_norms)
        if not 0 <= number < self.cfg.d_sae:
            raise OutOfRange(f"feature {number}", why=f"the layer has {self.cfg.d_sae} features, counted from 0")
        return SignedMemory(self.cfg.hook_layer, number % n, "negative" if number >= n else "positive")

    def encode(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos feature"]:
        """Compute the coefficients from the FFN's input, the capture point `mlp_in`."""
        coefficients = self._coefficients(x.to(self.dtype))
        sizes = coefficients * self.value_norms
        if self.k is not None:
            best = sizes.abs().topk(min(self.k, sizes.shape[-1]), dim=-1).indices
            coefficients = torch.zeros_like(sizes).scatter(-1, best, coefficients.gather(-1, best))
        if self.has_unit_values:
            coefficients = coefficients * self.value_norms
        return torch.cat([coefficients.relu(), (-coefficients).relu()], dim=-1) if self.split_signs else coefficients

    def decode(self, features: Float[Tensor, "*pos feature"]) -> Float[Tensor, "*pos d_model"]:
        """Compute the down-projection's output, its bias included, from the features."""
        features = features.to(self.dtype)
        if self.split_signs:
            positive, negative = features.chunk(2, dim=-1)
            features = positive - negative
        return self._down(features / self.value_norms if self.has_unit_values else features)

    def forward(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_model"]:
        """Compute the FFN's output from its input; with `k`, only from the k largest memories."""
        return self.decode(self.encode(x))

    def fold_W_dec_norm(self) -> None:
        """Scale the rows of W_dec to length 1, and multiply each feature by the length that its row had before.

        SAEBench calls this. The output of `decode` stays the same up to rounding.
        """
        if not self.has_unit_values:
            norms = torch.cat([self.value_norms] * (2 if self.split_signs else 1))
            self.W_dec = nn.Parameter(self.W_dec / norms[:, None], requires_grad=False)
            self.has_unit_values = True

    def _coefficients(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos memory"]:
        up = self._up(x)
        if self._is_fused:
            first, second = up.chunk(2, dim=-1)
            gate, up = (first, second) if self._gate_first else (second, first)
        elif self._gate is not None:
            gate = self._gate(x)
        else:
            return self._activation(up)
        return self._activation(gate) * up


def _or_zeros(bias: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if bias is None else bias


def _twice(t: Tensor, split_signs: bool, dim: int) -> Tensor:
    return torch.cat([t, t], dim=dim) if split_signs else t


def _activation(site: FeedForwardSite) -> nn.Module | None:
    """Return the activation function's module: one of transformers' by name, or the FFN's own."""
    if site.activation in ACT2FN:
        return ACT2FN[site.activation]
    return next((m for m in site.module.modules() if type(m).__name__ == site.activation), None)


def _sharing(site: FeedForwardSite, layer: int) -> tuple[nn.Module, nn.Module | None, nn.Module, nn.Module]:
    """Return up-projection, gate projection (None if the FFN has no separate one), activation and down-projection.

    They are new modules that share the model's parameters (packed ones are copied), so that moving one leaves the model
    where it is.
    """
    up, down, activation = site.up_proj, site.down_proj, _activation(site)
    own = [module for module in (up, site.gate_proj, activation, down) if module is not None]
    parameters = [p for module in own for p in module.parameters()]
    why = "it is a mixture of experts" if site.experts is not None else ""
    if up is None or activation is None or down is None:
        why = why or "it is not known how its coefficients are computed from its keys"
    elif site.channel_gate is not None:
        why = "its output is multiplied by a gate of each channel"
    elif not any(p.is_meta for p in parameters):
        plain = [p for p in parameters if type(p) is nn.Parameter]  # packed ones carry more than their tensor
        shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in plain}
        return copy.deepcopy((up, None if site.is_fused else site.gate_proj, activation, down), shared)
    why = why or "its weights are offloaded"
    raise Unsupported(
        f"the FFN of layer {layer} as a dictionary", why=why, instead='Use the capture point "coefficients"'
    )
