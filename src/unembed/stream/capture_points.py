"""The table of capture points: which module's input or output each one is, and how to read and replace it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unembed.errors import InvalidInput, PointMissing, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.norms import ChannelGain, Norm
from unembed.models.structure.structure import Block, Writer
from unembed.names import POINTS
from unembed.stream.interventions import Rows


class ForwardPass:
    """A forward pass with hooks: extra arguments for the model, and the shape and positions of the current batch."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.rows = Rows()
        self.shape = (1, 1)
        self.mask: Tensor | None = None
        """1 at real tokens of a batch padded on the right, whose mask need not be passed to the model."""
        self.starts_at = 0
        """The position of the batch's first column in its prompt, used if there is no cache; above 0 if only later
        positions are run."""
        self.edited: dict[int, tuple[list[int], Tensor]] = {}
        """For layers of experts with edited coefficients: which coefficients, and their new values."""

    def begin(self, given: Tensor | None, kwargs: dict[str, Any]) -> None:
        """Record the shape of the batch, its padding, and the number of positions that are already in the cache."""
        self.edited.clear()
        if given is not None:
            self.shape = (given.shape[0], given.shape[1])
        cache, mask = kwargs.get("past_key_values"), kwargs.get("attention_mask")
        mask = self.mask if mask is None else mask
        seen = int(cache.get_seq_length()) if cache is not None and hasattr(cache, "get_seq_length") else self.starts_at
        self.rows = Rows(start=torch.full((self.shape[0], 1), seen) if seen else None)
        if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= seen + self.shape[1]:
            real = mask.bool()
            if bool(real.all()):
                return
            padding = (real.long().cumsum(dim=1) == 0).sum(dim=1, keepdim=True)
            self.rows = Rows(real[:, seen : seen + self.shape[1]], seen - padding)

    def by_position(self, t: Tensor) -> Tensor:
        """Return the tensor as (batch, pos, width), even if the module flattens batch and position."""
        return t.view(*self.shape, t.shape[-1]) if t.dim() == 2 else t


@dataclass(frozen=True)
class CapturePoint:
    """How one named tensor of a block is captured: at which module, and whether it is the input or the output."""

    module: Callable[[Decoder, Block], nn.Module | None]
    """Function that returns the module, given a block; None if the block does not have the point."""
    before: bool
    """Whether the tensor is the module's input (True) or its output."""
    reshape: Callable[[Tensor, Block, ForwardPass], Tensor] = lambda t, _block, _pass: t
    missing: Callable[[Block], tuple[str, str]] = lambda _block: ("the layer has no such tensor", "")
    """Why the point is missing, and what to use instead."""
    put_back: Callable[[Tensor, Tensor, Block], Tensor] | None = None
    """Function that puts a new tensor in the place of the captured one: given the new tensor, the module's own input or
    output and the block, it returns the changed input or output. None if other parts of the layer would still read the
    unchanged tensor."""
    item: Callable[[Block], int] = lambda _block: 0
    """The index of the tensor among those that the module receives or returns."""


def _of_ffn(name: str) -> Callable[[Decoder, Block], nn.Module | None]:
    """Return a function that returns the module `name` in the description of a block's FFN; None if there is no FFN."""
    return lambda _lm, b: None if b.feed_forward is None else getattr(b.feed_forward, name)


