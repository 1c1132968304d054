"""Models with several residual streams, and how these are mixed: hyper-connections and AltUp.

Every position holds n vectors instead of one. A branch reads a mixture of them, its output is written to all of them,
and the weights of both steps depend on the position. With the weights of a run ("frozen"), all of this is linear, so a
direction at the end of the model corresponds to one direction for each stream in front of a block.

A stream is read as the model reads it at its end: the streams of any layer are combined as after the last layer, which
is what an early exit there would pass to the final norm.

Source: Zhu et al. 2024, "Hyper-Connections"; Baykal et al. 2023, "Alternating Updates for Efficient Transformers".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.offload import own

EachStream = Float[Tensor, "*pos stream d_model"]


@dataclass(frozen=True, eq=False)
class Pulled:
    """The directions of one block: for what its branches write, and for each stream that enters it."""

    attention: Float[Tensor, "*pos d_model"]
    ffn: Float[Tensor, "*pos d_model"]
    others: tuple[Float[Tensor, "*pos d_model"] | EachStream, ...]
    """For the block's other writers in order; one for each stream where they write a different vector to each."""
    entering: EachStream


class Streams(ABC):
    """How one model stores, mixes and combines its streams."""

    count: int

    @abstractmethod
    def split(self, t: Tensor) -> Float[Tensor, "batch pos stream d_model"]:
        """Separate the streams in the tensor that is passed from block to block."""

    @abstractmethod
    def collapsed(self, streams: EachStream) -> Float[Tensor, "*pos d_model"]:
        """Combine the streams as the model does after the last layer; the final norm reads the result."""

    @abstractmethod
    def pulled_through_end(self, u: Float[Tensor, "*any d_model"], streams: EachStream) -> EachStream:
        """Convert a direction at the end to the equivalent direction in each stream that leaves the last block."""

    @abstractmethod
    def pulled_through_block(self, layer: int, leaving: EachStream, entering: EachStream, middle: Tensor) -> Pulled:
        """Convert directions behind a block to those of its writers and of the streams that enter it.

        Args:
            leaving: the directions of the streams that leave it.
            entering: the streams that entered it in the run.
            middle: what `middle_of` captured: the streams before the FFN, or the vector behind it.
        """

    @abstractmethod
    def middle_module(self, layer: int) -> nn.Module:
        """Return the module whose input is the block's state before its FFN."""

    @abstractmethod
    def middle_of(self, t: Tensor) -> Tensor:
        """Return what that module received, with positions as the first axes."""


def _flattened(t: EachStream) -> tuple[Float[Tensor, "1 pos stream d_model"], torch.Size]:
    return t.reshape(1, -1, *t.shape[-2:]).contiguous(), t.shape[:-2]


def _called(module: nn.Module, *args: Tensor) -> Any:
    """Return a module's own computation, without the hooks of a capture but with those that move weights.

    Its results are on the device of the first argument, wherever the module is.
    """
    out, device = module.forward(*args), args[0].device
    return out.to(device) if isinstance(out, Tensor) else tuple(t.to(device) for t in out)


