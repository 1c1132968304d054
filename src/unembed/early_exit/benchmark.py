"""Compare early exit with full generation: time, layers, and quality of the text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from unembed.early_exit.conformal import score_continuation
from unembed.early_exit.layer_skipping import skip_layers
from unembed.early_exit.protocols import require_exit
from unembed.early_exit.rule import ExitRule
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.results import Table
from unembed.stream.generation import generate_ids
from unembed.validation import as_tuple, positive_int


@torch.no_grad()
def compare(
    rule: ExitRule, prompts: Sequence[str], *, max_new_tokens: int = 40, clock: Callable[[], float] = time.perf_counter
) -> Table:
    """Compare greedy generation with early exit to full generation: time, layers, and quality of the text.

    Args:
        prompts: texts to continue, each with early exit and in full.
        max_new_tokens: number of tokens to add to each.
        clock: returns the time in seconds.

    Returns:
        One row, with shares in per cent:

        - full_seconds, early_seconds: total time;
        - full_body_seconds, early_body_seconds: time in the blocks during single-token forward passes, with exit
          decisions and filling of the cache, without the unembedding and `transformers`' generation loop;
        - layers_saved, time_saved, body_saved: shares of layers and times that early exit saves;
        - time_per_layers_saved, body_per_layers_saved: the saved share of time divided by the saved share of layers;
        - agreement: share of new tokens that the full model would have chosen after the same text;
        - perplexity_full, perplexity_early: perplexities of the continuations under the full model.
    """
    lm = require_exit(rule).lm
    tally = _Tally(rule)
    for number, prompt in enumerate([*prompts[:1], *prompts]):
        full = _timed(lm, prompt, max_new_tokens, clock)
        with skip_layers(rule) as exits:
            early = _timed(lm, prompt, max_new_tokens, clock)
        if number == 0:  # a first pass to warm up
            continue
        tally.exits += exits
        for name, found in (("full", full), ("early", early)):
            right, loss = score_continuation(lm, found.ids, found.start)
            tally.add(name, found, loss, len(right))
            tally.agreed += right if name == "early" else []
    about = lm.provenance(notes={"max_new_tokens": max_new_tokens})
    return Table(f"Generation with early exit of {lm.name}", tally.columns(), about)


@torch.no_grad()
def compare_reading(
    rule: ExitRule, texts: Sequence[str], *, tokens: int = 64, clock: Callable[[], float] = time.perf_counter
) -> Table:
    """Compare single-token forward passes over given texts, with early exit and in full.

    Both read the same text. In generation, a rule continues its own text, on which it may exit more or less often.

    Args:
        texts: the texts; those of a single token are left out.
        tokens: largest number of tokens of each text to read.
        clock: returns the time in seconds.

    Returns:
        One row with the columns of `compare`. Seconds are those of the forward passes, including the unembedding;
        agreement is the share of positions with the same top token as in the full model; perplexities are of the texts.

    Raises:
        InvalidInput: no text has two tokens or more.
    """
    lm = require_exit(rule).lm
    most = min(positive_int("tokens", tokens, 2), lm.n_ctx or tokens)
    rows = [ids for text in as_tuple("texts", texts) if (ids := lm.encode(text)[:, :most]).shape[1] > 1]
    if not rows:
        raise InvalidInput(
            "these texts are too short", why="no text has two tokens or more", instead="Give longer texts"
        )
    tally = _Tally(rule)
    for number, ids in enumerate([rows[0], *rows]):
        full = _read(lm, ids, clock)
        with skip_layers(rule) as exits:
            early = _read(lm, ids, clock)
        if number == 0:  # a first pass to warm up
            continue
        tally.exits += exits
        tally.agreed += (full.logits.argmax(-1) == early.logits.argmax(-1)).tolist()
        next_ones = ids[0, 2:].to(full.logits.device)
        for name, found in (("full", full), ("early", early)):
            loss = float(cross_entropy(found.logits[:-1].float(), next_ones, reduction="sum"))
            tally.add(name, found, loss, len(next_ones))
    return Table(f"Reading with early exit of {lm.name}", tally.columns(), lm.provenance(notes={"tokens": tokens}))


@dataclass(frozen=True)
class _Spent:
    """The time spent on one text."""

    seconds: float
    body_seconds: float


@dataclass(frozen=True)
class _Written(_Spent):
    """A prompt and its generated continuation as tokens, and the index of the first new token."""

    ids: Tensor
    start: int


@dataclass(frozen=True)
class _Read(_Spent):
    """The logits at each position of a given text, from single-token forward passes."""

    logits: Float[Tensor, "pos d_vocab"]
    """The logits after every token but the first."""


@dataclass
class _Tally:
    """Times, exit layers and losses of full and early-exit passes, summed over texts."""

    rule: ExitRule
    exits: list[int] = field(default_factory=list)
    """The last block computed for each token."""
    agreed: list[bool] = field(default_factory=list)
    found: dict[str, list[tuple[_Spent, float, int]]] = field(default_factory=lambda: {"full": [], "early": []})
    """For each text: the time spent, its loss in nats, and its number of tokens."""

    def add(self, way: str, spent: _Spent, loss: float, tokens: int) -> None:
        """Add one text's time, its loss in nats and its number of tokens; `way` is "full" or "early"."""
        self.found[way].append((spent, loss, tokens))

    def columns(self) -> dict[str, list[Any]]:
        """Return the totals as one row."""
        n_layers = self.rule.lm.n_layers
        layers = sum(n_layers - 1 - n for n in self.exits) / max(len(self.exits), 1) / n_layers
        times = {way: sum(spent.seconds for spent, _, _ in rows) for way, rows in self.found.items()}
        body = {way: sum(spent.body_seconds for spent, _, _ in rows) for way, rows in self.found.items()}
        shares = {name: 1 - spent["early"] / spent["full"] for name, spent in (("time", times), ("body", body))}
        surprise = {
            way: (sum(loss for _, loss, _ in rows), sum(n for *_, n in rows)) for way, rows in self.found.items()
        }
        return {
            "method": [self.rule.method],
            "calibration": [self.rule.calibration],
            "tokens": [len(self.agreed)],
            **{f"{way}_seconds": [seconds] for way, seconds in times.items()},
            **{f"{way}_body_seconds": [seconds] for way, seconds in body.items()},
            "layers_saved": [100 * layers],
            **{f"{name}_saved": [100 * share] for name, share in shares.items()},
            **{f"{name}_per_layers_saved": [share / layers if layers else None] for name, share in shares.items()},
            "agreement": [100 * sum(self.agreed) / max(len(self.agreed), 1)],
            "perplexity_full": [_perplexity(*surprise["full"])],
            "perplexity_early": [_perplexity(*surprise["early"])],
        }


