"""Leaving early beside full generation: time, layers, and what becomes of the text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from unembed.control.early_exit.exit_rule import ExitRule
from unembed.control.early_exit.exits import an_exit
from unembed.control.early_exit.leaving import leaving
from unembed.control.early_exit.promising import judged
from unembed.control.steering import passport
from unembed.errors import InvalidInput, whole
from unembed.models.decoder import Decoder
from unembed.results import Table
from unembed.stream.generate import generate_ids


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
        One row, shares in per cent. Seconds of either, and of their body: the blocks of the passes over one token,
        decisions and the cache's filling included, head and `transformers`' own loop not. `time_saved` and `body_saved`
        of these, beside `layers_saved`; of what the layers would have given at best, the part that was saved is
        `time_per_layers_saved` and `body_per_layers_saved`. Agreement: share of new tokens that the full model would
        have chosen after the same text. Perplexity of either continuation under the full model.
    """
    lm = an_exit(rule).lm
    times: dict[str, list[float]] = {"full": [], "early": []}
    body: dict[str, list[float]] = {"full": [], "early": []}
    saved: list[int] = []
    agreed: list[bool] = []
    nats = {"full": [0.0, 0], "early": [0.0, 0]}
    for number, prompt in enumerate([*prompts[:1], *prompts]):
        full = _timed(lm, prompt, max_new_tokens, clock)
        with leaving(rule) as exits:
            early = _timed(lm, prompt, max_new_tokens, clock)
        if number == 0:  # the first time only warms up
            continue
        saved += [lm.n_layers - 1 - n for n in exits]
        for name, found in (("full", full), ("early", early)):
            times[name].append(found.seconds)
            body[name].append(found.body_seconds)
            right, loss = judged(lm, found.ids, found.start)
            agreed += right if name == "early" else []
            nats[name][0] += loss
            nats[name][1] += len(right)
    columns = _columns(rule, saved, agreed, times, body, nats)
    return Table(f"Generation with early exit of {lm.name}", columns, passport(lm, max_new_tokens=max_new_tokens))


@torch.no_grad()
def compare_reading(
    rule: ExitRule, texts: Sequence[str], *, tokens: int = 64, clock: Callable[[], float] = time.perf_counter
) -> Table:
    """Text that is given, read a token at a time with the exit and in full: what leaving saves where a rule was judged.

    A generation writes its own text, in which a rule may leave seldomer or oftener than in the text it was fitted to.

    Args:
        rule: the exit.
        texts: each read both ways, one after the other; those of one token are left out.
        tokens: of each text, from its first, at most.
        clock: what tells the time.

    Returns:
        One row with the columns of `compare`. Seconds are those of the model's passes, head included; there is no loop.
        Agreement: share of tokens after which the likeliest next one is the full model's. Perplexity of the texts.

    Raises:
        InvalidInput: no text has two tokens.
    """
    lm = an_exit(rule).lm
    rows = [lm.encode(text)[:, : min(whole("tokens", tokens, 2), lm.n_ctx or tokens)] for text in texts]
    rows = [ids for ids in rows if ids.shape[1] > 1]
    if not rows:
        raise InvalidInput("nothing to read", why="no text has two tokens", instead="Give longer texts")
    times: dict[str, list[float]] = {"full": [], "early": []}
    body: dict[str, list[float]] = {"full": [], "early": []}
    saved: list[int] = []
    agreed: list[bool] = []
    nats = {"full": [0.0, 0], "early": [0.0, 0]}
    for number, ids in enumerate([rows[0], *rows]):
        full = _read(lm, ids, clock)
        with leaving(rule) as exits:
            early = _read(lm, ids, clock)
        if number == 0:  # the first time only warms up
            continue
        saved += [lm.n_layers - 1 - n for n in exits]
        agreed += (full.logits.argmax(-1) == early.logits.argmax(-1)).tolist()
        for name, found in (("full", full), ("early", early)):
            times[name].append(found.seconds)
            body[name].append(found.body_seconds)
            next_ones = ids[0, 2:].to(found.logits.device)
            nats[name][0] += float(cross_entropy(found.logits[:-1].float(), next_ones, reduction="sum"))
            nats[name][1] += len(next_ones)
    columns = _columns(rule, saved, agreed, times, body, nats)
    return Table(f"Reading with early exit of {lm.name}", columns, passport(lm, tokens=tokens))


