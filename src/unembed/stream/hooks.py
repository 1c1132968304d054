"""Hooks on the model's own modules: a callback for each captured tensor, after the edits.

A callback receives the live tensor and must copy what it keeps before it returns: Falcon, among others, changes such
tensors in place later in the pass. A model compiled in place (`hf.compile()`) runs eagerly while hooks are attached,
because compiled code does not call them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unembed.errors import InvalidInput, OutOfMemory, PointMissing
from unembed.models.decoder import Decoder
from unembed.models.structure.dry_run import first_tensor, given_tensor
from unembed.models.structure.structure import Block, Writer
from unembed.names import POINTS
from unembed.stream.attention_weights import returning_patterns
from unembed.stream.experts import install_experts
from unembed.stream.interventions import (
    Edit,
    Rows,
    checked,
    edit_coefficients,
    edit_heads,
    edit_stream,
    scale_output,
)

Callback = Callable[[Tensor], None]


class Stop(Exception):
    """Raised by a callback to end the pass when nothing later in it is needed."""


class ForwardPass:
    """A forward pass with hooks: extra arguments for the model, and the shape of the current batch."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Create it before the pass starts."""
        self.arguments = arguments
        self.rows = Rows()
        self.shape = (1, 1)
        self.edited: dict[int, tuple[list[int], Tensor]] = {}
        """In layers of experts whose coefficients were edited: which ones, and what they are now."""

    def begin(self, given: Tensor | None, kwargs: dict[str, Any]) -> None:
        """Note the batch, the padding and how many positions a cache already holds."""
        self.edited.clear()
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


@dataclass(frozen=True)
class _Capture:
    """Where one point is captured: a row of the table below."""

    module: Callable[[Decoder, Block], nn.Module | None]
    """The module; None where the layer does not have the point."""
    before: bool
    """Whether the tensor is the module's input (True) or its output."""
    reshape: Callable[[Tensor, Block, ForwardPass], Tensor] = lambda t, _block, _pass: t
    missing: Callable[[Block], tuple[str, str]] = lambda _block: ("the layer has no such tensor", "")
    """Why the point is missing, and what to use instead."""


def _mixer_output(block: Block) -> nn.Module | None:
    return None if block.mixer is None else block.mixer.output


