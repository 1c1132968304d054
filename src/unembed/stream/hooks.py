"""Attach hooks to the model's modules that apply edits and then pass captured tensors to callbacks.

A callback receives the model's own tensor and must copy what it stores before it returns: Falcon, among others, changes
such tensors in place later in the pass. A model compiled in place (`hf.compile()`) runs without compilation while hooks
are attached, because compiled code does not call them.
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
from unembed.models.structure.dry_run import INPUT_NAMES, first_tensor, given_tensor, tensors_in
from unembed.models.structure.effective_matrix import is_measuring
from unembed.stream.attention_weights import forward_with_scores, returning_patterns
from unembed.stream.capture_points import OF_WEIGHTS, ForwardPass, capture_point, require_point
from unembed.stream.experts import install_experts
from unembed.stream.interventions import EDITED_POINTS, Edit, Edits, checked, edited

Callback = Callable[[Tensor], None]
Hook = Callable[[Tensor, int], Tensor | None]
"""A function of the live tensor and its layer. A tensor that it returns replaces the live one; None leaves it."""


class Stop(Exception):
    """Raised by a callback to end the forward pass early, when nothing later in it is needed."""


@contextmanager
def attach_hooks(
    lm: Decoder,
    captures: Mapping[tuple[str, int], Callback],
    edits: Edits = (),
    hooks: Mapping[tuple[str, int], Hook] | None = None,
    *,
    pattern_row: int | None = None,
) -> Iterator[ForwardPass]:
    """A context in which every forward pass of `lm.hf` is edited and passes captured tensors to callbacks.

    The hooks are removed when the context ends, also after an exception. Only one thread can be in it at a time.

    Args:
        captures: for each (point, layer), a function to call with the model's tensor: (batch, pos, width); z is (batch,
            pos, head, d_head), scores and pattern are (batch, head, dst, src). The function may raise `Stop`.
        edits: changes to make, in order.
        hooks: for each (point, layer), a function that may replace the tensor, after the edits and before captures.
        pattern_row: the only destination position of patterns that is needed; they may then have only this row.

    Yields:
        The forward pass, whose `arguments` must be passed to the model's forward.
    """
    for point, layer in captures:
        require_point(lm, point, layer)
    todo = checked(lm, edits)
    wanted = sorted({layer for point, layer in (*captures, *(hooks or {})) if point in OF_WEIGHTS})
    with ExitStack() as stack:
        stack.enter_context(lm.lock)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        current = ForwardPass(stack.enter_context(returning_patterns(lm, wanted, pattern_row)))
        decoder = lm.hf.get_decoder()
        # This hook must run before all other hooks of the blocks, which need the shape that it records, so it is
        # registered first.
        if lm.structure.blocks:
            _before(stack, lm.structure.blocks[0].module, lambda t, _k: _note_shape(current, t))
        stack.callback(
            decoder.register_forward_pre_hook(lambda _m, a, k: current.begin(_tokens(a, k), k), with_kwargs=True).remove
        )
        for (point, layer), callback in captures.items():
            if point == "unedited_post":
                _install_capture(stack, lm, point, layer, callback, current)
        # The hooks of experts may change the FFN's output, so they must run before hooks that change or capture it.
        _install_experts(stack, lm, captures, todo, hooks or {}, current)
        for (point, layer), hook in (*_edit_hooks(todo, current), *(hooks or {}).items()):
            if not of_experts(lm, point, layer):
                _install_hook(stack, lm, point, layer, hook, current)
        for (point, layer), callback in captures.items():
            if point != "unedited_post" and not of_experts(lm, point, layer):
                _install_capture(stack, lm, point, layer, callback, current)
        yield current


def of_experts(lm: Decoder, point: str, layer: int) -> bool:
    """Tell whether a capture point's tensor comes from a layer's experts, not from one module's input or output."""
    return point in ("coefficients", "gate_weights", "routed") and lm.experts_of(layer) is not None


def _install_experts(
    stack: ExitStack,
    lm: Decoder,
    captures: Mapping[tuple[str, int], Callback],
    edits: Sequence[Edit],
    hooks: Mapping[tuple[str, int], Hook],
    current: ForwardPass,
) -> None:
    """Attach hooks to each layer of experts whose coefficients or gate weights are captured or changed."""
    for layer in range(lm.n_layers):
        if lm.experts_of(layer) is None:
            continue
        own = [e for e in edits if e.layer == layer and e.target == "coefficient"]
        found = [(p, callback) for (p, n), callback in captures.items() if n == layer and of_experts(lm, p, n)]
        routed: list[Any] = [callback for p, callback in found if p == "routed"]
        dense = [(p, callback) for p, callback in found if p != "routed"]
        changes = []
        if (hook := hooks.get(("coefficients", layer))) is not None:
            changes.append(lambda m, hook=hook, n=layer: _replacement("coefficients", n, m, hook(m.clone(), n)))
        if (reader := hooks.get(("gate_weights", layer))) is not None:
            dense.append(("gate_weights", lambda t, hook=reader, n=layer: _only_read("gate_weights", hook(t, n))))
        if own or changes or dense or routed:
            install_experts(stack, lm, layer, current, edits=own, changes=changes, captures=dense, routed=routed)


def _tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    for name in ("input_ids", "inputs_embeds"):
        if isinstance(kwargs.get(name), Tensor):
            return kwargs[name]
    return first_tensor(args)


def _note_shape(current: ForwardPass, given: Tensor | None) -> None:
    if given is not None and given.dim() == 3:
        current.shape = (given.shape[0], given.shape[1])


