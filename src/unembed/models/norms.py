"""Treat a norm as a linear map with a known scale.

LayerNorm and RMSNorm both divide by a number that depends on the position, then multiply by a gain for each channel and
perhaps add a bias. If that number is taken from a forward pass and used as a constant ("frozen"), the norm is linear:
its output on a sum is the sum of its outputs on the terms. Gain, bias and centring are measured on the module itself
and not inferred from its class name: Gemma's gain is 1 + w, OLMo has none, and a wrong guess would give plausible
results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.errors import ModelNotUnderstood, Unsupported
from unembed.models.offload import device_of
from unembed.results import format_error

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "layer_norm_epsilon", "norm_eps")
_PROBE = 128.0
_SHIFT = 32.0


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm module of the model: its gain, its bias, and whether it subtracts the mean over channels."""

    module: nn.Module
    path: str
    width: int
    embedding: nn.Module | None = None
    """The model's token embedding, on whose device analyses compute. Gain and bias are moved to that device; if this is
    None, they stay on the norm's."""

    @cached_property
    def eps(self) -> float:
        """Epsilon, which is added to the mean square before the root is taken."""
        for name in _EPS_NAMES:
            value = getattr(self.module, name, None)
            if isinstance(value, float):
                return value
        return 1e-5

    @cached_property
    def _responses(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A vector s of signs, and the module's outputs for the inputs 128 s, -128 s and 128 s + 32."""
        parameter = next(self.module.parameters(), None)
        dtype = torch.float32 if parameter is None else parameter.dtype
        device = device_of(self.module)
        # Alternating signs times _PROBE have mean 0 and root mean square _PROBE, so LayerNorm and RMSNorm both divide
        # them by _PROBE: what the module returns for them is gain * signs + bias.
        signs = torch.ones(self.width, dtype=dtype, device=device)
        signs[1::2] = -1
        with torch.no_grad():
            plus = self.module((signs * _PROBE)[None, None])[0, 0]
            minus = self.module((-signs * _PROBE)[None, None])[0, 0]
            shifted = self.module((signs * _PROBE + _SHIFT)[None, None])[0, 0]
        near = device if self.embedding is None else device_of(self.embedding)
        return signs.to(near), plus.to(near), minus.to(near), shifted.to(near)

    @cached_property
    def gain(self) -> Float[Tensor, " d_model"]:
        """The gain: the factor of each channel."""
        signs, plus, minus, _ = self._responses
        shrink = (_PROBE**2 / (_PROBE**2 + self.eps)) ** 0.5
        return (plus - minus) / 2 * signs / shrink

    @cached_property
    def bias(self) -> Float[Tensor, " d_model"] | None:
        """The bias added to each channel; None if the module has none."""
        _, plus, minus, _ = self._responses
        return None if getattr(self.module, "bias", None) is None else (plus + minus) / 2

    @cached_property
    def centred(self) -> bool:
        """True if the mean over channels is subtracted first (LayerNorm), False for RMSNorm."""
        _, plus, _, shifted = self._responses
        return bool(torch.allclose(plus.float(), shifted.float(), rtol=2e-2, atol=1e-3))

    @cached_property
    def computes_in(self) -> torch.dtype:
        """The dtype in which the norm computes: most RMSNorms of transformers use float32 even in a float64 model."""
        parameter = next(self.module.parameters(), None)
        if parameter is None or parameter.dtype != torch.float64:
            return torch.float32 if parameter is None else parameter.dtype
        x = torch.linspace(-1, 2, self.width, dtype=torch.float64, device=device_of(self.module))[None, None]
        with torch.no_grad():
            x = x.to(self.gain.device)
            y = self.normed(x)
            missed = (self.frozen(x, self.scale(x)) + (0.0 if self.bias is None else self.bias) - y).norm() / y.norm()
        return torch.float64 if float(missed) < 1e-11 else torch.float32

    def scale(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos 1"]:
        """Return the divisor at each position, sqrt(mean square + eps). LayerNorm subtracts the mean first."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.centred:
            x = x - x.mean(dim=-1, keepdim=True)
        return (x.square().mean(dim=-1, keepdim=True) + self.eps).sqrt()

    def normed(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_model"]:
        """Return the output of the module itself, on the device of its input."""
        return self.module(x).to(x.device)

    def frozen(
        self, v: Float[Tensor, "*pos d_model"], scale: Float[Tensor, "*scale 1"]
    ) -> Float[Tensor, "*out d_model"]:
        """Apply the norm, without its bias, to one term of a sum, with the scale of the whole sum.

        This is linear in `v`: for terms that add up to x, with `scale(x)`, the results add up to `module(x) - bias`.
        """
        if self.centred:
            v = v - v.mean(dim=-1, keepdim=True)
        return v / scale * self.gain

    def pulled_back(
        self, direction: Float[Tensor, "*any d_model"], scale: Float[Tensor, "*scale 1"]
    ) -> Float[Tensor, "*out d_model"]:
        """Return the direction before the norm whose dot product with any v is `frozen(v, scale) . direction`."""
        direction = direction * self.gain / scale
        if self.centred:
            direction = direction - direction.mean(dim=-1, keepdim=True)
        return direction

    def folded(self, W: Float[Tensor, "d_model out"]) -> Float[Tensor, "d_model out"]:
        """Return a copy of a matrix that reads the norm's output, with the norm's gain and centring folded in."""
        W = self.gain[:, None].to(W.dtype) * W
        return W - W.mean(dim=0, keepdim=True) if self.centred else W

    def check(self, x: Float[Tensor, "*pos d_model"], y: Float[Tensor, "*pos d_model"], tolerance: float) -> None:
        """Raise an error if the norm's recorded output `y` for its input `x` is not what this class computes from `x`.

        Raises:
            ModelNotUnderstood: the module is neither LayerNorm nor RMSNorm up to gain and bias.
        """
        linear = self.frozen(x.to(self.scale(x).dtype), self.scale(x))
        if self.bias is not None:
            linear = linear + self.bias
        error = float((linear - y).norm() / y.norm().clamp_min(1e-30))
        if not error <= tolerance:
            raise ModelNotUnderstood(
                f"norm {self.path}",
                why=f"it is neither LayerNorm nor RMSNorm (relative error {format_error(error, 2)} on a real input)",
                instead="Open an issue with the model's config",
            )


@dataclass(frozen=True, eq=False)
class ChannelGain(Norm):
    """A gain and a shift for each channel, applied to attention or FFN output before it is added to the stream (ZAYA).

    It is a norm without a division. The model has no separate module for it: `module` is the attention or FFN.
    """

    gains: Tensor = field(default_factory=lambda: torch.empty(0))
    shift: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def gain(self) -> Float[Tensor, " d_model"]:  # type: ignore[override]
        """The factor of each channel."""
        return self.gains

    @property
    def bias(self) -> Float[Tensor, " d_model"]:  # type: ignore[override]
        """The shift of each channel."""
        return self.shift

    @property
    def centred(self) -> bool:  # type: ignore[override]
        """False, because no mean is subtracted."""
        return False

    def scale(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos 1"]:
        """Return 1 at every position."""
        return torch.ones_like(x[..., :1], dtype=torch.promote_types(x.dtype, torch.float32))

    def applied(self, t: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_model"]:
        """Return the module's output as it is added to the stream."""
        return t * self.gains.to(t) + self.shift.to(t)


@dataclass(frozen=True, eq=False)
class OpaqueNorm(Norm):
    """A norm that is not linear even if its scale is a constant, such as a gated norm.

    Capturing activations and summing contributions need no linear map, so they work with it. Analyses that need one
    (circuits, folded weights) are refused: reading `gain`, `bias` or `centred` raises `Unsupported`.
    """

    reason: str = ""

    @property
    def _responses(self) -> NoReturn:  # type: ignore[override]
        raise Unsupported(
            f"the norm {self.path} as a linear map",
            why=self.reason,
            instead="Use attributions, readings or memories, which work with this norm",
        )
