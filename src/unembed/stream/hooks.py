"""Hooks on the real modules: one callback for each tensor asked, edits before anyone looks.

A callback sees the live tensor and must copy what it wants to keep before it returns: Falcon, among others, adds to
such tensors in place later in the pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unembed.errors import InvalidInput, OutOfMemory, PointMissing
from unembed.models.decoder import Decoder
from unembed.models.structure.dry_run import first_tensor, given_tensor
from unembed.models.structure.structure import FeedForwardSite
from unembed.names import POINTS
from unembed.stream.attention_weights import returning_patterns
from unembed.stream.interventions import Edit, Rows, checked, edit_coefficients, edit_heads

Callback = Callable[[Tensor], None]
INNER_POINTS = ("attn_in", "position_embedding", "gate")
"""Points that are no part of the public words: what V reads, the positions' writer, a gate before its activation."""


class Stop(Exception):
    """Raised by a callback when nothing later in the pass is needed."""


class ForwardPass:
    """One watched stretch of the model: extra forward arguments, and the shape of the pass under way."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Start without a pass under way."""
        self.arguments = arguments
        self.rows = Rows()
        self.shape = (1, 1)

    def begin(self, given: Tensor | None, kwargs: dict[str, Any]) -> None:
        """Note the batch, the padding and how many positions a cache already holds."""
        if given is not None:
            self.shape = (given.shape[0], given.shape[1])
        cache, mask = kwargs.get("past_key_values"), kwargs.get("attention_mask")
        seen = int(cache.get_seq_length()) if cache is not None and hasattr(cache, "get_seq_length") else 0
        self.rows = Rows(start=torch.full((self.shape[0], 1), seen) if seen else None)
        if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= seen + self.shape[1]:
            real = mask.bool()
            if bool(real.all()):
                return
            padding = (real.long().cumsum(dim=1) == 0).sum(dim=1, keepdim=True)
            self.rows = Rows(real[:, seen : seen + self.shape[1]], seen - padding)

    def by_position(self, t: Tensor) -> Tensor:
        """The tensor as (batch, pos, ...), for modules that flatten the two."""
        return t.view(*self.shape, t.shape[-1]) if t.dim() == 2 else t


def require_point(lm: Decoder, point: str, layer: int) -> None:
    """Refuse a point that this layer does not have.

    Raises:
        InvalidInput: no such point in any model.
        PointMissing: the model or layer has no such tensor.
    """
    if point not in POINTS and point not in INNER_POINTS:
        raise InvalidInput(f"capture point {point!r}", why=f"it is none of {', '.join(POINTS)}")
    block = lm.structure.blocks[layer]
    what = f"{lm.name} layer {layer} has no {point}"
    if point == "resid_mid" and block.parallel:
        raise PointMissing(
            what,
            why="attention and FFN both read resid_pre and are added together",
            instead="Use resid_pre or resid_post",
        )
    if block.feed_forward is None and point in ("resid_mid", "mlp_out", "coefficients"):
        raise PointMissing(what, why="the model is attention-only", instead="Use resid_pre, resid_post, attn_out or z")
    if point == "coefficients":
        lm.feed_forward(layer)
    if point == "gate" and (block.feed_forward is None or not block.feed_forward.is_gated):
        raise PointMissing(what, why="its FFN has no gate")
    if point == "position_embedding" and lm.structure.position_embedding is None:
        raise PointMissing(what, why="it adds no positions to the stream")


@contextmanager
def attach_hooks(
    lm: Decoder, captures: Mapping[tuple[str, int], Callback], edits: Sequence[Edit] = ()
) -> Iterator[ForwardPass]:
    """While inside, every forward pass of `lm.hf` calls back with the tensors asked, after the edits were made.

    Hooks are gone when the block is left, however it is left. One thread at a time.

    Args:
        lm: the model.
        captures: for (point, layer), what to call with the live tensor: (batch, pos, width), z as (batch, pos, head,
            d_head), pattern as (batch, head, dst, src). A callback may raise `Stop`.
        edits: changes to make, in order.

    Yields:
        The pass, whose `arguments` must be given to the model's forward.
    """
    for point, layer in captures:
        require_point(lm, point, layer)
    todo = checked(lm, edits)
    wanted = sorted({layer for point, layer in captures if point == "pattern"})
    with ExitStack() as stack:
        stack.enter_context(lm.lock)
        current = ForwardPass(stack.enter_context(returning_patterns(lm, wanted)))
        decoder = lm.hf.get_decoder() if hasattr(lm.hf, "get_decoder") else lm.hf.base_model
        # First of all hooks: those on the blocks need to know where the pass stands.
        _before(stack, lm.structure.blocks[0].module, lambda t, _k: _note_shape(current, t))
        stack.callback(
            decoder.register_forward_pre_hook(lambda _m, a, k: current.begin(_tokens(a, k), k), with_kwargs=True).remove
        )
        for layer in sorted({e.layer for e in todo}):
            _install_edits(stack, lm, layer, [e for e in todo if e.layer == layer], current)
        for (point, layer), callback in captures.items():
            _install_capture(stack, lm, point, layer, callback, current)
        yield current


def _tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    for name in ("input_ids", "inputs_embeds"):
        if isinstance(kwargs.get(name), Tensor):
            return kwargs[name]
    return first_tensor(args)


