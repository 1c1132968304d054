"""An index of GPT-2-small's size: bytes on disk, and how long its questions take.

    python benchmarks/index.py                 # 36,864 keys, top 25, k 30, over the shipped corpus
    python benchmarks/index.py --layers 4      # smaller, to try it
    python benchmarks/index.py --keys 1000000  # a million keys of width 64, top 4, k 5: about two minutes

The model has GPT-2-small's shape and random weights; its triggers are random places of the shipped corpus and its value
tokens random ids, which compress worse than real ones: sizes are upper bounds. Everything else, from the token stream
to the search file, is what a build makes. Each question is asked 200 times with arguments drawn from a seed; the figure
is the median of the CPU time on one thread, after one warm round. The peer for `triggers` and `promoting` is the same
question as SQL on the index's own Parquet tables; for `similar`, one product of all unit vectors held in memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from measure import Claim, record
from transformers import GPT2Config, GPT2LMHeadModel

import unembed
from unembed.corpus import open_corpus
from unembed.index import IndexSettings
from unembed.index import build as building
from unembed.index.labels import NAME as LABELS
from unembed.memories.values import ValueReadings
from unembed.sweeps import FiringCounts, Moments, Triggers

TARGETS = {"triggers": 10.0, "promoting": 50.0, "similar values": 50.0}
DISK = 40e6


def model(layers: int, d_vocab: int, width: int = 768, memories: int | None = None, tokenizer: Any = None) -> Any:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, vocab_size=d_vocab, n_embd=width, n_inner=memories, n_head=width // 64)
    return unembed.load(GPT2LMHeadModel(config).eval(), tokenizer=tokenizer or unembed.load().tokenizer)


def made_up_sweep(n_tokens: int) -> Callable[..., list[Any]]:
    """What a sweep returns, drawn at random: per key, distinct places and falling coefficients."""

    def sweep(lm: Any, corpus: Any, reducers: Sequence[Any], **_: Any) -> list[Any]:
        draw = np.random.default_rng(0)
        top, n = reducers[0].top, lm.d_mlp
        values, positions, moments = [], [], []
        for _layer in range(lm.n_layers):
            values.append(torch.from_numpy(-np.sort(-draw.gamma(2.0, size=(n, top))).astype(np.float32)))
            positions.append(torch.from_numpy(draw.integers(0, n_tokens, (n, top))))
            moments.append(torch.from_numpy(draw.normal(size=n)))
        layers, some = tuple(range(lm.n_layers)), tuple(moments)
        counts = tuple(torch.from_numpy(draw.integers(0, n_tokens, n)) for _ in layers)
        return [
            Triggers(layers, tuple(values), tuple(positions), None, None, n_tokens),
            Moments(layers, n_tokens, some, some, some, some),
            FiringCounts(layers, n_tokens, counts, tuple(torch.zeros_like(one) for one in counts)),
        ]

    return sweep


def made_up_readings(lm: Any, k: int, seed: int = 1) -> ValueReadings:
    draw = np.random.default_rng(seed)
    shape = (lm.n_layers, lm.d_mlp, k)
    scores = -np.sort(-draw.normal(size=shape)).astype(np.float32)
    ids = draw.integers(0, lm.d_vocab, shape).astype(np.int32)
    return ValueReadings(
        tuple(range(lm.n_layers)),
        torch.from_numpy(ids),
        torch.from_numpy(scores),
        "raw",
        False,
        lm.provenance(basis="raw"),
    )


def made_up_ends(lm: Any, k: int, **_: Any) -> tuple[ValueReadings, ValueReadings]:
    """In place of the tokens that every value promotes and suppresses most."""
    return made_up_readings(lm, k), made_up_readings(lm, k, seed=2)


def median_ms(ask: Callable[[int], object], rounds: int) -> tuple[float, float]:
    """Median CPU and wall milliseconds over different questions."""
    ask(0)
    cpu, wall = [], []
    for i in range(rounds):
        c, w = time.process_time(), time.perf_counter()
        ask(i)
        cpu.append(time.process_time() - c)
        wall.append(time.perf_counter() - w)
    return 1e3 * statistics.median(cpu), 1e3 * statistics.median(wall)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--layers", type=int, default=12)
    options.add_argument("--keys", type=int, help="so many keys of width 64, in 16 layers")
    options.add_argument("--rounds", type=int, default=200)
    given = options.parse_args()
    torch.set_num_threads(1)
    lm = model(16, 50_257, 64, given.keys // 16) if given.keys else model(given.layers, 50_257)
    top, k = (4, 5) if given.keys else (25, 30)
    corpus = open_corpus(None)
    n_tokens = sum(len(segment) - segment.skip for segment in corpus.segments(lm))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        began = time.process_time()
        with (
            mock.patch.object(building, "sweep", made_up_sweep(n_tokens)),
            mock.patch.object(building, "value_ends", made_up_ends),
        ):
            index = unembed.Index.build(lm, corpus, path, top, settings=IndexSettings(top_tokens=k))
        writing = time.process_time() - began
        parts = index.status()["parts"]
        without = index.status()["bytes"] - parts["tokens"] - parts["search"]
        draw = np.random.default_rng(2)
        keys = list(
            zip(draw.integers(0, lm.n_layers, 512).tolist(), draw.integers(0, lm.d_mlp, 512).tolist(), strict=True)
        )
        tokens = draw.integers(0, lm.d_vocab, 512).tolist()
        words = ["river", "government of", '"first season"', "music", "Ireland", "gold*"]
        unit = torch.nn.functional.normalize(
            torch.cat([lm.weights.W_out[n] for n in range(lm.n_layers)]).detach(), dim=1
        )

        def sql_triggers(i: int) -> object:
            layer, key = keys[i % 512]
            return index.sql(f"SELECT * FROM triggers WHERE layer = {layer} AND index = {key} ORDER BY rank")

        def sql_promoting(i: int) -> object:
            return index.sql(
                f"SELECT layer, index, rank, score FROM values WHERE token_id = {tokens[i % 512]} ORDER BY score DESC"
            )

        found = {
            "triggers": median_ms(lambda i: index.triggers(*keys[i % 512]), given.rounds),
            "triggers as SQL": median_ms(sql_triggers, given.rounds // 10),
            "promoting": median_ms(lambda i: index.promoting(tokens[i % 512]), given.rounds),
            "promoting as SQL": median_ms(sql_promoting, given.rounds // 10),
            "similar values": median_ms(lambda i: index.similar(*keys[i % 512]), given.rounds // 4),
            "similar keys": median_ms(lambda i: index.similar(*keys[i % 512], among="keys"), given.rounds // 4),
            "bare product": median_ms(lambda i: (unit @ unit[i]).topk(21), given.rounds // 4),
            "search": median_ms(lambda i: index.search(words[i % len(words)]), given.rounds // 10),
            "open": median_ms(lambda i: unembed.Index.open(path).triggers(*keys[i % 512]), given.rounds // 10),
        }
        assert not (path / LABELS).exists()
    claims = (
        []
        if given.keys
        else [Claim(f"disk without tokens and text search, MB, against {DISK / 1e6:.0f}", without / DISK, 1.0)]
    )
    claims += [
        Claim(f"`{name}`, against {limit:.0f} ms", found[name][0] / limit, 1.0, f"{found[name][0]:.2f} ms CPU")
        for name, limit in TARGETS.items()
    ]
    claims += [
        Claim("`triggers` against the same as SQL", found["triggers"][0] / found["triggers as SQL"][0], None),
        Claim("`promoting` against the same as SQL", found["promoting"][0] / found["promoting as SQL"][0], None),
        Claim(
            "`similar` against one product of unit vectors", found["similar values"][0] / found["bare product"][0], None
        ),
    ]
    sizes = ", ".join(f"{name} {number / 1e6:.1f}" for name, number in parts.items())
    times = ", ".join(f"{name} {cpu:.2f}/{wall:.2f}" for name, (cpu, wall) in found.items())
    record(
        "Index of a million keys" if given.keys else "Index",
        claims,
        how=f"{lm.n_layers * lm.d_mlp:,} keys of width {lm.d_model}, top {top}, k {k}, {n_tokens:,} tokens; one thread. MB by part: {sizes}. "
        f"CPU/wall ms: {times}. Everything but sweep and readings written in {writing:.1f} CPU s.",
    )


if __name__ == "__main__":
    main()
