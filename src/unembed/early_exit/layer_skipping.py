"""Forward passes with early exit: once a token exits, the remaining blocks are not computed for it.

A forward pass over several tokens (the prompt) is computed in full. In a single-token pass, the rule decides after each
block. On exit, the residual stream goes to the model's final norm and unembedding: unchanged if the rule's basis is
"final", mapped by the fitted lens if it is "jacobian".

Later tokens attend to the keys and values of a skipped block, too. These are computed from the stream at the exit, with
the block's norm and projections; the rest of the block, such as its FFN, is not computed ("state copying", Elbayad et
al. 2020; Schuster et al. 2022, section 3). These keys and values are needed only when a later token reaches the block.
Until then, the skipped positions are called pending. When a token reaches the block, its pending positions are added as
rows to the input of the block's attention. This costs little: a single-token pass takes the time of reading weights and
launching kernels, which hardly depends on the number of rows.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unembed.early_exit.example_prefixes import before_point, readable
from unembed.early_exit.protocols import Exit, require_exit
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.models.structure.structure import Block
from unembed.names import Basis
from unembed.stream.hooks import Callback, attach_hooks, forward_replaced


@contextmanager
def skip_layers(rule: Exit) -> Iterator[list[int]]:
    """A context manager: within it, single-token forward passes of `lm.hf` exit early where the rule decides so.

    Only batches of one row with a KV cache are supported. On exit from the context, the cache has the keys and values
    of all positions. The context manager yields a list; for each token, the number of the last computed block is
    appended to it.
    """
    lm = require_exit(rule).lm
    state = _Pass(rule)
    # The set contains the layers for which a check has shown that the attention writes to the cache.
    stores_to_cache: set[int] = lm.once((__name__, "stores to cache"), set[int])
    taps: dict[tuple[str, int], Callback] = {}

    def record(name: str) -> Callback:
        return lambda t: state.activations.__setitem__(name, t[0, -1])

    for layer in np.flatnonzero(rule.thresholds < np.inf).tolist():  # at infinity no decision is made
        for name in rule.score.points:
            if name != "resid_post":
                point = {"before": before_point(lm, layer), "update": "mlp_out"}.get(name, name)
                taps[point, layer] = record(name)
    with attach_hooks(lm, taps), ExitStack() as stack:
        for layer, block in enumerate(lm.structure.blocks):
            skippable = _Block(block, layer, stores_to_cache)
            state.blocks.append(skippable)
            stack.enter_context(forward_replaced(block.module, _forward(skippable, state)))
            if _rows_can_join(lm):
                attention = block.attention.module
                stack.enter_context(forward_replaced(attention, _with_pending(attention, skippable, state)))
        yield state.exits
        state.complete()


def _rows_can_join(lm: Decoder) -> bool:
    """Return whether the model's attention accepts an explicit mask, which is needed to add pending rows to a pass."""
    return getattr(lm.hf.config, "_attn_implementation", None) in ("eager", "sdpa")