def _columns(
    rule: ExitRule,
    saved: Sequence[int],
    agreed: Sequence[bool],
    times: Mapping[str, Sequence[float]],
    body: Mapping[str, Sequence[float]],
    nats: Mapping[str, Sequence[float | int]],
) -> dict[str, list[Any]]:
    """Times, layers and quality of both ways as one row."""
    layers = sum(saved) / max(len(saved), 1) / rule.lm.n_layers
    shares = {name: 1 - sum(spent["early"]) / sum(spent["full"]) for name, spent in (("time", times), ("body", body))}
    return {
        "method": [rule.method],
        "calibrated": [rule.calibrated],
        "tokens": [len(agreed)],
        **{f"{name}_seconds": [sum(spent)] for name, spent in times.items()},
        **{f"{name}_body_seconds": [sum(spent)] for name, spent in body.items()},
        "layers_saved": [100 * layers],
        **{f"{name}_saved": [100 * share] for name, share in shares.items()},
        **{f"{name}_per_layers_saved": [share / layers if layers else None] for name, share in shares.items()},
        "agreement": [100 * sum(agreed) / max(len(agreed), 1)],
        "perplexity_full": [_perplexity(*nats["full"])],
        "perplexity_early": [_perplexity(*nats["early"])],
    }


@dataclass(frozen=True)
class _Read:
    """What a given text's tokens gave, each in a pass of its own, and what that took."""

    logits: Float[Tensor, "pos d_vocab"]
    """After every token but the first."""
    seconds: float
    body_seconds: float


def _read(lm: Decoder, ids: Int[Tensor, "1 pos"], clock: Callable[[], float]) -> _Read:
    """A text's tokens one after the other, over the cache that the first begins."""
    cache = lm.hf(ids[:, :1], use_cache=True).past_key_values
    logits = []
    with body_clock(lm, clock) as body:
        began = clock()
        for n in range(1, ids.shape[1]):
            logits.append(lm.hf(ids[:, n : n + 1], past_key_values=cache, use_cache=True).logits[0, -1])
        return _Read(torch.stack(logits), clock() - began, sum(body))


@dataclass(frozen=True)
class _Timed:
    """A continued prompt's tokens, where they are new, and what they took."""

    ids: Tensor
    start: int
    seconds: float
    body_seconds: float


def _timed(lm: Decoder, prompt: str, new_tokens: int, clock: Callable[[], float]) -> _Timed:
    """The prompt with its greedy continuation."""
    with body_clock(lm, clock) as body:
        began = clock()
        ids, start = generate_ids(lm, [prompt], max_new_tokens=new_tokens, min_new_tokens=new_tokens)
        return _Timed(ids, start, clock() - began, sum(body))


@contextmanager
def body_clock(lm: Decoder, clock: Callable[[], float]) -> Iterator[list[float]]:
    """While inside, the seconds from the first block to the last of every pass of one token."""
    spent: list[float] = []
    began = 0.0

    def begin(_module: Any, _args: Any) -> None:
        nonlocal began
        began = clock()

    def end(_module: Any, _args: Any, out: Any) -> None:
        if (out[0] if isinstance(out, tuple) else out).shape[1] == 1:
            spent.append(clock() - began)

    blocks = lm.structure.blocks
    handles = [
        blocks[0].module.register_forward_pre_hook(begin),
        blocks[-1].module.register_forward_hook(end),
    ]
    try:
        yield spent
    finally:
        for handle in handles:
            handle.remove()


def _perplexity(nats: float, n: int | float) -> float:
    return math.exp(min(nats / max(n, 1), 700))
