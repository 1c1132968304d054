"""Generation that really leaves: once a token may, the remaining blocks are not computed for it.

The prompt is read in full. For a new token, after each block the rule is asked; where it says leave, the stream goes
unchanged past the remaining blocks into the model's own last norm and readout. Policy for the cache: in a skipped
block the stream passes the block's own norm and projections, and the key and value they give are stored; queries,
scores, output projection and FFN are not computed. Later tokens attend to these ("state copying", Elbayad et al. 2020;
Schuster et al. 2022, section 3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unembed.control.early_exit.examples import before_point
from unembed.control.steering import passport
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.results import Table
from unembed.stream.generate import generate as full_generate
from unembed.stream.watch import Callback, watch

if TYPE_CHECKING:
    from unembed.control.early_exit.exit_rule import ExitRule


@dataclass(frozen=True, eq=False)
class Generated:
    """A text whose tokens left where the rule let them."""

    text: str
    """Prompt and continuation."""
    prompt: str
    layers: tuple[int, ...]
    """For each new token but the first (which the full prompt gave), the last block computed to choose it."""
    n_layers: int
    seconds: float

    @property
    def saved_layers(self) -> float:
        """Blocks skipped for a token, on average."""
        return sum(self.n_layers - 1 - n for n in self.layers) / max(len(self.layers), 1)


class _Stored(Exception):
    """Key and value of a skipped block are in the cache; nothing more of it is needed."""


class _Pass:
    """The token under way."""

    def __init__(self, rule: ExitRule) -> None:
        self.rule = rule
        self.lm: Decoder = rule.lm
        self.thresholds = rule.thresholds.tolist()
        self.seen: dict[str, Tensor] = {}
        self.left = False
        self.is_prompt = True
        self.returns_tuple = False
        self.exits: list[int] = []

    def begin(self, hidden: Tensor, cache: Any) -> None:
        """A new forward pass reaches the first block."""
        if hidden.shape[0] != 1:
            raise Unsupported("leaving early with a batch", why="its tokens would leave at different layers")
        if cache is None:
            raise Unsupported(
                "leaving early", why="the blocks are given no KV cache", instead="Generate with use_cache=True"
            )
        self.left = False
        self.is_prompt = hidden.shape[1] > 1 or int(cache.get_seq_length()) == 0

    def ask(self, layer: int, hidden: Tensor) -> None:
        """After a block: may the token leave?"""
        if self.is_prompt:
            return
        if layer == self.lm.n_layers - 1:
            self.exits.append(layer)
            return
        if "resid_post" in self.rule.score.points:
            self.seen["resid_post"] = hidden[0, -1]
        if self.rule.score.score(self.lm, layer, self.seen) > self.thresholds[layer]:
            self.left = True
            self.exits.append(layer)


@contextmanager
def leaving(rule: ExitRule) -> Iterator[list[int]]:
    """While inside, every forward pass of one new token by `lm.hf` leaves where the rule lets it.

    Batches of one row only, with a KV cache. Yields the list that receives each token's last block computed.
    """
    state = _Pass(rule)
    lm = rule.lm
    taps: dict[tuple[str, int], Callback] = {}

    def keep(name: str) -> Callback:
        return lambda t: state.seen.__setitem__(name, t[0, -1])

    for layer in range(lm.n_layers - 1):
        for name in rule.score.points:
            if name != "resid_post":
                point = {"before": before_point(lm, layer), "update": "mlp_out"}.get(name, name)
                taps[point, layer] = keep(name)
    with watch(lm, taps), ExitStack() as stack:
        for layer, block in enumerate(lm.structure.blocks):
            module = block.module
            real = module.forward
            module.forward = _block_forward(real, layer, state)  # type: ignore[method-assign]
            stack.callback(module.__dict__.pop, "forward")
        yield state.exits


def _block_forward(real: Callable[..., Any], layer: int, state: _Pass) -> Callable[..., Any]:
    """The block's forward, which steps aside once the token has left."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        if layer == 0:
            state.begin(hidden, _cache_among(args, kwargs))
        if state.left:
            _store_key_and_value(real, layer, args, kwargs)
            return (hidden, None) if state.returns_tuple else hidden
        out = real(*args, **kwargs)
        state.returns_tuple = isinstance(out, tuple)
        state.ask(layer, out[0] if isinstance(out, tuple) else out)
        return out

    return forward


