"""Measure how a key's coefficient changes if its triggers lose their first, last, or a random token (Fig. 3).

The coefficient is measured after the activation function, at the end of the shortened prefix. Its change is relative to
the coefficient at the end of the whole prefix: -1 means that it becomes 0 (the lowest value with ReLU). Leading special
tokens are never removed. A trigger is left out if it would have no tokens left.

Source: Geva et al. 2021, section 3.2; the paper does not state how changes are averaged. Here they are
averaged over the triggers of each key, then over keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from unembed.corpus.token_stream import TokenStream
from unembed.models.decoder import Decoder
from unembed.reports.geva2021.triggers import KeyTriggers
from unembed.stream.run import run

KINDS = ("first", "last", "random")


@dataclass(frozen=True, eq=False)
class Shortened:
    """A prefix without one of its tokens, and the comparisons for which a coefficient is measured on it."""

    tokens: Int[np.ndarray, " pos"]
    comparisons: list[tuple[int, int, int]]
    """For each comparison, its index in the result of `changes`: (key, trigger, kind)."""


def changes(
    lm: Decoder,
    text: TokenStream,
    triggers: KeyTriggers,
    keys: Sequence[tuple[int, int]],
    *,
    seed: int = 0,
    most: int | None = None,
    tokens_per_batch: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> Float[np.ndarray, "key trigger kind"]:
    """Return the relative change (m' - m) / m of each key's coefficient m if a trigger loses a token.

    The last axis is the kind of token that is removed, in the order of `KINDS`. Changes that are not measured are NaN.

    Args:
        keys: layer and key number of each sampled key.
        most: the number of random triggers of each key that lose a token; all when None.
        progress: called with the number of finished forward passes and their total number.

    Memory: the coefficients of one layer for one batch.
    """
    found = np.full((len(keys), triggers.top, len(KINDS)), np.nan, dtype=np.float32)
    batches = []
    for layer in dict.fromkeys(layer for layer, _ in keys):
        jobs = _jobs(text, triggers, [(k, key) for k, key in enumerate(keys) if key[0] == layer], seed, most)
        batches += [(layer, batch) for batch in _batches(jobs, tokens_per_batch)]
    for done, (layer, batch) in enumerate(batches):
        ids = np.zeros((len(batch), max(len(job.tokens) for job in batch)), dtype=np.int64)
        for row, job in enumerate(batch):
            ids[row, : len(job.tokens)] = job.tokens
        lengths = torch.tensor([len(job.tokens) for job in batch])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        passed = run(lm, torch.from_numpy(ids), "coefficients", attention_mask=mask, logits=False, layers=[layer])
        last = passed["coefficients"][0][torch.arange(len(batch)), lengths - 1].float().cpu().numpy()
        for row, job in enumerate(batch):
            for k, t, kind in job.comparisons:
                found[k, t, kind] = last[row, triggers.memory(*keys[k])[0]]
        if progress is not None:
            progress(done + 1, len(batches))
    whole = np.stack([triggers.coefficients[triggers.row(*key)] for key in keys])[..., None] if keys else found[..., :1]
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(whole), (found - whole) / whole, np.nan).astype(np.float32)


def _jobs(
    text: TokenStream, triggers: KeyTriggers, keys: Sequence[tuple[int, tuple[int, int]]], seed: int, most: int | None
) -> list[Shortened]:
    """Return the shortened prefixes for the given keys, sorted by length; equal prefixes are merged into one."""
    jobs: dict[bytes, Shortened] = {}
    for k, (layer, key) in keys:
        random = np.random.default_rng([seed, layer, key])
        positions = triggers.positions[triggers.row(layer, key)].tolist()
        drawn_at = random.random(len(positions))
        chosen = set(random.permutation([t for t, position in enumerate(positions) if position >= 0])[:most].tolist())
        for t, (position, drawn) in enumerate(zip(positions, drawn_at.tolist(), strict=True)):
            if t not in chosen:
                continue
            prefix, lead = text.prefix(position), text.n_special
            n = len(prefix) - lead
            if n < 1 or len(prefix) < 2:
                continue
            for kind, at in enumerate((0, n - 1, int(drawn * n))):
                shorter = np.delete(prefix, lead + at)
                job = jobs.setdefault(shorter.tobytes(), Shortened(shorter, []))
                job.comparisons.append((k, t, kind))
    return sorted(jobs.values(), key=lambda job: len(job.tokens))


def _batches(jobs: Sequence[Shortened], tokens: int) -> Iterator[list[Shortened]]:
    rows: list[Shortened] = []
    for job in jobs:
        if rows and (len(rows) + 1) * len(job.tokens) > tokens:
            yield rows
            rows = []
        rows.append(job)
    if rows:
        yield rows
