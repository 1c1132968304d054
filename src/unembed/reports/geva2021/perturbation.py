"""Measure how a key's coefficient changes if its triggers lose their first, last, or a random token (Fig. 3).

The coefficient is measured after the activation function, at the end of the shortened prefix. Its change is relative to
the coefficient at the end of the whole prefix: -1 means that it becomes 0 (the lowest value with ReLU). Leading special
tokens are never removed. A trigger is left out if it would have no tokens left, or if it ends at a position with
massive activations, where the norm of the residual stream is many times larger than elsewhere. A shortened trigger is
left out too if it ends at such a position: a single token at the start of a text, for example.

Source: Geva et al. 2021, section 3.2; the paper does not state how changes are averaged. Here they are
averaged over the triggers of each key, then over keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from unembed.corpus.token_stream import TokenStream
from unembed.models.decoder import Decoder
from unembed.reports.geva2021.triggers import KeyTriggers
from unembed.stream.massive_activations import massive_positions
from unembed.stream.run import run

KINDS = ("first", "last", "random")
STREAMS = ("resid_pre", "resid_post")
"""The residual stream before and after the key's layer, whose norms show massive activations."""


@dataclass(frozen=True, eq=False)
class Shortened:
    """A prefix without one of its tokens, and the comparisons that need a memory's coefficient on this prefix."""

    tokens: Int[np.ndarray, " pos"]
    comparisons: list[tuple[int, int, int]]
    """The comparisons that need this prefix, as indices (key, trigger, kind of token) into the result of `changes`."""


@dataclass(frozen=True, eq=False)
class Changes:
    """The relative change (m' - m) / m of each key's coefficient if a trigger loses a token, or NaN."""

    relative: Float[np.ndarray, "key trigger kind"]
    """The last axis is the kind of token that is removed, in the order of `KINDS`."""
    left_out: int
    """The number of shortened triggers left out because of massive activations."""


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
) -> Changes:
    """Return the relative change of each key's coefficient if a trigger loses a token.

    Args:
        keys: layer and key number of each sampled key.
        most: the number of random triggers of each key that lose a token; all when None.
        progress: called with the number of finished forward passes and their total number.

    Memory: the coefficients and two streams of one layer for one batch.
    """
    lengths_of = np.full((2, len(keys), triggers.top, len(KINDS)), np.nan, dtype=np.float32)
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
        points = ("coefficients", *STREAMS)
        passed = run(lm, torch.from_numpy(ids), points, attention_mask=mask, logits=False, layers=[layer])
        ends = {p: passed[p][0][torch.arange(len(batch)), lengths - 1].float().cpu().numpy() for p in points}
        sizes = np.stack([np.linalg.norm(ends[p], axis=-1) for p in STREAMS])
        for row, job in enumerate(batch):
            for k, t, kind in job.comparisons:
                found[k, t, kind] = ends["coefficients"][row, triggers.memory(*keys[k])[0]]
                lengths_of[:, k, t, kind] = sizes[:, row]
        if progress is not None:
            progress(done + 1, len(batches))
    whole = np.stack([triggers.coefficients[triggers.row(*key)] for key in keys])[..., None] if keys else found[..., :1]
    massive = _massive(lengths_of, np.array([layer for layer, _ in keys]))
    with np.errstate(invalid="ignore"):
        relative = np.where(np.isfinite(whole) & ~massive, (found - whole) / whole, np.nan)
    return Changes(relative.astype(np.float32), int(massive.sum()))


def _massive(
    lengths: Float[np.ndarray, "stream key trigger kind"], layer_of_key: Int[np.ndarray, " key"]
) -> Bool[np.ndarray, "key trigger kind"]:
    """Mark the shortened triggers that end at a position with massive activations before or after their layer.

    A trigger without its first token still ends at the same token. If it has massive activations there, the whole
    trigger is assumed to have them too, and all its shortened versions are marked.
    """
    known, marked = ~np.isnan(lengths[0]), np.zeros(lengths.shape[1:], dtype=bool)
    for layer in np.unique(layer_of_key):
        of_layer = known & (layer_of_key == layer)[:, None, None]
        marked[of_layer] = massive_positions(lengths[:, of_layer])
    return known & (marked | marked[..., :1])


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