def _cache_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The KV cache that a block is given, whatever its family calls it."""
    return next((v for v in (*args, *kwargs.values()) if hasattr(v, "update") and hasattr(v, "get_seq_length")), None)


def _store_key_and_value(real: Callable[..., Any], layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the block until its key and value are in the cache."""
    cache = _cache_among(args, kwargs)
    update = cache.update

    def store(*a: Any, **k: Any) -> Any:
        update(*a, **k)
        raise _Stored

    cache.update = store
    try:
        real(*args, **kwargs)
    except _Stored:
        return
    finally:
        del cache.update
    raise Unsupported(f"leaving early in layer {layer}", why="its attention does not write to the cache it is given")


def generate(
    rule: ExitRule, prompt: str, *, max_new_tokens: int = 20, seed: int | None = None, **options: Any
) -> Generated:
    """The prompt with a continuation whose tokens leave where the rule lets them.

    Args:
        rule: the exit.
        prompt: one text.
        max_new_tokens: how many tokens to add.
        seed: sample from this seed; greedy without it.
        options: for transformers' `generate`; no beams.

    Raises:
        InvalidInput: beams, or a prompt that does not fit.
        Unsupported: the model keeps no ordinary KV cache.
    """
    if options.get("num_beams", 1) != 1 or options.get("num_return_sequences", 1) != 1:
        raise InvalidInput("beams and early exit", why="the tokens of a batch would leave at different layers")
    if not isinstance(prompt, str):
        raise InvalidInput("several prompts", why="tokens of a batch would leave at different layers", instead="Loop")
    with leaving(rule) as exits:
        began = time.perf_counter()
        (text,) = full_generate(rule.lm, prompt, max_new_tokens=max_new_tokens, seed=seed, use_cache=True, **options)
        seconds = time.perf_counter() - began
    return Generated(text, prompt, tuple(exits), rule.lm.n_layers, seconds)


@torch.no_grad()
def compare(
    rule: ExitRule, prompts: Sequence[str], *, max_new_tokens: int = 40, clock: Callable[[], float] = time.perf_counter
) -> Table:
    """Greedy generation with the exit beside full generation: time, layers, and what became of the text.

    Args:
        rule: the exit.
        prompts: texts to continue, each both ways, one after the other.
        max_new_tokens: tokens to add, exactly.
        clock: what tells the time.

    Returns:
        One row: seconds of either, the share of time and of layers saved, how much of the skipped blocks' own time was
        saved (decisions and the cache's filling taken off), agreement (share of new tokens that the full model would
        have chosen after the same text), and the perplexity of either continuation under the full model.
    """
    lm = rule.lm
    full_seconds = early_seconds = block_seconds = 0.0
    blocks = 0
    saved: list[int] = []
    agreed: list[bool] = []
    nats = {"full": [0.0, 0], "early": [0.0, 0]}
    for prompt in prompts:
        with _timed(lm, clock) as spent:
            began = clock()
            (full,) = full_generate(lm, prompt, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens)
            full_seconds += clock() - began
        block_seconds, blocks = block_seconds + sum(spent), blocks + len(spent)
        began = clock()
        early = generate(rule, prompt, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens)
        early_seconds += clock() - began
        saved += [lm.n_layers - 1 - n for n in early.layers]
        start = lm.encode(prompt).shape[1]
        for name, text in (("full", full), ("early", early.text)):
            ids = lm.encode(text)[:, : lm.n_ctx]
            right, loss = _judged(lm, ids, start)
            agreed += right if name == "early" else []
            nats[name][0] += loss
            nats[name][1] += ids.shape[1] - start
    share_layers = sum(saved) / max(len(saved), 1) / lm.n_layers
    share_time = 1 - early_seconds / full_seconds
    skipped_seconds = sum(saved) * block_seconds / max(blocks, 1)
    columns = {
        "method": [rule.method],
        "calibrated": [rule.calibrated],
        "tokens": [len(agreed)],
        "full_seconds": [full_seconds],
        "early_seconds": [early_seconds],
        "time_saved": [100 * share_time],
        "layers_saved": [100 * share_layers],
        "time_per_layers_saved": [share_time / share_layers if share_layers else None],
        "of_skipped_blocks_time": [(full_seconds - early_seconds) / skipped_seconds if skipped_seconds else None],
        "agreement": [100 * sum(agreed) / max(len(agreed), 1)],
        "perplexity_full": [_perplexity(*nats["full"])],
        "perplexity_early": [_perplexity(*nats["early"])],
    }
    return Table(f"Generation with early exit of {lm.name}", columns, passport(lm, max_new_tokens=max_new_tokens))


