"""Models with several residual streams, and how they mix them: hyper-connections and AltUp.

Such a model has n vectors at every position instead of one. Attention or an FFN reads a weighted mixture of them, its
output is added to each with a weight, and these weights depend on the position. With the weights of one forward pass
taken as constants, all of this is linear, so a direction at the end of the model corresponds to one direction for each
stream before a block.

To decode the streams at a layer to tokens, they are combined as after the last layer. This is the input that the final
norm would have if the model ended at that layer.

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
    """Directions at one block that split a quantity at the end of the model, such as a logit, into contributions.

    There is one direction for the output of attention, one for that of the FFN, and one for each stream that enters the
    block. The contribution of each is its dot product with its direction; the contributions add up to the quantity.
    """

    attention: Float[Tensor, "*pos d_model"]
    ffn: Float[Tensor, "*pos d_model"]
    others: tuple[Float[Tensor, "*pos d_model"] | EachStream, ...]
    """The directions for the outputs of other modules that add to the streams, in order; one direction per stream if a
    module adds a different vector to each."""
    entering: EachStream


class Streams(ABC):
    """How a model with several residual streams stores, mixes and combines them."""

    count: int

    @abstractmethod
    def split(self, t: Tensor) -> Float[Tensor, "batch pos stream d_model"]:
        """Separate the streams in the tensor that is passed from block to block."""

    @abstractmethod
    def collapsed(self, streams: EachStream) -> Float[Tensor, "*pos d_model"]:
        """Combine the streams as the model does after the last layer; the final norm reads the result."""

    @abstractmethod
    def pulled_through_end(self, u: Float[Tensor, "*any d_model"], streams: EachStream) -> EachStream:
        """Convert a direction at the input of the final norm to the equivalent direction for each stream before it."""

    @abstractmethod
    def pulled_through_block(self, layer: int, leaving: EachStream, entering: EachStream, middle: Tensor) -> Pulled:
        """Convert directions after a block to directions for what the block adds and for the streams before it.

        Args:
            leaving: one direction for each stream that leaves the block.
            entering: the streams that entered the block in the forward pass.
            middle: what `middle_of` returned: the streams before the FFN, or the active stream after it.
        """

    @abstractmethod
    def middle_module(self, layer: int) -> nn.Module:
        """Return the module whose input must be captured to convert directions back through the block."""

    @abstractmethod
    def middle_of(self, t: Tensor) -> Tensor:
        """Return the captured input of `middle_module`, with positions as the first axes."""


def _flattened(t: EachStream) -> tuple[Float[Tensor, "1 pos stream d_model"], torch.Size]:
    return t.reshape(1, -1, *t.shape[-2:]).contiguous(), t.shape[:-2]


def _called(module: nn.Module, *args: Tensor) -> Any:
    """Call a module without the hooks that capture activations, but with those that load offloaded weights.

    Its results are moved to the device of the first argument.
    """
    out, device = module.forward(*args), args[0].device
    return out.to(device) if isinstance(out, Tensor) else tuple(t.to(device) for t in out)


class HyperConnections(Streams):
    """Several streams, mixed by a module before attention and one before the FFN (DeepSeek-V4, HY-V4, Qwen 4).

    With `out` the output of attention or FFN, stream x_k becomes post_k out + sum_j comb_jk x_j. The mixing module
    computes the weights `post` and `comb` from the streams.
    """

    def __init__(self, count: int, mixers: list[tuple[nn.Module, nn.Module]], head: Any, flat: bool) -> None:
        """Store the modules.

        Args:
            count: the number of streams.
            mixers: for each block, the mixing module before attention and the one before the FFN.
            head: the module that combines the streams after the last block.
            flat: True where the streams are concatenated along the channel axis.
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
        """Return u times the weight of each stream in the combination at the end (one number, or one per channel)."""
        return u[..., None, :] * self._end_weights(streams).to(u.dtype)

    def _end_weights(self, streams: EachStream) -> Float[Tensor, "*pos stream width"]:
        head, (given, shape) = self._head, self._as_given(streams)
        # Qwen 4 normalises the streams, multiplies every channel by a gate, and takes the mean over the streams.
        if hasattr(head, "hc_norm"):
            normed = _called(head.hc_norm, given)
            gate = torch.nn.functional.silu(_called(head.input_mix_weight_down, normed) / self.count)
            gate = torch.sigmoid(_called(head.input_mix_weight_up, gate))
            ratio = torch.where(given == 0, 0.0, normed / given)  # gain / root mean square, treated as a constant
            return (gate * ratio / self.count).unflatten(-1, (self.count, -1)).reshape(*shape, self.count, -1)
        flat = given.flatten(2).float()
        weight, base, scale = (own(head, name).to(given.device).float() for name in ("hc_fn", "hc_base", "hc_scale"))
        # In DeepSeek-V4, the norm returns the normalised input of the projection. In HY-V4 it returns a factor by which
        # the projection's output is multiplied.
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
        """Convert directions for the streams after attention (or the FFN) to directions before it and for its output.

        The dot product with the output, plus those with the streams before attention or FFN, equals the sum of those
        with the streams after it.

        Args:
            module: the module that mixes the streams for attention or FFN.
            leaving: one direction for each stream after attention or FFN.
            streams: the streams before it in the forward pass.
        """
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
        """Convert the directions back through the mixing at the FFN, then through the mixing at attention."""
        attention_mixer, ffn_mixer = self._mixers[layer]
        ffn, between = self._pulled(ffn_mixer, leaving, middle)
        attention, before = self._pulled(attention_mixer, between, entering)
        return Pulled(attention, ffn, (before,), before)