def _added_by_mixer(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    site = block.mixer
    assert site is not None
    t = t if site.multiplier == 1.0 else t * site.multiplier
    return t if site.constant is None else t + site.constant


def _added_by_ffn(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    assert block.feed_forward is not None
    return t if block.feed_forward.multiplier == 1.0 else t * block.feed_forward.multiplier


def _by_head(t: Tensor, block: Block, current: ForwardPass) -> Tensor:
    assert block.mixer is not None
    return t.reshape(*current.shape, block.mixer.n_heads, block.mixer.d_head)


def _value_heads(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    assert block.mixer is not None and block.mixer.values is not None
    return block.mixer.values.split(t)


def _split(which: str) -> Callable[[Tensor, Block, ForwardPass], Tensor]:
    """Queries, keys or values by head, out of what the projection returns."""
    return lambda t, block, _pass: block.attention.split_heads(t, which)


def _half(which: str) -> Callable[[Tensor, Block, ForwardPass], Tensor]:
    """The gate or up branch, out of what a projection that may be fused returns."""

    def half(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
        assert block.feed_forward is not None
        return block.feed_forward.half(t, which)

    return half


def _projection(which: str) -> Callable[[Decoder, Block], nn.Module | None]:
    """The module that projects to queries, keys or values; None where it was not found."""
    return lambda _lm, b: (
        None if b.mixer is None or b.mixer.head_layout is None else getattr(b.mixer.head_layout, which)
    )


def _no_projection(block: Block) -> tuple[str, str]:
    why = "the layer has no attention" if block.mixer is None else block.mixer.values_missing
    return why or "the layer has no attention", "Use attn_out or z"


def _every_row(t: Tensor, _block: Block, current: ForwardPass) -> Tensor:
    t = t if t.dim() == 3 else t[None]
    return t.expand(current.shape[0], *t.shape[1:])


def _no_ffn(block: Block) -> tuple[str, str]:
    return ("the layer has no FFN", "Use resid_pre, resid_post or attn_out") if block.feed_forward is None else ("", "")


def _no_gate(block: Block) -> tuple[str, str]:
    return (
        _no_up(block)
        if block.feed_forward is None or block.feed_forward.down_proj is None
        else ("its FFN has no gate", "Use up")
    )


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
    return f"{type(block.mixer.module).__name__} does not end in a projection over heads", "Use attn_out"


def _no_values(block: Block) -> tuple[str, str]:
    return ("" if block.mixer is None else block.mixer.values_missing) or "the layer has no attention", "Use attn_out"


def _one_stream(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    """The stream between blocks: where there are several, put together as at the model's end."""
    return t if block.streams is None else block.streams.collapsed(block.streams.split(t))


def _left(t: Tensor, block: Block, current: ForwardPass) -> Tensor:
    t = _one_stream(t, block, current)
    return t if block.handover == 1.0 else t * block.handover


def _each_stream(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    assert block.streams is not None
    return block.streams.split(t)


def _middle(t: Tensor, block: Block, _pass: ForwardPass) -> Tensor:
    assert block.streams is not None
    return block.streams.middle_of(t)


_ROWS: dict[str, _Capture] = {
    "resid_pre": _Capture(lambda _lm, b: b.module, True, _one_stream),
    "resid_mid": _Capture(
        lambda _lm, b: b.feed_forward.entry if b.feed_forward is not None and b.is_sequential else None,
        before=True,
        missing=_no_middle,
    ),
    "resid_post": _Capture(lambda _lm, b: b.module, False, _left),
    "unedited_post": _Capture(lambda _lm, b: b.module, False, _left),
    "streams": _Capture(lambda _lm, b: None if b.streams is None else b.module, True, _each_stream),
    "streams_middle": _Capture(lambda _lm, b: b.middle_module, True, _middle),
    "streams_end": _Capture(
        lambda lm, b: b.module if b.streams is not None and b is lm.structure.blocks[-1] else None, False, _each_stream
    ),
    "attn_out": _Capture(lambda _lm, b: _mixer_output(b), False, _added_by_mixer, _no_mixer),
    "mlp_out": _Capture(
        lambda _lm, b: None if b.feed_forward is None else b.feed_forward.output, False, _added_by_ffn, _no_ffn
    ),
    "coefficients": _Capture(
        lambda _lm, b: None if b.feed_forward is None else b.feed_forward.memory_module, before=True, missing=_no_ffn
    ),
    "routed": _Capture(
        lambda _lm, b: b.feed_forward.module if b.feed_forward is not None and b.feed_forward.experts else None,
        before=False,
        missing=lambda _block: ("its FFN has no experts", "Use coefficients"),
    ),
    "gate_weights": _Capture(
        lambda _lm, b: b.feed_forward.module if b.feed_forward is not None and b.feed_forward.experts else None,
        before=False,
        missing=lambda _block: ("its FFN has no experts", "Use gate or coefficients"),
    ),
    "mlp_in": _Capture(
        lambda _lm, b: None if b.feed_forward is None else b.feed_forward.reader, before=True, missing=_no_ffn
    ),
    "gate": _Capture(
        lambda _lm, b: None if b.feed_forward is None else b.feed_forward.gate_proj, False, _half("gate"), _no_gate
    ),
    "up": _Capture(
        lambda _lm, b: None if b.feed_forward is None else b.feed_forward.up_proj, False, _half("up"), _no_up
    ),
    "z": _Capture(
        lambda _lm, b: b.mixer.out_projection if b.mixer is not None and b.mixer.n_heads else None,
        True,
        _by_head,
        _no_heads,
    ),
    "attn_in": _Capture(_projection("v"), before=True, missing=_no_projection),
    **{which: _Capture(_projection(which), False, _split(which), _no_projection) for which in ("q", "k", "v")},
    "values": _Capture(
        lambda _lm, b: None if b.mixer is None or b.mixer.values is None else b.mixer.values.module,
        False,
        _value_heads,
        _no_values,
    ),
    "position_embedding": _Capture(
        lambda lm, _b: lm.structure.position_embedding,
        False,
        _every_row,
        lambda _block: ("the model adds no positions to the stream", ""),
    ),
}
"""Every capture point but the pattern, which has to be computed, and the outputs of other writers ("writer 0", ...).
`unedited_post` is resid_post before edits of the stream; its hooks run before those of the edits."""


def _row(point: str) -> _Capture:
    """The row of a point.

    Raises:
        InvalidInput: there is no such point.
    """
    if point in _ROWS:
        return _ROWS[point]
    name, _, number = point.partition(" ")
    if name == "writer" and number.isdigit():
        return _Capture(
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
    """Whether a layer has a point.

    Raises:
        InvalidInput: no model has such a point.
    """
    block = lm.structure.blocks[layer]
    if point == "pattern":
        return block.mixer is not None and block.mixer.is_attention
    return _row(point).module(lm, block) is not None


def require_point(lm: Decoder, point: str, layer: int) -> None:
    """Refuse a point that this layer does not have.

    Raises:
        InvalidInput: no model has such a point.
        PointMissing: the model or layer has no such tensor.
        Unsupported: the layer has an FFN without memories.
    """
    if has_point(lm, point, layer):
        return
    block = lm.structure.blocks[layer]
    if point == "coefficients" and block.feed_forward is not None:
        lm.feed_forward(layer)  # raises and says why
    why, instead = ("it has no attention", "") if point == "pattern" else _row(point).missing(block)
    raise PointMissing(f"{lm.name} layer {layer} has no {point}", why=why, instead=instead)


@contextmanager
def attach_hooks(
    lm: Decoder, captures: Mapping[tuple[str, int], Callback], edits: Sequence[Edit] = ()
) -> Iterator[ForwardPass]:
    """A context in which every forward pass of `lm.hf` is edited and calls back with the captured tensors.

    The hooks are removed when the context ends, also by an exception. One thread at a time.

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
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        current = ForwardPass(stack.enter_context(returning_patterns(lm, wanted)))
        decoder = lm.hf.get_decoder() if hasattr(lm.hf, "get_decoder") else lm.hf.base_model
        # First of all hooks: those on the blocks need to know where the pass stands.
        if lm.structure.blocks:
            _before(stack, lm.structure.blocks[0].module, lambda t, _k: _note_shape(current, t))
        stack.callback(
            decoder.register_forward_pre_hook(lambda _m, a, k: current.begin(_tokens(a, k), k), with_kwargs=True).remove
        )
        for (point, layer), callback in captures.items():
            if point == "unedited_post":
                _install_capture(stack, lm, point, layer, callback, current)
        _install_experts(stack, lm, captures, todo, current)  # before others change or capture what the FFN writes
        for layer in sorted({e.layer for e in todo}):
            _install_edits(stack, lm, layer, [e for e in todo if e.layer == layer], current)
        for (point, layer), callback in captures.items():
            if point != "unedited_post" and not (point in _OF_EXPERTS and has_experts(lm, layer)):
                _install_capture(stack, lm, point, layer, callback, current)
        yield current


_OF_EXPERTS = ("coefficients", "gate_weights", "routed")


def has_experts(lm: Decoder, layer: int) -> bool:
    """Whether the memories of a layer belong to experts."""
    site = lm.structure.blocks[layer].feed_forward
    return site is not None and site.experts is not None


def _install_experts(
    stack: ExitStack,
    lm: Decoder,
    captures: Mapping[tuple[str, int], Callback],
    edits: Sequence[Edit],
    current: ForwardPass,
) -> None:
    """One observer for each layer of experts whose coefficients are captured or edited."""
    for layer in range(lm.n_layers):
        if not has_experts(lm, layer):
            continue
        own = [e for e in edits if e.layer == layer and e.target == "coefficient"]
        found = [(p, callback) for (p, n), callback in captures.items() if n == layer and p in _OF_EXPERTS]
        routed: list[Any] = [callback for p, callback in found if p == "routed"]
        dense = [(p, callback) for p, callback in found if p != "routed"]
        if own or found:
            install_experts(stack, lm, layer, current, edits=own, captures=dense, routed=routed)


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
    """Replace what the down-projection or the out-projection receives, or what attention, FFN or the block returns."""
    block = lm.structure.blocks[layer]
    of: dict[str, list[Edit]] = {}
    for edit in edits:
        if not (edit.target == "coefficient" and has_experts(lm, layer)):
            of.setdefault(edit.target, []).append(edit)

    def coefficients(m: Tensor) -> Tensor:
        return edit_coefficients(m, of["coefficient"], current.rows)

    def heads(z: Tensor) -> Tensor:
        assert block.mixer is not None
        split = z.reshape(*current.shape, block.mixer.n_heads, block.mixer.d_head)
        return edit_heads(split, of["head"], current.rows)

    def attention(t: Tensor) -> Tensor:
        assert block.mixer is not None
        constant = block.mixer.constant
        beside = 0.0 if constant is None else constant.to(t) / block.mixer.multiplier
        return scale_output(t, of["attention"], current.rows, beside)

    def ffn(t: Tensor) -> Tensor:
        return scale_output(t, of["ffn"], current.rows, 0.0)

    def stream(x: Tensor) -> Tensor:
        return edit_stream(x, of["stream"], current.rows)

    for target, (point, change) in {
        "coefficient": ("coefficients", coefficients),
        "head": ("z", heads),
        "attention": ("attn_out", attention),
        "ffn": ("mlp_out", ffn),
        "stream": ("resid_post", stream),
    }.items():
        if target in of:
            require_point(lm, point, layer)
            _replace(stack, lm, layer, point, change, current)


def _replace(
    stack: ExitStack, lm: Decoder, layer: int, point: str, change: Callable[[Tensor], Tensor], current: ForwardPass
) -> None:
    """Change the tensor that a point's module is given or returns, as (batch, pos, ...)."""
    row = _row(point)
    module = row.module(lm, lm.structure.blocks[layer])
    assert module is not None

    def changed(value: Any) -> Any:
        """With the first tensor of what a module is given or returns replaced."""
        if isinstance(value, Tensor):
            return change(current.by_position(value)).reshape(value.shape)
        first = next(i for i, part in enumerate(value) if isinstance(part, Tensor))
        return type(value)([*value[:first], changed(value[first]), *value[first + 1 :]])

    if row.before:
        stack.callback(module.register_forward_pre_hook(lambda _m, args: changed(args)).remove)
    else:
        stack.callback(module.register_forward_hook(lambda _m, _args, out: changed(out)).remove)


def _install_capture(
    stack: ExitStack, lm: Decoder, point: str, layer: int, callback: Callback, current: ForwardPass
) -> None:
    """One hook, as the point's row says."""
    block = lm.structure.blocks[layer]
    if point == "pattern":

        def weights(out: Any) -> None:
            pattern = next((t for t in out[1:] if isinstance(t, Tensor) and t.dim() == 4), None)
            if pattern is None:
                raise PointMissing(f"{lm.name} layer {layer} has no pattern", why="its attention returns no weights")
            callback(pattern)

        _after(stack, block.attention.module, weights)
        return
    row = _row(point)
    module = row.module(lm, block)
    assert module is not None

    def capture(t: Tensor | None) -> None:
        assert t is not None
        callback(row.reshape(current.by_position(t), block, current))

    if row.before:
        _before(stack, module, lambda t, _kwargs: capture(t))
    else:
        _after(stack, module, lambda out: capture(first_tensor(out)))


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Context manager: replace the module's forward; on exit restore the previous one."""
    before = module.__dict__.get("forward")
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.forward = before


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