def _note_shape(current: ForwardPass, given: Tensor | None) -> None:
    if given is not None and given.dim() == 3:
        current.shape = (given.shape[0], given.shape[1])


def _before(stack: ExitStack, module: nn.Module, look: Callable[[Tensor | None, dict[str, Any]], None]) -> None:
    stack.callback(
        module.register_forward_pre_hook(lambda _m, a, k: look(given_tensor(a, k), k), with_kwargs=True).remove
    )


def _after(stack: ExitStack, module: nn.Module, look: Callable[[Any], None]) -> None:
    stack.callback(module.register_forward_hook(lambda _m, _a, out: look(out)).remove)


def _install_edits(stack: ExitStack, lm: Decoder, layer: int, edits: list[Edit], current: ForwardPass) -> None:
    """Replace what the down-projection or the out-projection is given."""
    block = lm.structure.blocks[layer]
    memories = [e for e in edits if e.target == "coefficient"]
    heads = [e for e in edits if e.target == "head"]
    if memories:
        down = lm.feed_forward(layer).down_proj
        assert down is not None

        def change_coefficients(_m: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            given = args[0]
            changed = edit_coefficients(current.by_position(given), memories, current.rows)
            return (changed.view(given.shape), *args[1:])

        stack.callback(down.register_forward_pre_hook(change_coefficients).remove)
    if heads:
        site = block.attention

        def change_heads(_m: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            z = current.by_position(args[0])
            changed = edit_heads(z.view(*current.shape, site.n_heads, site.d_head), heads, current.rows)
            return (changed.view(args[0].shape), *args[1:])

        stack.callback(site.out_proj.register_forward_pre_hook(change_heads).remove)


def _install_capture(
    stack: ExitStack, lm: Decoder, point: str, layer: int, callback: Callback, current: ForwardPass
) -> None:
    """One hook where the point lies."""
    block = lm.structure.blocks[layer]
    site, ffn = block.attention, block.feed_forward

    def given(t: Tensor | None, _kwargs: dict[str, Any]) -> None:
        assert t is not None
        callback(current.by_position(t))

    def returned(multiplier: float) -> Callable[[Any], None]:
        def look(out: Any) -> None:
            t = current.by_position(_first(out))
            callback(t if multiplier == 1.0 else t * multiplier)

        return look

    def heads(t: Tensor | None, _kwargs: dict[str, Any]) -> None:
        assert t is not None
        callback(current.by_position(t).view(*current.shape, site.n_heads, site.d_head))

    def weights(out: Any) -> None:
        found = next((t for t in out[1:] if isinstance(t, Tensor) and t.dim() == 4), None)
        if found is None:
            raise PointMissing(f"{lm.name} layer {layer} has no pattern", why="its attention returns no weights")
        callback(found)

    if point == "resid_pre":
        _before(stack, block.module, given)
    elif point == "resid_post":
        _after(stack, block.module, returned(1.0))
    elif point == "z":
        _before(stack, site.out_proj, heads)
    elif point == "pattern":
        _after(stack, site.module, weights)
    elif point == "attn_in":
        _before(stack, site.layout.v, given)
    elif point == "attn_out":
        module = site.branch_norm.module if site.branch_norm else site.out_proj
        _after(stack, module, returned(site.multiplier))
    elif point == "position_embedding":
        module = lm.structure.position_embedding
        assert module is not None
        _after(stack, module, lambda out: callback(_positions(_first(out), current)))
    elif ffn is not None and point == "resid_mid":
        _before(stack, ffn.entry, given)
    elif ffn is not None and point == "mlp_out":
        module = ffn.branch_norm.module if ffn.branch_norm else ffn.down_proj or ffn.module
        _after(stack, module, returned(ffn.multiplier))
    elif ffn is not None and ffn.gate_proj is not None and point == "gate":
        _after(stack, ffn.gate_proj, lambda out: callback(_gate(current.by_position(_first(out)), ffn)))
    elif ffn is not None and ffn.down_proj is not None and point == "coefficients":
        _before(stack, ffn.down_proj, given)


def _first(out: Any) -> Tensor:
    t = first_tensor(out)
    assert t is not None
    return t


def _gate(t: Tensor, ffn: FeedForwardSite) -> Tensor:
    """The gate's part of what its projection returns."""
    return t.chunk(2, dim=-1)[0 if ffn.gate_first else 1] if ffn.is_fused else t


def _positions(t: Tensor, current: ForwardPass) -> Tensor:
    t = t if t.dim() == 3 else t[None]
    return t.expand(current.shape[0], *t.shape[1:])


@contextmanager
def memory_guard(what: str) -> Iterator[None]:
    """Turn a failed allocation into one line that says what to do.

    Raises:
        OutOfMemory: an allocation inside failed.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _too_large(what) from error
    except RuntimeError as error:
        if "not enough memory" not in str(error) and "can't allocate memory" not in str(error):
            raise
        raise _too_large(what) from error


def _too_large(what: str) -> OutOfMemory:
    return OutOfMemory(
        what,
        why="an allocation failed",
        instead="Ask for fewer layers or points, a shorter prompt or smaller chunks, or load with dtype='bfloat16'",
    )


def accepts_argument(lm: Decoder, argument: str) -> bool:
    """Whether the model's forward has this argument."""
    return argument in inspect.signature(type(lm.hf).forward).parameters
