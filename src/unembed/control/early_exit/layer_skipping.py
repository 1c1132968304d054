"""Forward passes that really leave: once a token may, the remaining blocks are not computed for it.

A pass over several tokens (the prompt) is made in full. For a single token, after each block the rule is asked; where
it says leave, the stream goes unchanged past the remaining blocks into the model's own last norm and readout.

Policy for the cache: in a skipped block the stream that left passes the block's own norm and projections, and the key
and value they give are stored for later tokens to attend to; nothing else of the block is used, and its FFN is not
computed ("state copying", Elbayad et al. 2020; Schuster et al. 2022, section 3). Nobody reads a layer's cache until a
later token gets that far, so the positions wait until then and pass the layer's attention as further rows beside that
token's own: for one token its cost lies in reading weights and in calls, which the rows share.
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

from unembed.control.early_exit.examples import before_point
from unembed.control.early_exit.protocols import Exit, require_exit
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.models.structure.structure import Block
from unembed.stream.hooks import Callback, attach_hooks


@contextmanager
def skip_layers(rule: Exit) -> Iterator[list[int]]:
    """While inside, every forward pass of one new token by `lm.hf` leaves where the rule lets it.

    Batches of one row only, with a KV cache, which is complete again at the end. Yields the list that receives each
    token's last block computed.
    """
    lm = require_exit(rule).lm
    state = _Pass(rule)
    taps: dict[tuple[str, int], Callback] = {}

    def keep(name: str) -> Callback:
        return lambda t: state.seen.__setitem__(name, t[0, -1])

    for layer in np.flatnonzero(rule.thresholds < np.inf).tolist():  # at infinity nothing leaves: it is not asked
        for name in rule.score.points:
            if name != "resid_post":
                point = {"before": before_point(lm, layer), "update": "mlp_out"}.get(name, name)
                taps[point, layer] = keep(name)
    with attach_hooks(lm, taps), ExitStack() as stack:
        for layer, block in enumerate(lm.structure.blocks):
            skippable = _Block(block, layer)
            state.blocks.append(skippable)
            stack.enter_context(_forward_replaced(block.module, _forward(skippable, state)))
            if _rows_can_join(lm):
                attention = block.attention.module
                stack.enter_context(_forward_replaced(attention, _with_waiting(attention, skippable, state)))
        yield state.exits
        state.complete()


def _rows_can_join(lm: Decoder) -> bool:
    """Whether a mask that hides nothing, which the joined rows need, can be given to attention."""
    return getattr(lm.hf.config, "_attn_implementation", None) in ("eager", "sdpa")


@contextmanager
def _forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """While inside, the module computes this instead; whatever the instance had before comes back."""
    before = module.__dict__.get("forward")
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.forward = before


_KNOWN_TO_STORE: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Blocks whose attention has been seen to write to the cache it is given."""


