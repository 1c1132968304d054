"""New numbers for one activation of one row of a batch, and the hooks that write them into the running model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.models.norms import ChannelGain
from unembed.models.structure.dry_run import first_tensor, given_tensor
from unembed.models.structure.structure import Block
from unembed.names import STREAM_POINTS
from unembed.stream.capture_points import ForwardPass, require_point
from unembed.stream.decomposition import require_one_stream
from unembed.stream.experts import install_experts
from unembed.stream.hooks import forward_replaced


@dataclass(frozen=True, eq=False)
class Replacement:
    """New numbers for one activation of one row.

    Attributes:
        point: which activation, one of `PATCH_POINTS`.
        positions: where; every position when None.
        index: a head (for z and pattern) or memories (for coefficients); the whole vector when None.
        value: the numbers, broadcast to what is replaced: (position, ...) or a scalar.
    """

    point: str
    layer: int
    positions: Int[Tensor, " p"] | None
    index: int | Int[Tensor, " i"] | None
    value: Tensor

    def write(self, t: Float[Tensor, "pos ..."]) -> None:
        """Write the numbers into one row's activation (pos, ...)."""
        positions = slice(None) if self.positions is None else self.positions.to(t.device)
        value = self.value.to(t)
        if self.index is None:
            t[positions] = value
        elif isinstance(self.index, int):
            t[positions, self.index] = value
        elif isinstance(positions, slice):
            t[:, self.index.to(t.device)] = value
        else:
            t[positions[:, None], self.index.to(t.device)[None]] = value

    def padded(self, n_pos: int, width: int) -> Replacement:
        """The same in a prompt of `n_pos` tokens that is padded on the right to `width` columns."""
        positions = torch.arange(n_pos) if self.positions is None else self.positions
        value = torch.nn.functional.pad(self.value, (0, width - n_pos)) if self.point == "pattern" else self.value
        return replace(self, positions=positions, value=value)


Changes = Sequence[tuple[int, Replacement]]
"""Rows of the batch, each with its replacements."""


def install(
    stack: ExitStack, lm: Decoder, current: ForwardPass, point: str, layer: int, changes: Changes, n_pos: int
) -> None:
    """Hooks that write the replacements of one point of one layer, until the stack closes.

    Raises:
        PointMissing: the layer has no such activation.
        Unsupported: it cannot be replaced in this model.
    """
    require_point(lm, point, layer)
    block = lm.structure.blocks[layer]
    branch = {"attn_out": block.mixer, "resid_mid": block.mixer, "mlp_out": block.feed_forward}.get(point)
    if branch is not None and isinstance(branch.branch_norm, ChannelGain):
        raise Unsupported(
            f"replacing {point} of layer {layer} of {lm.name}",
            why="each channel has its own gain between the module and the stream",
            instead="Replace z, or scale the layer with an edit",
        )
    if point in STREAM_POINTS:
        require_one_stream(lm, f"replacing {point}")
    mixer, ffn = block.mixer, block.feed_forward
    if point == "resid_pre":
        change_input(stack, block.module, _writing(changes), current)
    elif point == "resid_post":
        if block.handover != 1.0:
            raise Unsupported(f"replacing resid_post of {block.path}", why="the model rescales it after the block")
        change_output(stack, block.module, _writing(changes), current)
    elif point == "mlp_out":
        assert ffn is not None
        change_output(stack, ffn.output, _writing_added(changes, ffn.multiplier), current)
    elif point == "coefficients":
        assert ffn is not None
        if ffn.experts is not None:
            install_experts(stack, lm, layer, current, changes=[_writing(changes)])
        else:
            assert ffn.down_proj is not None
            change_input(stack, ffn.down_proj, _writing(changes), current)
    else:
        assert mixer is not None
        if point == "attn_out":
            change_output(stack, mixer.output, _writing_added(changes, mixer.multiplier, mixer.constant), current)
        elif point == "resid_mid":
            _install_middle(stack, block, current, changes)
        elif point == "z":
            write = _writing(changes)
            heads = (mixer.n_heads, mixer.d_head)
            change_input(
                stack, mixer.out_proj, lambda t: write(t.reshape(*current.shape, *heads)).view(t.shape), current
            )
        else:
            _install_pattern(stack, lm, layer, current, changes, n_pos)


def _writing(changes: Changes) -> Callable[[Tensor], Tensor]:
    def written(t: Tensor) -> Tensor:
        t = t.clone()
        for i, replacement in changes:
            replacement.write(t[i])
        return t

    return written


