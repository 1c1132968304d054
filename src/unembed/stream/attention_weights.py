"""Return the attention weights of chosen layers, while all other layers use fused kernels.

Fused kernels never store the weights. If a family looks up its attention function in the config at every call, only the
requested layers use the eager function. If it does not (GPT-J, GPT-Neo, Bloom, MPT, Falcon), the whole pass uses eager
attention. If only one destination position is wanted, the eager function computes this one row in addition to the fused
kernel, so that memory grows with the number of tokens and not with its square.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from unembed.errors import PointMissing, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.structure.dry_run import eager
from unembed.models.structure.families import facts_of

Attend = Callable[..., tuple[Tensor, Tensor | None]]
"""An attention function of transformers: takes module, query, key, value, mask and more; returns output and weights."""


def looks_up_its_function(module: nn.Module) -> bool:
    """Tell whether an attention module looks up its attention function in the config at each call."""
    return "ALL_ATTENTION_FUNCTIONS" in inspect.unwrap(type(module).forward).__code__.co_names


@contextmanager
def returning_patterns(lm: Decoder, layers: Sequence[int], row: int | None = None) -> Iterator[dict[str, Any]]:
    """A context in which the attention modules of these layers return their weights.

    Args:
        row: the only destination position that is needed. If possible, only this row of the weights is returned.

    Yields:
        Extra arguments for the model's forward.

    Raises:
        Unsupported: the weights that eager attention returns are known not to be those of the model.
    """
    if not layers:
        yield {}
        return
    sites = [lm.structure.blocks[layer].attention for layer in layers]
    if any(s.scores.alibi_slopes is not None for s in sites) and facts_of(lm.structure.family).eager_alibi_is_doubled:
        raise Unsupported(
            f"attention patterns of {lm.name}",
            why="this family's eager attention adds ALiBi twice, so its patterns are wrong",
            instead="Capture other points than patterns",
        )
    if lm.hf.config._attn_implementation == "eager":
        yield {} if all(looks_up_its_function(s.module) for s in sites) else {"output_attentions": True}
    elif all(looks_up_its_function(s.module) for s in sites):
        with ExitStack() as stack:
            for site in sites:
                one_row = row is not None and _can_return_a_row(lm, site.module)
                stack.enter_context(_row_module(site.module, row or 0) if one_row else _eager_module(site.module))
            yield {}
    else:
        with eager(lm.hf):
            yield {"output_attentions": True}


def own_eager_function(module: nn.Module) -> Callable[..., Any] | None:
    """Return the function `eager_attention_forward` of the module's source file; None if the file has none."""
    return inspect.unwrap(type(module).forward).__globals__.get("eager_attention_forward")


def leaves_kernels(lm: Decoder, layers: Sequence[int]) -> bool:
    """Tell whether the weights of one position can be returned while all outputs still come from fused kernels."""
    sites = [lm.structure.blocks[layer].attention for layer in layers]
    if any(s.scores.alibi_slopes is not None for s in sites) and facts_of(lm.structure.family).eager_alibi_is_doubled:
        return False
    return all(looks_up_its_function(s.module) and _can_return_a_row(lm, s.module) for s in sites)


def _can_return_a_row(lm: Decoder, module: nn.Module) -> bool:
    """Tell whether the weights of one position can be computed in addition to the fused kernel."""
    return lm.hf.config._attn_implementation == "sdpa" and own_eager_function(module) is not None


@contextmanager
def _row_module(module: nn.Module, row: int) -> Iterator[None]:
    """A context in which one attention module also returns the weights of one destination position.

    Its output still comes from the fused kernel; the eager function computes only the weights, from one query.
    """
    eager_function = own_eager_function(module)
    assert eager_function is not None

    def beside(fused: Attend) -> Attend:
        def with_row(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Tensor | None,
            **arguments: Any,
        ) -> tuple[Tensor, Tensor]:
            out = fused(module, query, key, value, attention_mask, **arguments)[0]
            if attention_mask is None:
                mask = (torch.arange(key.shape[2], device=query.device) <= row)[None, None, None]
            else:
                mask = attention_mask[:, :, [row]]
            weights = eager_function(module, query[:, :, [row]], key, value, _additive(mask, query), **arguments)[1]
            return out, weights

        return with_row

    with attending_by(module, "one row", beside):
        yield