def _added_by_mixer(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    site = block.mixer
    assert site is not None
    return _added(t, site.branch_norm, site.multiplier, site.constant)


def _added_by_ffn(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    assert block.feed_forward is not None
    return _added(t, block.feed_forward.branch_norm, block.feed_forward.multiplier)


def _by_head(t: Tensor, block: Block, current: ForwardPass) -> Tensor:
    assert block.mixer is not None
    return t.reshape(*current.shape, block.mixer.n_heads, block.mixer.d_head)


def _experts(_lm: Decoder, block: Block) -> nn.Module | None:
    return block.feed_forward.module if block.feed_forward is not None and block.feed_forward.experts else None


def _value_heads(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    assert block.mixer is not None and block.mixer.values is not None
    return block.mixer.values.split(t)


def _half(which: str, missing: Callable[[Block], tuple[str, str]]) -> CapturePoint:
    """Return the capture point of the "gate" or "up" channels in the output of a projection, which may compute both."""

    def half(t: Tensor, block: Block) -> Tensor:
        assert block.feed_forward is not None
        return block.feed_forward.half(t, which)

    return CapturePoint(
        _of_ffn(f"{which}_proj"), False, lambda t, b, _pass: half(t, b), missing, _put_back_columns(half)
    )


def _projection(which: str) -> Callable[[Decoder, Block], nn.Module | None]:
    """Return a function that finds the query, key or value projection of a block (None if there is none)."""
    return lambda _lm, b: (
        None if b.mixer is None or b.mixer.head_layout is None else getattr(b.mixer.head_layout, which)
    )


def _projected(which: str) -> CapturePoint:
    """Return the capture point of queries, keys or values by head, at the output of their projection."""

    def split(t: Tensor, block: Block) -> Tensor:
        return block.attention.split_heads(t, which)

    return CapturePoint(
        _projection(which), False, lambda t, b, _pass: split(t, b), _no_projection, _put_back_columns(split)
    )


def _no_projection(block: Block) -> tuple[str, str]:
    why = "the layer has no attention" if block.mixer is None else block.mixer.values_missing
    return why or "the layer has no attention", "Use attn_out or z"


def _whole(new: Tensor, own: Tensor, _block: Block) -> Tensor:
    return new.reshape(own.shape)


def _put_back_mixer(new: Tensor, own: Tensor, block: Block) -> Tensor:
    assert block.mixer is not None
    return _put_back_added(new, own, block, block.mixer.branch_norm, block.mixer.multiplier, block.mixer.constant)


def _put_back_ffn(new: Tensor, own: Tensor, block: Block) -> Tensor:
    assert block.feed_forward is not None
    return _put_back_added(new, own, block, block.feed_forward.branch_norm, block.feed_forward.multiplier)


def _put_back_added(
    new: Tensor, own: Tensor, block: Block, norm: Norm | None, multiplier: float, constant: Tensor | None = None
) -> Tensor:
    """Return the module output that makes `new` the vector added to the stream.

    Elements that `new` does not change keep the module's own output exactly, without rounding errors.
    """
    new = new.reshape(own.shape)
    if multiplier == 1.0 and constant is None and not isinstance(norm, ChannelGain):
        return new
    before = _before_gain((new if constant is None else new - constant.to(new.device)) / multiplier, norm, block)
    return torch.where(new == _added(own, norm, multiplier, constant), own, before)


def _added(t: Tensor, norm: Norm | None, multiplier: float, constant: Tensor | None = None) -> Tensor:
    """Return the vector that is added to the stream, given the module's output."""
    t = norm.applied(t) if isinstance(norm, ChannelGain) else t
    t = t if multiplier == 1.0 else t * multiplier
    return t if constant is None else t + constant.to(t.device)


def _before_gain(new: Tensor, norm: Norm | None, block: Block) -> Tensor:
    """Return the module output that becomes `new` after the gain and shift of each channel."""
    if not isinstance(norm, ChannelGain):
        return new
    if bool((norm.gains == 0).any()):
        raise Unsupported(
            f"replacing what {block.path} writes",
            why="some of its channels are multiplied by a gain of 0, so they cannot be given another value",
        )
    return (new - norm.shift.to(new)) / norm.gains.to(new)


def _put_back_columns(columns: Callable[[Tensor, Block], Tensor]) -> Callable[[Tensor, Tensor, Block], Tensor]:
    """Return a function that writes a replaced tensor into its columns of a projection's output."""

    def put_back(new: Tensor, own: Tensor, block: Block) -> Tensor:
        at = columns(torch.arange(own.shape[-1], device=own.device), block).flatten()
        return own.index_copy(-1, at, new.reshape(*own.shape[:-1], -1))

    return put_back


def _every_row(t: Tensor, _block: Block, current: ForwardPass) -> Tensor:
    t = t if t.dim() == 3 else t[None]
    return t.expand(current.shape[0], *t.shape[1:])


def _no_ffn(block: Block) -> tuple[str, str]:
    return ("the layer has no FFN", "Use resid_pre, resid_post or attn_out") if block.feed_forward is None else ("", "")


def _no_gate(block: Block) -> tuple[str, str]:
    if block.feed_forward is None or block.feed_forward.down_proj is None:
        return _no_up(block)
    return "its FFN has no gate", "Use up"


def _no_up(block: Block) -> tuple[str, str]:
    if block.feed_forward is None:
        return _no_ffn(block)
    if not block.feed_forward.has_memories or block.feed_forward.experts is not None:
        return "its memories belong to experts", "Use mlp_in or coefficients"
    return "what its down-projection receives has no known formula", "Use mlp_in or coefficients"


def _no_middle(block: Block) -> tuple[str, str]:
    if block.streams is not None:
        return "the model has several streams, and its FFN reads a mixture of them", "Use resid_pre or resid_post"
    if block.parallel:
        return "attention and FFN both read resid_pre and are added together", "Use resid_pre or resid_post"
    if block.feed_forward is None:
        return "the layer is attention-only", "Use resid_pre, resid_post, attn_out or z"
    return "the layer has no token mixer", "Use resid_pre or resid_post"


def _no_mixer(_block: Block) -> tuple[str, str]:
    return "the layer has no token mixer", "Use resid_pre, resid_post or mlp_out"


def _no_heads(block: Block) -> tuple[str, str]:
    if block.mixer is None:
        return _no_mixer(block)
    return block.mixer.heads_missing, "Use attn_out"


def _no_values(block: Block) -> tuple[str, str]:
    return ("" if block.mixer is None else block.mixer.values_missing) or "the layer has no attention", "Use attn_out"


def _one_stream(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    """Return the residual stream; several streams are combined in the way that the model combines them at its end."""
    return t if block.streams is None else block.streams.collapsed(block.streams.split(t))


def _left(t: Tensor, block: Block, current: ForwardPass) -> Tensor:
    t = _one_stream(t, block, current)
    return t if block.handover == 1.0 else t * block.handover


def _put_back_entering(new: Tensor, own: Tensor, block: Block) -> Tensor:
    if block.streams is not None:
        raise Unsupported(
            f"replacing the stream at {block.path}",
            why="the model has several streams",
            instead="Replace attn_out or mlp_out",
        )
    return new.reshape(own.shape)


def _put_back_leaving(new: Tensor, own: Tensor, block: Block) -> Tensor:
    if block.handover != 1.0:
        why = "the model rescales it after the block"
        raise Unsupported(f"replacing the stream at {block.path}", why=why, instead="Replace attn_out or mlp_out")
    return _put_back_entering(new, own, block)


def _each_stream(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    assert block.streams is not None
    return block.streams.split(t)


def _middle(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    assert block.streams is not None
    return block.streams.middle_of(t)


_ROWS: dict[str, CapturePoint] = {
    "resid_pre": CapturePoint(lambda _lm, b: b.module, True, _one_stream, put_back=_put_back_entering),
    "resid_mid": CapturePoint(
        lambda _lm, b: b.feed_forward.entry if b.feed_forward is not None and b.is_sequential else None,
        before=True,
        missing=_no_middle,
    ),
    "resid_post": CapturePoint(lambda _lm, b: b.module, False, _left, put_back=_put_back_leaving),
    "unedited_post": CapturePoint(lambda _lm, b: b.module, False, _left),
    "streams": CapturePoint(lambda _lm, b: None if b.streams is None else b.module, True, _each_stream),
    "streams_middle": CapturePoint(lambda _lm, b: b.middle_module, True, _middle),
    "streams_end": CapturePoint(
        lambda lm, b: b.module if b.streams is not None and b is lm.structure.blocks[-1] else None, False, _each_stream
    ),
    "attn_out": CapturePoint(
        lambda _lm, b: None if b.mixer is None else b.mixer.output, False, _added_by_mixer, _no_mixer, _put_back_mixer
    ),
    "mlp_out": CapturePoint(_of_ffn("output"), False, _added_by_ffn, _no_ffn, _put_back_ffn),
    "coefficients": CapturePoint(_of_ffn("memory_module"), before=True, missing=_no_ffn, put_back=_whole),
    "channel_gate": CapturePoint(_of_ffn("channel_gate"), False, lambda t, _block, _pass: torch.sigmoid(t)),
    "routed": CapturePoint(_experts, False, missing=lambda _block: ("its FFN has no experts", "Use coefficients")),
    "gate_weights": CapturePoint(
        _experts, False, missing=lambda _block: ("its FFN has no experts", "Use gate or coefficients")
    ),
    "mlp_in": CapturePoint(_of_ffn("reader"), before=True, missing=_no_ffn),
    "gate": _half("gate", _no_gate),
    "up": _half("up", _no_up),
    "z": CapturePoint(
        lambda _lm, b: b.mixer.out_projection if b.mixer is not None and b.mixer.n_heads else None,
        True,
        _by_head,
        _no_heads,
        _whole,
    ),
    "attn_in": CapturePoint(_projection("v"), before=True, missing=_no_projection),
    **{which: _projected(which) for which in ("q", "k", "v")},
    "values": CapturePoint(
        lambda _lm, b: None if b.mixer is None or b.mixer.values is None else b.mixer.values.module,
        False,
        reshape=_value_heads,
        missing=_no_values,
        item=lambda b: 0 if b.mixer is None or b.mixer.values is None else b.mixer.values.item,
    ),
    "position_embedding": CapturePoint(
        lambda lm, _b: lm.structure.position_embedding,
        False,
        _every_row,
        lambda _block: ("the model adds no positions to the stream", ""),
    ),
}
"""Every capture point but those of `OF_WEIGHTS`, and the outputs of other writers ("writer 0", ...).
`unedited_post` is resid_post before edits of the stream; its hooks run before those of the edits."""


OF_WEIGHTS = ("scores", "pattern")
"""Points whose tensors fused kernels never store; the layers in which they are captured use eager attention."""


def capture_point(point: str) -> CapturePoint:
    """Return the description of a capture point, given its name.

    Raises:
        InvalidInput: there is no capture point of this name.
    """
    if point in _ROWS:
        return _ROWS[point]
    name, _, number = point.partition(" ")
    if name == "writer" and number.isdigit():
        return CapturePoint(
            lambda _lm, b: None if (other := _other(b, int(number))) is None else other.module,
            False,
            lambda t, b, current: _added_by(_other(b, int(number)), t, b, current),
        )
    raise InvalidInput(f"capture point {point!r}", why=f"it is not one of {', '.join(POINTS)}")


def _other(block: Block, number: int) -> Writer | None:
    others = (*block.early_writers, *block.late_writers)
    return others[number] if number < len(others) else None


def _added_by(writer: Writer | None, t: Tensor, block: Block, current: ForwardPass) -> Tensor:
    assert writer is not None
    t = _each_stream(t, block, current) if writer.each_stream else t
    return t if writer.multiplier == 1.0 else t * writer.multiplier


def has_point(lm: Decoder, point: str, layer: int) -> bool:
    """Tell whether a layer has the tensor of a capture point.

    Raises:
        InvalidInput: there is no capture point of this name.
    """
    block = lm.structure.blocks[layer]
    if point in OF_WEIGHTS:
        return block.mixer is not None and block.mixer.is_attention
    return capture_point(point).module(lm, block) is not None


def require_point(lm: Decoder, point: str, layer: int) -> None:
    """Refuse a capture point whose tensor this layer does not have.

    Raises:
        InvalidInput: there is no capture point of this name.
        PointMissing: the model or layer has no such tensor.
        Unsupported: the layer has an FFN without memories.
    """
    if has_point(lm, point, layer):
        return
    block = lm.structure.blocks[layer]
    if point == "coefficients" and block.feed_forward is not None:
        lm.feed_forward(layer)  # raises with the reason
    if point in OF_WEIGHTS:
        kind = "" if block.mixer is None else f": it is a {type(block.mixer.module).__name__}"
        why, instead = f"it has no attention{kind}", "" if block.mixer is None else "Use attn_out"
    else:
        why, instead = capture_point(point).missing(block)
    raise PointMissing(f"{lm.name} layer {layer} has no {point}", why=why, instead=instead)
