"""Run the model on a batch in which each row has some of its activations replaced.

Activations are replaced at the capture points of `stream`. Two of them cannot be replaced directly. An attention
pattern is replaced through z, which is the pattern times the row's values. The stream between attention and FFN
(resid_mid) is replaced through the output of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.models.norms import ChannelGain
from unembed.models.structure.dry_run import given_tensor
from unembed.names import STREAM_POINTS
from unembed.stream.capture_points import ForwardPass, require_point
from unembed.stream.decomposition import require_one_stream
from unembed.stream.hooks import Callback, Hook, attach_hooks, forward_replaced
from unembed.stream.interventions import Edits

Place = tuple[str, int]
"""A capture point and a layer."""


@dataclass(frozen=True, eq=False)
class Replacement:
    """New values for one activation in one row of a batch.

    Attributes:
        point: the capture point of the activation, one of `PATCH_POINTS`.
        positions: the positions to replace; all if None.
        index: the head (for z and pattern) or memories (for coefficients) to replace; the whole vector if None.
        value: the new values, (position, ...) or a scalar; they are broadcast.
    """

    point: str
    layer: int
    positions: Int[Tensor, " p"] | None
    index: int | Int[Tensor, " i"] | None
    value: Tensor

    def write(self, t: Float[Tensor, "pos ..."]) -> None:
        """Write the new values into the activation (pos, ...) of one row."""
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
        """Return the same replacement for a prompt of `n_pos` tokens that is padded on the right to `width` tokens."""
        positions = torch.arange(n_pos) if self.positions is None else self.positions
        value = torch.nn.functional.pad(self.value, (0, width - n_pos)) if self.point == "pattern" else self.value
        return replace(self, positions=positions, value=value)


Changes = Sequence[tuple[int, Replacement]]
"""Pairs of a row of the batch, by its index, and a replacement to make in this row."""


@contextmanager
def replaced_pass(
    lm: Decoder,
    changes: Changes,
    edits: Edits = (),
    captures: Mapping[Place, Callback] | None = None,
    hooks: Mapping[Place, Hook] | None = None,
    *,
    skipped: Sequence[Any] = (),
    entering: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[ForwardPass]:
    """A context in which a forward pass makes replacements, after the edits and before the captures.

    Args:
        captures: as in `stream.hooks.attach_hooks`.
        hooks: functions that change other activations, called before the replacements.
        skipped: what `record_outputs` returned for the first blocks, which are to be skipped: they return their input
            unchanged, in an output of the recorded form.
        entering: a function that replaces the input of the first block that is not skipped.

    Raises:
        PointMissing: a layer does not have an activation to replace.
        Unsupported: an activation cannot be replaced in this model.
    """
    chosen: dict[Place, list[tuple[int, Replacement]]] = {}
    for row, replacement in changes:
        chosen.setdefault((replacement.point, replacement.layer), []).append((row, replacement))
    of_patterns: dict[Place, Hook] = {}
    others: dict[Place, list[Hook]] = {place: [hook] for place, hook in (hooks or {}).items()}
    if entering is not None:
        others["resid_pre", len(skipped)] = [lambda t, _layer: entering(t)]
    for (point, layer), of_place in chosen.items():
        require_point(lm, point, layer)
        if point in STREAM_POINTS:
            require_one_stream(lm, f"replacing {point}")
        if point == "pattern":
            of_patterns |= _mixing(lm, layer, of_place)
            continue
        writing = _writing_middle(lm, layer, of_place) if point == "resid_mid" else {(point, layer): _writing(of_place)}
        for place, hook in writing.items():
            others.setdefault(place, []).append(hook)
    with ExitStack() as stack:
        stack.enter_context(lm.lock)  # first, so that no other thread runs the model while its blocks are skipped
        for block, form in zip(lm.structure.blocks, skipped, strict=False):
            stack.enter_context(_passed_through(block.module, form))
        if of_patterns:  # attached first, so that edits of z apply to the z computed from the new pattern
            stack.enter_context(attach_hooks(lm, {}, (), of_patterns))
        in_order = {place: _one_after_another(of_place) for place, of_place in others.items()}
        yield stack.enter_context(attach_hooks(lm, captures or {}, edits, in_order))


def _one_after_another(hooks: Sequence[Hook]) -> Hook:
    def all_of_them(t: Tensor, layer: int) -> Tensor | None:
        found = None
        for hook in hooks:
            new = hook(t, layer)
            if new is not None:
                t = found = new
        return found

    return all_of_them


def _writing(changes: Changes) -> Hook:
    def written(t: Tensor, _layer: int) -> Tensor:
        t = t.clone()
        for row, replacement in changes:
            replacement.write(t[row])
        return t

    return written


def _writing_middle(lm: Decoder, layer: int, changes: Changes) -> dict[Place, Hook]:
    """Return hooks that replace the stream between attention and FFN, by changing the output of attention."""
    block, seen = lm.structure.blocks[layer], dict[str, Tensor]()
    if block.entry_norm is not None:
        raise Unsupported(
            f"replacing resid_mid of {block.path}", why="the block normalises the stream that it receives"
        )
    if block.early_writers:
        raise Unsupported(
            f"replacing resid_mid of {block.path}",
            why="a component other than the mixer writes to the stream before this point",
        )
    if block.mixer is not None and isinstance(block.mixer.branch_norm, ChannelGain):
        why = "each channel has its own gain between the mixer and the stream"
        raise Unsupported(f"replacing resid_mid of {block.path}", why=why, instead="Replace attn_out")

    def middle(t: Tensor, _layer: int) -> Tensor:
        t = t.clone()
        for row, replacement in changes:
            # With a device_map, the block's input may be on another device.
            own = seen["resid_pre"][row].to(t.device) * block.entry_gain + t[row]
            wanted = own.clone()
            replacement.write(wanted)
            t[row] += wanted - own
        return t

    return {("resid_pre", layer): _noting(seen, "resid_pre"), ("attn_out", layer): middle}


def _mixing(lm: Decoder, layer: int, changes: Changes) -> dict[Place, Hook]:
    """Return hooks that replace an attention pattern, by changing z, which is the pattern times the row's values."""
    require_point(lm, "values", layer)
    seen = dict[str, Tensor]()

    def mixed(z: Tensor, _layer: int) -> Tensor:
        z = z.clone()
        values = by_head(seen["values"], z.shape[2])
        for row, r in changes:
            positions = torch.arange(r.value.shape[0]) if r.positions is None else r.positions
            z[row, positions, r.index] = r.value.to(z) @ values[row, r.index].to(z)
        return z

    return {("values", layer): _noting(seen, "values"), ("z", layer): mixed}


def _noting(seen: dict[str, Tensor], name: str) -> Hook:
    return lambda t, _layer: seen.__setitem__(name, t)


def by_head(values: Float[Tensor, "row kv_head pos d_head"], n_heads: int) -> Float[Tensor, "row head pos d_head"]:
    """Return the values that each query head mixes; query heads that share a key-value head have the same."""
    return values.repeat_interleave(n_heads // values.shape[1], dim=1)


def record_outputs(stack: ExitStack, lm: Decoder) -> list[Any]:
    """Return a list to which every block appends the form of its output, until the stack closes.

    The entry is None if the block returned a tensor. If it returned a tuple or list, the entry is that output without
    its tensors; an ellipsis (...) stands in place of the residual stream.
    """
    forms: list[Any] = []
    stack.enter_context(lm.lock)  # without the lock, a pass in another thread would append to `forms` too
    for block in lm.structure.blocks:
        handle = block.module.register_forward_hook(lambda _m, _a, out: forms.append(_without_stream(out)))
        stack.callback(handle.remove)
    return forms


def _without_stream(out: Any) -> Any:
    """Return the output of a block without its tensors; an ellipsis marks the place of the stream."""
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