@contextmanager
def attending_by(module: nn.Module, name: str, make: Callable[[Attend], Attend]) -> Iterator[None]:
    """A context in which an attention module calls another attention function.

    Args:
        name: a name for the other function, which must not be in use for this module.
        make: takes the module's present function and returns the other one.
    """
    # Look the function up in the table that the model's own source file uses: some families (Doge) do not use the
    # table of transformers.
    functions = inspect.unwrap(type(module).forward).__globals__.get("ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    config: Any = module.config
    present = config._attn_implementation
    function = own_eager_function(module) if present == "eager" else functions[present]
    assert function is not None
    name = f"{name} of {id(module)}"
    own: Any = copy.copy(config)
    own._attn_implementation_internal = name
    functions[name] = make(function)
    module.config = own
    try:
        yield
    finally:
        module.config = config
        del functions[name]


def forward_with_scores(lm: Decoder, layer: int, callback: Callable[[Tensor], None]) -> Callable[..., Any]:
    """Return a forward for the layer's attention that also passes its scores (before the softmax) to a callback.

    The layer must use eager attention. The forward raises `PointMissing` if the attention applies no softmax to scores
    with the shape of its weights.
    """
    forward = lm.structure.blocks[layer].attention.module.forward

    @wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with _SoftmaxInputs() as softmax:
            out = forward(*args, **kwargs)
        pattern = next((t for t in out[1:] if isinstance(t, Tensor) and t.dim() == 4), None)
        found = None if pattern is None else softmax.scores_of(pattern)
        if found is None:
            raise PointMissing(
                f"{lm.name} layer {layer} has no scores",
                why="its attention does not apply a softmax to scores",
                instead="Use pattern",
            )
        callback(found)
        return out

    return watched


class _SoftmaxInputs(TorchFunctionMode):
    """A context that records the input of every softmax."""

    def __init__(self) -> None:
        super().__init__()
        self._inputs: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.softmax, torch.nn.functional.softmax, Tensor.softmax):
            self._inputs.append(args[0] if args else kwargs["input"])
        return func(*args, **(kwargs or {}))

    def scores_of(self, pattern: Tensor) -> Tensor | None:
        """Return the last recorded softmax input with the shape of the attention weights, or None.

        Extra columns, which belong to attention sinks, are cut off.
        """
        batch, heads, dst, src = pattern.shape
        for scores in reversed(self._inputs):
            if scores.numel() == pattern.numel():
                return scores.reshape(pattern.shape)
            if scores.shape[:-1] == (batch, heads, dst) and scores.shape[-1] > src:
                return scores[..., :src]
        return None


@contextmanager
def _eager_module(module: nn.Module) -> Iterator[None]:
    """A context in which one attention module uses eager attention, with a copy of its config and an additive mask."""
    config = module.config
    own: Any = copy.copy(config)
    own._attn_implementation_internal = "eager"
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    at = names.index("attention_mask") if "attention_mask" in names else None

    def additive(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if "attention_mask" in kwargs or at is None or at >= len(args):
            hidden = kwargs.get("hidden_states", args[0] if args else None)
            return args, {**kwargs, "attention_mask": _additive(kwargs.get("attention_mask"), hidden)}
        changed = list(args)
        changed[at] = _additive(args[at], args[0])
        return tuple(changed), kwargs

    handle = module.register_forward_pre_hook(additive, with_kwargs=True)
    module.config = own
    try:
        yield
    finally:
        module.config = config
        handle.remove()


def _additive(mask: Any, hidden: Any) -> Any:
    """Convert the mask for a fused kernel (None means causal) to the mask that eager attention adds to the scores.

    ZAYA's attention receives two masks by name; the one named "causal" is converted.
    """
    if isinstance(mask, dict):
        return {**mask, "causal": _additive(mask.get("causal"), hidden)}
    lowest = torch.finfo(hidden.dtype).min
    if mask is None:
        pos = hidden.shape[1]
        mask = torch.ones(pos, pos, dtype=torch.bool, device=hidden.device).tril()[None, None]
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=hidden.dtype, device=hidden.device).masked_fill(~mask, lowest)
