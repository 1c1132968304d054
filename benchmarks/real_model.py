"""A real model of 135 million parameters: short and long prompts, a head's card, a cell of Compare, ranking memories, the index.

    python benchmarks/real_model.py                          # all parts, on smollm2 (`unembed models get smollm2`)
    python benchmarks/real_model.py trace card               # some parts
    python benchmarks/real_model.py --model DIR --index DIR  # a folder, and a finished index of the model

CPU time on one thread; a plain forward pass of the same tokens is measured in the same run. Without `--index`, the part
`ranking` builds an index over the shipped text first, which takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fastapi.testclient import TestClient
from measure import Claim, interleaved, ratio, record
from torch import Tensor

import unembed
from unembed.corpus import open_corpus
from unembed.corpus.batches import bucketed
from unembed.index import Index, IndexSettings
from unembed.server.app import create
from unembed.server.state import ServerState
from unembed.stream.run import forward_arguments
from unembed.sweeps import ActiveFraction, MeanVariance
from unembed.sweeps.forward import feed_reducers
from unembed.trace import TraceSettings, trace_view

HOW = "SmolLM2-135M-Instruct in float32; seconds of CPU time on one thread."
PROMPTS = ("The capital of France is", "The capital of Italy is")


def prompt(lm: unembed.LanguageModel, tokens: int) -> tuple[str, Tensor]:
    """A prompt of this many tokens from the shipped text, and its ids."""
    text = " ".join(document.text for document in open_corpus(None, max_documents=20).documents())
    text = lm.decode(lm.encode(text)[0, :tokens])
    return text, lm.encode(text)


def trace(lm: unembed.LanguageModel) -> None:
    """What `unembed trace` shows of short prompts."""
    traces(lm, "Short prompts of a real model", (5, 60))


def long(lm: unembed.LanguageModel) -> None:
    """What it shows of long ones."""
    traces(lm, "Long prompts of a real model", (1000, 4000))


def traces(lm: unembed.LanguageModel, title: str, lengths: tuple[int, ...]) -> None:
    """What `unembed trace` shows at the last position, against the forward pass of the prompt."""
    claims, medians = [], {}
    short, _ = prompt(lm, 16)
    view(lm, short)  # what is measured once in a process
    for length in lengths:
        text, ids = (PROMPTS[0], lm.encode(PROMPTS[0])) if length == 5 else prompt(lm, length)
        variants: dict[str, Callable[[], object]] = {
            f"forward pass, {length:,} tokens": lambda ids=ids: forward(lm, ids),
            f"trace, {length:,} tokens": lambda text=text: view(lm, text),
            f"events of the last position, {length:,} tokens": lambda ids=ids: lm.trace(ids).events(position=-1),
        }
        seconds = interleaved(variants, rounds=3 if length < 4000 else 1)
        plain, *ours = variants
        for name in ours:
            target = 1.5 if name.startswith("trace") else 2 if length >= 1000 else None
            claims.append(Claim(f"{name}, to the forward pass", ratio(seconds, name, plain), target))
        medians |= seconds
    record(title, claims, medians, HOW)


def view(lm: unembed.LanguageModel, text: str) -> object:
    """One position as `unembed trace` shows it."""
    settings = TraceSettings(text, -1, 5, None, False, (), None, None, False)
    return trace_view(lm, settings, layer=None, memories=None, token=None, point=None, tracing=lm.trace)


@torch.no_grad()
def forward(lm: unembed.LanguageModel, ids: Tensor) -> object:
    """A plain forward pass."""
    return lm.hf(ids, use_cache=False).logits


@contextmanager
def served(lm: unembed.LanguageModel) -> Iterator[TestClient]:
    """A page of a new server."""
    headers = {"authorization": "Bearer t"}
    state = ServerState(lm)
    with TestClient(create(state, token="t", port=7333), base_url="http://127.0.0.1:7333", headers=headers) as page:
        yield page
    state.close()


def spent(work: Callable[[], Any]) -> float:
    """Seconds of CPU time."""
    began = time.process_time()
    work()
    return time.process_time() - began


def card(lm: unembed.LanguageModel) -> None:
    """What the explorer computes at a click: a head's card, a cell of Compare, the first rows of a long prompt."""
    text, ids = prompt(lm, 500)
    plain = spent(lambda: forward(lm, ids))
    body = {"clean": PROMPTS[0], "corrupted": PROMPTS[1], "position": 3, "layer": 20, "top": 12}
    with served(lm) as page:

        def opened() -> None:
            page.post("/api/v1/heads/23/4/attention", json={"prompt": PROMPTS[0]}).raise_for_status()
            page.get("/api/v1/heads/23/4").raise_for_status()

        def patched() -> None:
            for point in ("z", "coefficients"):
                page.post("/api/v1/patching", json={**body, "point": point}).raise_for_status()

        def first_rows() -> None:
            with page.stream("POST", "/api/v1/traces/stream", json={"prompt": text}) as answer:
                first = json.loads(next(answer.iter_lines()))
            assert first["prediction"] and first["layers"][-1] == lm.n_layers - 1

        opening, cell = spent(opened), spent(patched)
        rows = spent(first_rows) - plain  # last: the rest of the grid would go on being read
        claims = [
            Claim("a head's card, opened first, to 1 s", opening, 1, f"{opening:.2f} s"),
            Claim("one cell of Compare, heads and memories, to 1 s", cell, 1, f"{cell:.2f} s"),
            Claim("500 tokens: prediction and top layers after the forward pass, to 2 s", rows / 2, 1, f"{rows:.2f} s"),
        ]
        record("The explorer on a real model", claims, how=HOW)


