"""Leaving early beside full generation: time, layers, and what becomes of the text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unembed.control.early_exit.exit_rule import ExitRule
from unembed.control.early_exit.exits import an_exit
from unembed.control.early_exit.leaving import leaving
from unembed.control.early_exit.promising import judged
from unembed.control.steering import passport
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
    whole: dict[str, list[float]] = {"full": [], "early": []}
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
            whole[name].append(found.seconds)
            body[name].append(found.body_seconds)
            right, loss = judged(lm, found.ids, found.start)
            agreed += right if name == "early" else []
            nats[name][0] += loss
            nats[name][1] += len(right)
    layers = sum(saved) / max(len(saved), 1) / lm.n_layers
    shares = {name: 1 - sum(spent["early"]) / sum(spent["full"]) for name, spent in (("time", whole), ("body", body))}
    columns = {
        "method": [rule.method],
        "calibrated": [rule.calibrated],
        "tokens": [len(agreed)],
        **{f"{name}_seconds": [sum(spent)] for name, spent in whole.items()},
        **{f"{name}_body_seconds": [sum(spent)] for name, spent in body.items()},
        "layers_saved": [100 * layers],
        **{f"{name}_saved": [100 * share] for name, share in shares.items()},
        **{f"{name}_per_layers_saved": [share / layers if layers else None] for name, share in shares.items()},
        "agreement": [100 * sum(agreed) / max(len(agreed), 1)],
        "perplexity_full": [_perplexity(*nats["full"])],
        "perplexity_early": [_perplexity(*nats["early"])],
    }
    return Table(f"Generation with early exit of {lm.name}", columns, passport(lm, max_new_tokens=max_new_tokens))


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