class _Block:
    """One block, and what it was given for the positions that skipped it and whose key and value are still to come."""

    def __init__(self, block: Block, layer: int) -> None:
        self.module, self.real, self.layer = block.module, block.module.forward, layer
        self.norm = None if block.attention.pre_norm is None else block.attention.pre_norm.module
        self.names = list(inspect.signature(self.real).parameters)
        self.waiting: list[dict[str, Any]] = []

    def stream(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """What the block is to read."""
        return args[0] if args else kwargs[self.names[0]]

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name; the first is the stream."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs} if args else kwargs

    def wait(self, given: dict[str, Any], cache_name: str) -> None:
        """Note a position; not the cache, which would be kept alive although nobody wants it any more."""
        self.waiting.append({name: v for name, v in given.items() if name != cache_name})

    def fill(self, cache: Any, cache_name: str) -> None:
        """Put the keys and values of all waiting positions into the cache."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        given = {**waiting[-1], cache_name: cache}
        if len(waiting) > 1:
            for name in given:
                if name == self.names[0] or _is_position(name):
                    given[name] = _joined([one[name] for one in waiting])
        update = cache.update

        def store(*args: Any, **kwargs: Any) -> Any:
            update(*args, **kwargs)
            raise _Stored

        cache.update = store
        try:
            self.real(**given)
        except _Stored:
            _KNOWN_TO_STORE.add(self.module)
            return
        finally:
            del cache.update
        raise Unsupported(
            f"leaving early in layer {self.layer}", why="its attention does not write to the cache it is given"
        )


def _with_waiting(module: nn.Module, block: _Block, state: _Pass) -> Callable[..., Any]:
    """Attention's forward, in which the positions that wait are rows before the token's own.

    They give keys and values; what attention makes of their queries is dropped. So the mask may show them everything.
    """
    real = module.forward
    names = list(inspect.signature(real).parameters)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not block.waiting:
            return real(*args, **kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        positions = [name for name in given if _is_position(name)]
        if any(name not in one for one in block.waiting for name in positions):  # made inside the block
            block.fill(state.cache, state.cache_name)
            return real(*args, **kwargs)
        waiting, block.waiting = block.waiting, []
        rows = _joined([one[block.names[0]] for one in waiting])
        own = given[names[0]]
        given[names[0]] = _joined([rows if block.norm is None else block.norm(rows), own])
        for name in positions:
            given[name] = _joined([*(one[name] for one in waiting), given[name]])
        if given.get("attention_mask") is None:  # with several rows, none would stand for a causal one
            given["attention_mask"] = own.new_zeros(1, 1, 1, 1)
        out = real(**given)
        if not isinstance(out, tuple):
            return out[:, -1:]
        return out[0][:, -1:], *(t[:, :, -1:] if isinstance(t, Tensor) and t.dim() == 4 else t for t in out[1:])

    return forward


def _is_position(name: str) -> bool:
    """Whether an argument has a row for each position that is computed."""
    return name in ("position_ids", "cache_position") or name.startswith("position_embeddings")


class _Stored(Exception):
    """Keys and values of the skipped positions are in the cache; nothing more of the block is needed."""


def _joined(parts: list[Any]) -> Any:
    """What several positions were given, as one pass over them is given it."""
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, dim=min(1, parts[0].dim() - 1))
    return type(parts[0])(_joined(list(p)) for p in zip(*parts, strict=True)) if parts[0] is not None else None


class _Pass:
    """The token under way, and the cache it belongs to."""

    def __init__(self, rule: Exit) -> None:
        self.lm: Decoder = rule.lm
        self.score = rule.score
        self.thresholds = rule.thresholds.tolist()
        self.asks = [*(threshold < math.inf for threshold in self.thresholds), True]
        self.blocks: list[_Block] = []
        self.seen: dict[str, Tensor] = {}
        self.left = False
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
        """The cache, unless nobody holds it any more."""
        return self._cache()

    def begin(self, given: dict[str, Any], hidden: Tensor) -> None:
        """A new forward pass reaches the first block."""
        if hidden.shape[0] != 1:
            raise Unsupported("leaving early with a batch", why="its tokens would leave at different layers")
        cache = given.get(self.cache_name)
        name = self.cache_name if cache is not None else _cache_name(given)
        if name is None:
            raise Unsupported(
                "leaving early", why="the blocks are given no KV cache", instead="Generate with use_cache=True"
            )
        cache = given[name]
        before = int(cache.get_seq_length())
        if cache is not self.cache:
            self.complete()
            self.cache_name, self._cache = name, weakref.ref(cache)
            self._at_once = _lengths_asked(cache, len(self.blocks))
        elif before != self._length and any(block.waiting for block in self.blocks):
            raise Unsupported("leaving early", why="the KV cache was cut between two tokens", instead="Do not cut it")
        self._length = before + hidden.shape[1]
        self.left = False
        self.is_prompt = hidden.shape[1] > 1 or before == 0

    def skip(self, block: _Block, given: dict[str, Any]) -> None:
        """The token passes a block by. A block's first time is stored at once, which shows that it can be."""
        block.wait(given, self.cache_name)
        if block.module not in _KNOWN_TO_STORE or block.layer in self._at_once:
            block.fill(self.cache, self.cache_name)

    def may_join(self, block: _Block) -> bool:
        """Not in a window: what its cache gives back depends on how many rows come at once."""
        return self._joins and not getattr(self.cache.layers[block.layer], "is_sliding", True)

    def ask(self, layer: int, hidden: Tensor) -> None:
        """After a block: may the token leave?"""
        if layer == self.lm.n_layers - 1:
            self.exits.append(layer)
            return
        if "resid_post" in self.score.points:
            self.seen["resid_post"] = hidden[0, -1]
        if self.score.is_above(self.thresholds[layer], self.lm, layer, self.seen):
            self.left = True
            self.exits.append(layer)

    @torch.no_grad()
    def complete(self) -> None:
        """Store what still waits, if anyone still holds the cache."""
        cache = self.cache
        for block in self.blocks:
            if cache is not None:
                block.fill(cache, self.cache_name)
            block.waiting.clear()


def _cache_name(given: dict[str, Any]) -> str | None:
    return next((k for k, v in given.items() if hasattr(v, "update") and hasattr(v, "get_seq_length")), None)


def _lengths_asked(cache: Any, n_layers: int) -> set[int]:
    """Layers that must not lag: masks are cut to the length of the first layer of each kind (full, sliding)."""
    layers = getattr(cache, "layers", None)
    if layers is None:
        return set(range(n_layers))
    first: dict[type, int] = {}
    for i, layer in enumerate(layers):
        first.setdefault(type(layer), i)
    return set(first.values())


def _forward(block: _Block, state: _Pass) -> Callable[..., Any]:
    """The block's forward, which steps aside once the token has left."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        if block.layer == 0:
            state.begin(block.named(args, kwargs), block.stream(args, kwargs))
        if state.left:
            hidden = block.stream(args, kwargs)
            state.skip(block, block.named(args, kwargs))
            return (hidden, None) if state.returns_tuple else hidden
        if block.waiting and not state.may_join(block):
            block.fill(state.cache, state.cache_name)
        out = block.real(*args, **kwargs)
        if state.asks[block.layer] and not state.is_prompt:
            state.returns_tuple = isinstance(out, tuple)
            state.ask(block.layer, out[0] if state.returns_tuple else out)
        return out

    return forward