class AltUp(Streams):
    """Several streams (Gemma 3n), of which a block reads only one, the active stream.

    The streams after the block are first predicted from the streams before it; when the block has run, the predictions
    are corrected by its output.
    """

    def __init__(self, decoder: Any, blocks: list[Any], config: Any) -> None:
        self.count, self._active = config.altup_num_inputs, config.altup_active_idx
        self._decoder, self._blocks = decoder, blocks

    def split(self, t: Tensor) -> Float[Tensor, "batch pos stream d_model"]:
        """Return the streams, which are the first axis of the tensor that is passed from block to block, as axis -2."""
        return t.movedim(0, -2)

    def _projected(self, streams: EachStream) -> list[Tensor]:
        """Return the first stream, and the others projected and scaled to the first one's root mean square."""
        first = streams[..., 0, :]
        length = first.square().mean(dim=-1, keepdim=True) ** 0.5
        out = [first]
        for k, projection in enumerate(self._decoder.altup_unembed_projections, start=1):
            y = _called(projection, streams[..., k, :])
            out.append(y * length / y.square().mean(dim=-1, keepdim=True).clamp(min=1e-5).sqrt())
        return out

    def collapsed(self, streams: EachStream) -> Float[Tensor, "*pos d_model"]:
        """Return the mean of the streams, each projected and scaled to the root mean square of the first."""
        return torch.stack(self._projected(streams)).mean(dim=0)

    def pulled_through_end(self, u: Float[Tensor, "*any d_model"], streams: EachStream) -> EachStream:
        """Return u / n (n streams) for the first stream; for each other, u / n times its projection and scale.

        The scale gives the projected stream the root mean square of the first one; here it is treated as a constant.
        """
        length = streams[..., 0, :].square().mean(dim=-1, keepdim=True) ** 0.5
        out = [(u / self.count).expand(streams.shape[:-2] + u.shape[-1:])]
        for k, projection in enumerate(self._decoder.altup_unembed_projections, start=1):
            y = _called(projection, streams[..., k, :])
            factor = length / y.square().mean(dim=-1, keepdim=True).clamp(min=1e-5).sqrt()
            out.append((u * factor.to(u.dtype) / self.count) @ own(projection).to(u))
        return torch.stack(out, dim=-2)

    def middle_module(self, layer: int) -> nn.Module:
        """Return the norm before AltUp's router; its last call in a block receives the active stream after the FFN."""
        return self._blocks[layer].altup.router_norm

    def middle_of(self, t: Tensor) -> Tensor:
        """Return the active stream after the FFN, from which the weights of the correction are computed."""
        return t

    def pulled_through_block(self, layer: int, leaving: EachStream, entering: EachStream, middle: Tensor) -> Pulled:
        """Convert the directions back through the correction, the block, and the prediction.

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
        # The captured outputs of attention and laurel (a low-rank branch of each block) are already multiplied by
        # r, so their direction is that of the FFN, without a further factor r.
        return Pulled(ffn, ffn, (ffn, leaving[..., 1:, :].sum(dim=-2)), predicted + mixing @ predicted)


def streams_of(decoder: nn.Module, blocks: list[nn.Module], config: Any) -> Streams | None:
    """Return how a model mixes its streams; None if it has only one, or mixes them in an unknown way."""
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
"""Attribute names: the modules that mix the streams before attention and before the FFN, and at the model's end."""