def _writing_added(changes: Changes, multiplier: float, constant: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """The replacements of what is added, written as what the module must return for it."""
    if multiplier == 1.0 and constant is None:
        return _writing(changes)

    def written(t: Tensor) -> Tensor:
        shift = torch.zeros((), dtype=t.dtype, device=t.device) if constant is None else constant
        own = t * multiplier + shift
        wanted = _writing(changes)(own)
        # Only what differs is changed, so that a run's own numbers leave it as it is.
        return torch.where(wanted == own, t, (wanted - shift) / multiplier)

    return written


def _install_middle(stack: ExitStack, block: Block, current: ForwardPass, changes: Changes) -> None:
    """The stream between mixer and FFN is replaced by what the mixer must return for it."""
    mixer = block.mixer
    assert mixer is not None
    if block.entry_norm is not None:
        raise Unsupported(f"replacing resid_mid of {block.path}", why="the block normalises the stream itself")
    if block.early_writers:
        raise Unsupported(f"replacing resid_mid of {block.path}", why="more than its mixer writes before it")
    seen: dict[str, Tensor] = {}
    note_input(stack, block.module, "resid_pre", seen, current)

    def middle(t: Tensor) -> Tensor:
        t = t.clone()
        for i, r in changes:
            # With a device_map, the block's input may come from another device.
            own = seen["resid_pre"][i].to(t.device) * block.entry_gain + t[i] * mixer.multiplier
            own = own if mixer.constant is None else own + mixer.constant.to(t.device)
            wanted = own.clone()
            r.write(wanted)
            # Only differing entries are changed, so that a run's own numbers leave it unchanged.
            t[i] += (wanted - own) / mixer.multiplier
        return t

    change_output(stack, mixer.output, middle, current)


def _install_pattern(
    stack: ExitStack, lm: Decoder, layer: int, current: ForwardPass, changes: Changes, n_pos: int
) -> None:
    """A replaced pattern acts through z: it mixes the row's own values."""
    require_point(lm, "values", layer)
    site = lm.structure.blocks[layer].attention
    source = site.values
    assert source is not None
    seen: dict[str, Tensor] = {}

    def keep(_m: nn.Module, _args: Any, out: Any) -> None:
        given = first_tensor(out)
        assert given is not None
        seen["values"] = source.split(current.by_position(given))

    stack.callback(source.module.register_forward_hook(keep).remove)

    def mixed(t: Tensor) -> Tensor:
        z = t.view(*current.shape, site.n_heads, site.d_head).clone()
        values = by_head(seen["values"], site.n_heads)
        for i, r in changes:
            positions = torch.arange(n_pos) if r.positions is None else r.positions
            z[i, positions, r.index] = r.value.to(z) @ values[i, r.index].to(z)
        return z.view(t.shape)

    # Before the edits of the run, which change what the heads mixed.
    change_input(stack, site.out_proj, mixed, current, first=True)


def by_head(values: Float[Tensor, "row kv_head pos d_head"], n_heads: int) -> Float[Tensor, "row head pos d_head"]:
    """The values of each query head: those of its key-value head."""
    return values.repeat_interleave(n_heads // values.shape[1], dim=1)


def change_input(
    stack: ExitStack,
    module: nn.Module,
    change: Callable[[Tensor], Tensor],
    current: ForwardPass | None = None,
    *,
    first: bool = False,
) -> None:
    """Replace the tensor that a module works on, whether it is a positional or a keyword argument."""

    def hook(_m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = given_tensor(args, kwargs)
        if given is None:
            raise Unsupported(f"replacing the input of {type(module).__name__}", why="it receives no tensor")
        new = _reshaped(given, change, current)
        return tuple(new if a is given else a for a in args), {
            name: new if a is given else a for name, a in kwargs.items()
        }

    stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=first).remove)


def change_output(
    stack: ExitStack, module: nn.Module, change: Callable[[Tensor], Tensor], current: ForwardPass
) -> None:
    """Replace the first tensor that a module returns."""

    def hook(_m: nn.Module, _args: Any, out: Any) -> Any:
        if isinstance(out, Tensor):
            return _reshaped(out, change, current)
        i = next(i for i, value in enumerate(out) if isinstance(value, Tensor))
        parts = [*out[:i], _reshaped(out[i], change, current), *out[i + 1 :]]
        return tuple(parts) if isinstance(out, tuple) else parts

    stack.callback(module.register_forward_hook(hook).remove)


def note_input(stack: ExitStack, module: nn.Module, name: str, seen: dict[str, Tensor], current: ForwardPass) -> None:
    """Store a module's input, as (batch, pos, ...)."""

    def hook(_m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = given_tensor(args, kwargs)
        assert given is not None
        seen[name] = current.by_position(given)

    stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)


def _reshaped(t: Tensor, change: Callable[[Tensor], Tensor], current: ForwardPass | None) -> Tensor:
    """The change made to a tensor as (batch, pos, ...), returned in the shape that the module uses."""
    return change(t if current is None else current.by_position(t)).view(t.shape)


def record_outputs(stack: ExitStack, lm: Decoder) -> list[Any]:
    """A list that receives the form of every block's output, without tensors, until the stack closes."""
    forms: list[Any] = []
    for block in lm.structure.blocks:
        handle = block.module.register_forward_hook(lambda _m, _a, out: forms.append(_without_stream(out)))
        stack.callback(handle.remove)
    return forms


def pass_through(stack: ExitStack, lm: Decoder, forms: Sequence[Any]) -> None:
    """Until the stack closes, the first blocks return the stream that they receive: one block for each form."""
    for block, form in zip(lm.structure.blocks, forms, strict=False):
        stack.enter_context(_passed_through(block.module, form))


def _without_stream(out: Any) -> Any:
    """The output of a block without its tensors."""
    if isinstance(out, Tensor):
        return None
    i = next(i for i, value in enumerate(out) if isinstance(value, Tensor))
    return [*out[:i], ..., *(None if isinstance(v, Tensor) else v for v in out[i + 1 :])], type(out) is tuple


def _passed_through(module: nn.Module, form: Any) -> AbstractContextManager[None]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = given_tensor(args, kwargs)
        if form is None:
            return hidden
        parts, is_tuple = form
        filled = [hidden if value is ... else value for value in parts]
        return tuple(filled) if is_tuple else filled

    return forward_replaced(module, forward)