def _before(stack: ExitStack, module: nn.Module, look: Callable[[Tensor | None, dict[str, Any]], None]) -> None:
    def before(_m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_measuring():
            look(given_tensor(args, kwargs), kwargs)

    stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)


def after_module(stack: ExitStack, module: nn.Module, look: Callable[[Any], None]) -> None:
    """Call `look` with the output of a module after each of its calls, until the stack closes."""

    def after(_m: nn.Module, _args: tuple[Any, ...], out: Any) -> None:
        if not is_measuring():
            look(out)

    stack.callback(module.register_forward_hook(after).remove)


def _edit_hooks(edits: Sequence[Edit], current: ForwardPass) -> Iterator[tuple[tuple[str, int], Hook]]:
    """Yield one hook for each capture point and layer, which applies all edits there."""
    of: dict[tuple[str, int], list[Edit]] = {}
    for edit in edits:
        of.setdefault((EDITED_POINTS[edit.target], edit.layer), []).append(edit)
    for key, own in of.items():
        yield key, lambda t, _layer, own=own: edited(t, own, current.rows)


def change_tensor(stack: ExitStack, lm: Decoder, layer: int, point: str, change: Callable[[Tensor], Tensor]) -> None:
    """Apply `change` to a module's input or output, at the capture point `point`, until the stack closes."""
    row, block = capture_point(point), lm.structure.blocks[layer]
    module = row.module(lm, block)
    assert module is not None

    def changed(value: Any) -> Any:
        """Return the module's input or output with one tensor in it replaced."""
        if is_measuring():
            return value
        if isinstance(value, Tensor):
            return change(value)
        at = [i for i, part in enumerate(value) if isinstance(part, Tensor)][row.item(block)]
        return type(value)([*value[:at], change(value[at]), *value[at + 1 :]])

    def before(_m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if is_measuring() or any(isinstance(part, Tensor) for part in args):
            return changed(args), kwargs
        name = next(name for name in INPUT_NAMES if isinstance(kwargs.get(name), Tensor))
        return args, {**kwargs, name: change(kwargs[name])}

    if row.before:
        stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
    else:
        stack.callback(module.register_forward_hook(lambda _m, _args, out: changed(out)).remove)


def _install_hook(stack: ExitStack, lm: Decoder, point: str, layer: int, hook: Hook, current: ForwardPass) -> None:
    """Call `hook` with the captured tensor; if it returns a tensor, use that instead."""
    require_point(lm, point, layer)
    block = lm.structure.blocks[layer]
    if point in OF_WEIGHTS:
        _install_capture(stack, lm, point, layer, lambda t: _only_read(point, hook(t, layer)), current)
        return
    row = capture_point(point)

    def change(own: Tensor) -> Tensor:
        seen = row.reshape(current.by_position(own), block, current)
        new = hook(seen, layer)
        if new is None:
            return own
        if row.put_back is None:
            _only_read(point, new)
        assert row.put_back is not None
        return row.put_back(_replacement(point, layer, seen, new).to(own.dtype), own, block)

    change_tensor(stack, lm, layer, point, change)


def _replacement(point: str, layer: int, seen: Tensor, new: Any) -> Tensor:
    """Check what a user's hook returned, and return the tensor to use; None means the unchanged tensor."""
    if new is None:
        return seen
    if not isinstance(new, Tensor) or new.shape != seen.shape:
        given = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
        raise InvalidInput(
            f"the value that the hook at {point} returned in layer {layer}",
            why=f"it is {given}, not a tensor of shape {tuple(seen.shape)}",
            instead="Return a tensor of the same shape, or None",
        )
    return new


def _only_read(point: str, returned: Tensor | None) -> None:
    if returned is not None:
        raise InvalidInput(
            f"a replacement for {point}",
            why="other parts of the layer read the same tensor, so that it cannot be replaced alone",
            instead="Replace resid_pre, attn_out, q, k, v, z, gate, up, coefficients, mlp_out or resid_post",
        )


def _install_capture(
    stack: ExitStack, lm: Decoder, point: str, layer: int, callback: Callback, current: ForwardPass
) -> None:
    """Attach the hook that passes one captured tensor to a callback."""
    block = lm.structure.blocks[layer]
    if point == "scores":
        stack.enter_context(forward_replaced(block.attention.module, forward_with_scores(lm, layer, callback)))
        return
    if point == "pattern":

        def weights(out: Any) -> None:
            pattern = next((t for t in out[1:] if isinstance(t, Tensor) and t.dim() == 4), None)
            if pattern is None:
                raise PointMissing(f"{lm.name} layer {layer} has no pattern", why="its attention returns no weights")
            callback(block.attention.pattern(pattern))

        after_module(stack, block.attention.module, weights)
        return
    row = capture_point(point)
    module = row.module(lm, block)
    assert module is not None

    def capture(t: Tensor | None) -> None:
        assert t is not None
        callback(row.reshape(current.by_position(t), block, current))

    if row.before:
        _before(stack, module, lambda t, _kwargs: capture(t))
    else:
        after_module(stack, module, lambda out: capture(tensors_in(out)[row.item(block)]))


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """A context in which a module has another `forward`."""
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
    """A context in which a failed memory allocation raises a one-line error that says what to do.

    Raises:
        OutOfMemory: an allocation in the context failed.
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
    """Tell whether the model's forward accepts this argument."""
    return argument in inspect.signature(type(lm.hf).forward).parameters