def _timed(lm: Decoder, prompt: str, new_tokens: int, clock: Callable[[], float]) -> _Written:
    with body_clock(lm, clock) as body:
        began = clock()
        ids, start = generate_ids(lm, [prompt], max_new_tokens=new_tokens, min_new_tokens=new_tokens)
        return _Written(clock() - began, sum(body), ids, start)


def _read(lm: Decoder, ids: Int[Tensor, "1 pos"], clock: Callable[[], float]) -> _Read:
    """Run a text's tokens one by one with a KV cache; the first token's pass is not timed."""
    logits = []
    with lm.lock:  # otherwise hooks that another thread attaches would run in these passes
        cache = lm.hf(ids[:, :1], use_cache=True).past_key_values
    with body_clock(lm, clock) as body:
        began = clock()
        for n in range(1, ids.shape[1]):
            logits.append(lm.hf(ids[:, n : n + 1], past_key_values=cache, use_cache=True).logits[0, -1])
        return _Read(clock() - began, sum(body), torch.stack(logits))


@contextmanager
def body_clock(lm: Decoder, clock: Callable[[], float]) -> Iterator[list[float]]:
    """A context manager that times the transformer blocks of every single-token forward pass, but not the rest.

    It yields the list to which the times are added. Forward passes of other threads wait until the context ends.
    """
    spent: list[float] = []
    began = 0.0

    def begin(_module: Any, _args: Any) -> None:
        nonlocal began
        began = clock()

    def end(_module: Any, _args: Any, out: Any) -> None:
        if (out[0] if isinstance(out, tuple) else out).shape[1] == 1:
            spent.append(clock() - began)

    blocks = lm.structure.blocks
    with lm.lock, ExitStack() as hooks:
        hooks.callback(blocks[0].module.register_forward_pre_hook(begin).remove)
        hooks.callback(blocks[-1].module.register_forward_hook(end).remove)
        yield spent


def _perplexity(nats: float, n: int) -> float:
    return math.exp(min(nats / max(n, 1), 700))