class _Block:
    """A block, and its inputs at pending positions, whose keys and values are not in the cache yet."""

    def __init__(self, block: Block, layer: int, stores_to_cache: set[int]) -> None:
        self.real, self.layer, self.stores_to_cache = block.module.forward, layer, stores_to_cache
        self.norm = None if block.attention.pre_norm is None else block.attention.pre_norm.module
        self.names = list(inspect.signature(self.real).parameters)
        self.pending: list[dict[str, Any]] = []

    def stream(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return args[0] if args else kwargs[self.names[0]]

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the positional and keyword arguments of the block's forward as one dict by name."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs} if args else kwargs

    def add_pending(self, inputs: dict[str, Any], cache_name: str) -> None:
        """Store the block's inputs at a position, except the cache, so that the cache can be freed."""
        self.pending.append({name: v for name, v in inputs.items() if name != cache_name})

    def fill(self, cache: Any, cache_name: str) -> None:
        """Write the keys and values of all pending positions to the cache."""
        pending, self.pending = self.pending, []
        if not pending:
            return
        inputs = {**pending[-1], cache_name: cache}
        if len(pending) > 1:
            for name in inputs:
                if name == self.names[0] or _is_position(name):
                    inputs[name] = _concatenated([one[name] for one in pending])
        update = cache.update

        def store(*args: Any, **kwargs: Any) -> Any:
            update(*args, **kwargs)
            raise _Stored

        cache.update = store
        try:
            self.real(**inputs)
        except _Stored:
            self.stores_to_cache.add(self.layer)
            return
        finally:
            del cache.update
        raise Unsupported(
            f"early exit before layer {self.layer}", why="its attention does not write to the cache it receives"
        )


def _with_pending(module: nn.Module, block: _Block, state: _Pass) -> Callable[..., Any]:
    """Return a forward for attention that also computes the pending positions, as rows before the current token.

    Only the keys and values of these rows are used. Their outputs are discarded, so they need no causal mask.
    """
    real = module.forward
    names = list(inspect.signature(real).parameters)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not block.pending:
            return real(*args, **kwargs)
        inputs = {**dict(zip(names, args, strict=False)), **kwargs}
        positions = [name for name in inputs if _is_position(name)]
        # The block computes one of these arguments of its attention itself, so the stored inputs of the pending
        # positions do not contain it, and their rows cannot be added to this pass.
        if any(name not in one for one in block.pending for name in positions):
            block.fill(state.cache, state.cache_name)
            return real(*args, **kwargs)
        pending, block.pending = block.pending, []
        rows = _concatenated([one[block.names[0]] for one in pending])
        own = inputs[names[0]]
        inputs[names[0]] = _concatenated([rows if block.norm is None else block.norm(rows), own])
        for name in positions:
            inputs[name] = _concatenated([*(one[name] for one in pending), inputs[name]])
        # Without a mask, attention applies a causal mask if there are several rows. A mask of zeros lets the current
        # token attend to all positions.
        if inputs.get("attention_mask") is None:
            inputs["attention_mask"] = own.new_zeros(1, 1, 1, 1)
        out = real(**inputs)
        if not isinstance(out, tuple):
            return out[:, -1:]
        return out[0][:, -1:], *(t[:, :, -1:] if isinstance(t, Tensor) and t.dim() == 4 else t for t in out[1:])

    return forward


def _is_position(name: str) -> bool:
    """Return whether a block's argument of this name has an entry for each token position."""
    return name in ("position_ids", "cache_position") or name.startswith("position_embeddings")


class _Stored(Exception):
    """Raised to stop a block's forward pass when its keys and values are in the cache."""


def _concatenated(parts: list[Any]) -> Any:
    """Concatenate tensors, or tuples of tensors, of several positions along the position axis."""
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, dim=min(1, parts[0].dim() - 1))
    return type(parts[0])(_concatenated(list(p)) for p in zip(*parts, strict=True)) if parts[0] is not None else None