def index(lm: unembed.LanguageModel) -> None:
    """The sweep of an index against a plain forward pass over the same batches; a build against its estimate."""
    corpus = open_corpus(None, max_documents=3)
    batches = list(bucketed(corpus.segments(lm), 2048, 64))[::4]
    reducers = [IndexSettings().top_triggers(), MeanVariance(), ActiveFraction()]
    for reducer in reducers:
        reducer.start(lm)

    @torch.no_grad()
    def plain() -> None:
        for batch in batches:
            lm.hf(batch.tokens, **forward_arguments(lm, batch.mask))

    def swept() -> None:
        with feed_reducers(lm, reducers) as feed:
            for batch in batches:
                feed(batch)

    seconds = interleaved({"forward pass": plain, "sweep of an index": swept}, rounds=3)
    speed = 1 / ratio(seconds, "sweep of an index", "forward pass")
    claims = [Claim("0.9 to the sweep's speed as a share of the forward pass's", 0.9 / speed, 1, f"{speed:.2f}")]
    estimated = Index.estimate(lm, corpus).seconds
    with tempfile.TemporaryDirectory() as folder:
        built = spent(lambda: Index.build(lm, corpus, Path(folder) / "index"))
    off = max(estimated / built, built / estimated)
    claims.append(Claim("a build's estimated time, to 1.3", off / 1.3, 1, f"{estimated:.0f} s, {built:.0f} s"))
    record("Index of a real model", claims, seconds, HOW)


def ranking(lm: unembed.LanguageModel, folder: Path | None) -> None:
    """All memories of a finished index ranked and described."""
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            found = Index.build(lm, open_corpus(None), Path(temporary) / "index")
        else:
            found = Index.open(folder, lm)
        seconds = spent(lambda: found.memories(recompute=True))
    keys = f"{sum(found.manifest.layers):,}"
    record("Ranking of memories", [Claim(f"{keys} memories, to 300 s", seconds / 300, 1, f"{seconds:.0f} s")], how=HOW)


PARTS: dict[str, Callable[[unembed.LanguageModel], None]] = {"trace": trace, "long": long, "card": card, "index": index}


def main() -> None:
    """Run the parts that are named; all when none is."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", help=", ".join([*PARTS, "ranking"]))
    options.add_argument("--model", default="smollm2")
    options.add_argument("--index", type=Path)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    lm = unembed.load(chosen.model)
    lm.use_lens()  # as commands do
    parts = chosen.parts or [*PARTS, "ranking"]
    for name, part in PARTS.items():
        if name in parts:
            part(lm)
    if "ranking" in parts:
        ranking(lm, chosen.index)


if __name__ == "__main__":
    main()