def _judged(lm: Decoder, ids: Tensor, start: int) -> tuple[list[bool], float]:
    """From column `start` on: whether the full model would have chosen each token, and their surprise in nats."""
    logits = lm.hf(ids, use_cache=False).logits[0, start - 1 : -1].float()
    loss = torch.nn.functional.cross_entropy(logits, ids[0, start:], reduction="sum")
    return (logits.argmax(-1) == ids[0, start:]).tolist(), float(loss)


@contextmanager
def _timed(lm: Decoder, clock: Callable[[], float]) -> Iterator[list[float]]:
    """While inside, the seconds of every block of every pass of one token."""
    spent: list[float] = []

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            out = real(*args, **kwargs)
            if (args[0] if args else kwargs["hidden_states"]).shape[1] == 1:
                spent.append(clock() - began)
            return out

        return forward

    with ExitStack() as stack:
        for block in lm.structure.blocks:
            block.module.forward = wrapped(block.module.forward)  # type: ignore[method-assign]
            stack.callback(block.module.__dict__.pop, "forward")
        yield spent


@torch.no_grad()
def promised_in_generation(
    rule: ExitRule,
    prompts: Sequence[str],
    disagreement: float,
    thresholds: Sequence[float],
    *,
    max_new_tokens: int = 40,
) -> float:
    """The lowest threshold whose generations are promised to disagree with the full model in at most this share.

    A promise on prefixes of text says nothing about text that the exits themselves have written. Here each prompt is
    generated under each threshold, from careful to fast, and its loss is the share of its new tokens that the full
    model would not have chosen after the same text; conformal risk control then runs over prompts.

    Args:
        rule: the score; its own thresholds do not matter.
        prompts: texts like those to be continued; at least 1 / disagreement of them.
        disagreement: largest expected share.
        thresholds: to try; they are taken from the highest down.
        max_new_tokens: length of the continuations.

    Returns:
        A threshold; infinity (never leave) where not even the most careful keeps the promise.

    Source: Angelopoulos et al. 2022, Theorem 1.
    """
    lm = rule.lm
    worst = [0.0] * len(prompts)
    chosen = float("inf")
    for threshold in sorted(thresholds, reverse=True):
        careful = rule.at(threshold)
        for i, prompt in enumerate(prompts):
            text = generate(careful, prompt, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens).text
            ids = lm.encode(text)[:, : lm.n_ctx]
            right, _ = _judged(lm, ids, lm.encode(prompt).shape[1])
            worst[i] = max(worst[i], 1 - sum(right) / max(len(right), 1))
        if (sum(worst) + 1) / (len(prompts) + 1) > disagreement:
            break
        chosen = float(threshold)
    return chosen


def _perplexity(nats: float, n: int | float) -> float:
    import math

    return math.exp(min(nats / max(n, 1), 700))