class _Pass:
    """The state of the current forward pass, and the KV cache."""

    def __init__(self, rule: Exit) -> None:
        self.lm: Decoder = rule.lm
        self.score = rule.score
        self.basis: Basis = rule.basis
        self.thresholds = rule.thresholds.tolist()
        self.decides = [*(threshold < math.inf for threshold in self.thresholds), True]
        self.blocks: list[_Block] = []
        self.activations: dict[str, Tensor] = {}
        self.exited = False
        self.is_prompt = True
        self.returns_tuple = False
        self.exits: list[int] = []
        self.cache_name = ""
        self._cache: Callable[[], Any] = lambda: None
        self._length = 0
        self._at_once: set[int] = set()
        self._joins = _rows_can_join(rule.lm)

    @property
    def cache(self) -> Any:
        """The cache, or None once it has been freed."""
        return self._cache()

    def begin(self, inputs: dict[str, Any], hidden: Tensor) -> None:
        """Start a forward pass at the first block."""
        if hidden.shape[0] != 1:
            raise Unsupported(
                "early exit with a batch", why="its tokens would exit at different layers", instead="Use one row"
            )
        cache = inputs.get(self.cache_name)
        name = self.cache_name if cache is not None else _cache_name(inputs)
        if name is None:
            raise Unsupported(
                "early exit", why="the blocks receive no KV cache", instead="Generate with use_cache=True"
            )
        cache = inputs[name]
        before = int(cache.get_seq_length())
        if cache is not self.cache:
            self.complete()
            self.cache_name, self._cache = name, weakref.ref(cache)
            self._at_once = _complete_layers(cache, len(self.blocks))
        elif before != self._length and any(block.pending for block in self.blocks):
            raise Unsupported("early exit", why="the KV cache was cropped between two tokens", instead="Do not crop it")
        self._length = before + hidden.shape[1]
        self.exited = False
        self.is_prompt = hidden.shape[1] > 1 or before == 0

    def skip(self, block: _Block, inputs: dict[str, Any]) -> None:
        """Skip a block for the current token: the position becomes pending.

        There are two cases in which its key and value are computed at once: if the model computes attention masks from
        the length of this cache layer, and if no position has skipped the block before, to check that the block writes
        to the cache.
        """
        block.add_pending(inputs, self.cache_name)
        if block.layer not in block.stores_to_cache or block.layer in self._at_once:
            block.fill(self.cache, self.cache_name)

    def may_join(self, block: _Block) -> bool:
        """Return whether the block's pending rows can be added to the current pass; not with a sliding-window cache."""
        return self._joins and not getattr(self.cache.layers[block.layer], "is_sliding", True)

    def decide(self, layer: int, hidden: Tensor) -> None:
        """Decide after a block whether the token exits, and record the block if it is the last one computed."""
        if layer == self.lm.n_layers - 1:
            self.exits.append(layer)
            return
        if "resid_post" in self.score.points:
            self.activations["resid_post"] = self.readable(hidden[0, -1], layer)
        if self.score.is_above(self.thresholds[layer], self.lm, layer, self.activations):
            self.exited = True
            self.exits.append(layer)

    @torch.no_grad()
    def readable(self, hidden: Tensor, layer: int) -> Tensor:
        """Return a layer's residual stream as input for the final norm and the unembedding."""
        return readable(self.lm, hidden, layer, self.basis)

    @torch.no_grad()
    def complete(self) -> None:
        """Write the keys and values of all pending positions to the cache, if it still exists."""
        cache = self.cache
        for block in self.blocks:
            if cache is not None:
                block.fill(cache, self.cache_name)
            block.pending.clear()


def _cache_name(inputs: dict[str, Any]) -> str | None:
    return next((k for k, v in inputs.items() if hasattr(v, "update") and hasattr(v, "get_seq_length")), None)


def _complete_layers(cache: Any, n_layers: int) -> set[int]:
    """Return the cache layers that must never have pending positions: the first of each type.

    The model computes attention masks from the lengths of these cache layers.
    """
    layers = getattr(cache, "layers", None)
    if layers is None:
        return set(range(n_layers))
    first: dict[type, int] = {}
    for i, layer in enumerate(layers):
        first.setdefault(type(layer), i)
    return set(first.values())


def _forward(block: _Block, state: _Pass) -> Callable[..., Any]:
    """Return a new forward for a block.

    It runs the block and lets the rule decide whether the token exits; after an exit it returns its input unchanged.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        if block.layer == 0:
            state.begin(block.named(args, kwargs), block.stream(args, kwargs))
        if state.exited:
            hidden = block.stream(args, kwargs)
            state.skip(block, block.named(args, kwargs))
            # Skipped blocks pass the stream on unchanged; only after the last block is it mapped by the lens, if the
            # basis is "jacobian".
            if block.layer == state.lm.n_layers - 1:
                hidden = state.readable(hidden, state.exits[-1])
            return (hidden, None) if state.returns_tuple else hidden
        if block.pending and not state.may_join(block):
            block.fill(state.cache, state.cache_name)
        out = block.real(*args, **kwargs)
        if state.decides[block.layer] and not state.is_prompt:
            state.returns_tuple = isinstance(out, tuple)
            state.decide(block.layer, out[0] if state.returns_tuple else out)
        return out

    return forward