class HyperConnections(Streams):
    """Streams mixed by one module for each branch (DeepSeek-V4, HY-V4, Qwen 4): post_k out + sum_j comb_jk x_j."""

    def __init__(self, count: int, mixers: list[tuple[nn.Module, nn.Module]], head: Any, flat: bool) -> None:
        """Keep the modules.

        Args:
            count: how many streams there are.
            mixers: for each block the module before attention and the one before the FFN.
            head: the module that puts the streams together at the end.
            flat: True where the streams lie side by side in one axis.
        """
        self.count, self._mixers, self._head, self._flat = count, mixers, head, flat

    def split(self, t: Tensor) -> Float[Tensor, "batch pos stream d_model"]:
        """Separate the streams in the tensor that is passed from block to block."""
        return t.unflatten(-1, (self.count, -1)) if self._flat else t

    def _as_given(self, t: EachStream) -> tuple[Tensor, torch.Size]:
        t, shape = _flattened(t)
        return (t.flatten(-2) if self._flat else t), shape

    def collapsed(self, streams: EachStream) -> Float[Tensor, "*pos d_model"]:
        """Combine the streams as the model does after the last layer."""
        given, shape = self._as_given(streams)
        return _called(self._head, given).reshape(*shape, streams.shape[-1])

    def pulled_through_end(self, u: Float[Tensor, "*any d_model"], streams: EachStream) -> EachStream:
        """Return u times the weight of each stream (one number, or one for each channel)."""
        return u[..., None, :] * self._end_weights(streams).to(u.dtype)

    def _end_weights(self, streams: EachStream) -> Float[Tensor, "*pos stream width"]:
        head, (given, shape) = self._head, self._as_given(streams)
        if hasattr(head, "hc_norm"):  # Qwen 4: the mean of gate times norm, per channel
            normed = _called(head.hc_norm, given)
            gate = torch.nn.functional.silu(_called(head.input_mix_weight_down, normed) / self.count)
            gate = torch.sigmoid(_called(head.input_mix_weight_up, gate))
            ratio = torch.where(given == 0, 0.0, normed / given)  # gain over root mean square, frozen
            return (gate * ratio / self.count).unflatten(-1, (self.count, -1)).reshape(*shape, self.count, -1)
        flat = given.flatten(2).float()
        weight, base, scale = (own(head, name).to(given.device).float() for name in ("hc_fn", "hc_base", "hc_scale"))
        # DeepSeek-V4 normalises the input of the projection. The norm of HY-V4 returns a factor instead, by which the
        # projection's output is multiplied.
        normed = _called(head.input_norm, flat)
        mixed = normed @ weight.T if normed.shape == flat.shape else (flat @ weight.T) * normed
        pre = torch.sigmoid(mixed * scale + base) + head.eps
        return pre.reshape(*shape, self.count, 1)

    def middle_module(self, layer: int) -> nn.Module:
        """Return the module that mixes the streams for the FFN."""
        return self._mixers[layer][1]

    def middle_of(self, t: Tensor) -> Tensor:
        """Return the streams before the FFN."""
        return self.split(t)

    def _pulled(self, module: nn.Module, leaving: EachStream, streams: EachStream) -> tuple[Tensor, EachStream]:
        """Convert directions behind one branch to the branch's own direction and those in front of it."""
        given, shape = self._as_given(streams)
        n, returned = self.count, _called(module, given)
        post = next(t for t in reversed(returned) if t.shape == (*given.shape[:2], n))
        comb = next((t for t in returned if t.shape == (*given.shape[:2], n, n) and n != streams.shape[-1]), None)
        weights = post.to(streams.dtype).reshape(*shape, n).to(leaving.dtype)
        written = (weights[..., None] * leaving).sum(dim=-2)
        if comb is None:
            return written, leaving
        mixing = comb.to(streams.dtype).reshape(*shape, n, n).to(leaving.dtype)
        return written, mixing @ leaving

    def pulled_through_block(self, layer: int, leaving: EachStream, entering: EachStream, middle: Tensor) -> Pulled:
        """Go back through the FFN's mixing, then through attention's."""
        attention_mixer, ffn_mixer = self._mixers[layer]
        ffn, between = self._pulled(ffn_mixer, leaving, middle)
        attention, before = self._pulled(attention_mixer, between, entering)
        return Pulled(attention, ffn, (before,), before)


class AltUp(Streams):
    """Several streams (Gemma 3n): the block reads one; all are predicted before it and corrected after it."""

    def __init__(self, decoder: Any, blocks: list[Any], config: Any) -> None:
        self.count, self._active = config.altup_num_inputs, config.altup_active_idx
        self._decoder, self._blocks = decoder, blocks

    def split(self, t: Tensor) -> Float[Tensor, "batch pos stream d_model"]:
        """Return the streams, which are the first axis of the tensor that is passed from block to block."""
        return t.movedim(0, -2)

    def _projected(self, streams: EachStream) -> list[Tensor]:
        """Return the streams as the end reads them: all but the first projected, and scaled to its length."""
        first = streams[..., 0, :]
        length = first.square().mean(dim=-1, keepdim=True) ** 0.5
        out = [first]
        for k, projection in enumerate(self._decoder.altup_unembed_projections, start=1):
            y = _called(projection, streams[..., k, :])
            out.append(y * length / y.square().mean(dim=-1, keepdim=True).clamp(min=1e-5).sqrt())
        return out

    def collapsed(self, streams: EachStream) -> Float[Tensor, "*pos d_model"]:
        """Return the mean of the streams, each projected and scaled to the length of the first."""
        return torch.stack(self._projected(streams)).mean(dim=0)

    def pulled_through_end(self, u: Float[Tensor, "*any d_model"], streams: EachStream) -> EachStream:
        """Pull u through each stream's projection, with the scaling to the first's length frozen."""
        length = streams[..., 0, :].square().mean(dim=-1, keepdim=True) ** 0.5
        out = [(u / self.count).expand(streams.shape[:-2] + u.shape[-1:])]
        for k, projection in enumerate(self._decoder.altup_unembed_projections, start=1):
            y = _called(projection, streams[..., k, :])
            factor = length / y.square().mean(dim=-1, keepdim=True).clamp(min=1e-5).sqrt()
            out.append((u * factor.to(u.dtype) / self.count) @ own(projection).to(u))
        return torch.stack(out, dim=-2)

    def middle_module(self, layer: int) -> nn.Module:
        """Return the norm before the router; its last call in a block reads the active stream after the FFN."""
        return self._blocks[layer].altup.router_norm

    def middle_of(self, t: Tensor) -> Tensor:
        """Return the active stream after the FFN, from which the weights of the correction are computed."""
        return t

    def pulled_through_block(self, layer: int, leaving: EachStream, entering: EachStream, middle: Tensor) -> Pulled:
        """Go back through the correction, the block, and the prediction.

        With P the predictions, a the active stream, r = sqrt(1/2) and c the correction's weights, a block computes mid
        = r (P_a + attention + laurel), out = mid + ffn, x_k' = P_k + c_k (out - P_a), and adds the per-layer input to
        all streams but the first.
        """
        altup, a, n = self._blocks[layer].altup, self._active, self.count
        dtype, half = leaving.dtype, 0.5**0.5
        correct = (_called(altup.correction_coefs, altup.compute_router_modalities(middle)) + 1.0).to(dtype)
        ffn = (correct[..., None] * leaving).sum(dim=-2)
        predicted = leaving.clone()
        predicted[..., a, :] += (half - 1) * ffn
        active = altup.compute_router_modalities(entering[..., a, :])
        mixing = _called(altup.prediction_coefs, active).reshape(*active.shape[:-1], n, n).transpose(-1, -2).to(dtype)
        # The captured outputs of attention and laurel already contain the factor r, so they use the same direction as
        # the FFN.
        return Pulled(ffn, ffn, (ffn, leaving[..., 1:, :].sum(dim=-2)), predicted + mixing @ predicted)


def streams_of(decoder: nn.Module, blocks: list[nn.Module], config: Any) -> Streams | None:
    """Return how a model mixes its streams; None for a model with one stream, or with an unknown kind."""
    first = next(iter(blocks), None)
    if hasattr(first, "altup"):
        return AltUp(decoder, blocks, config)
    for before_attention, before_ffn, end in _HYPER_CONNECTIONS:
        if hasattr(first, before_attention) and hasattr(decoder, end):
            mixers = [(getattr(b, before_attention), getattr(b, before_ffn)) for b in blocks]
            flat = end == "hyper_connection_mixer"
            count = config.hc_count if flat else config.hc_mult
            return HyperConnections(count, mixers, getattr(decoder, end), flat)
    return None


_HYPER_CONNECTIONS = (
    ("attn_hc", "ffn_hc", "hc_head"),
    ("attn_hyper_connection", "mlp_hyper_connection", "hyper_connection_mixer"),
)
"""The names of a block's mixers, before attention and before the FFN, and of the model's end."""
