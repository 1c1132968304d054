"""A real model of 135 million parameters: short and long prompts, the explorer's cards and memory, ranking memories, the index.

    python benchmarks/real_model.py                          # all parts, on smollm2 (`unembed models get smollm2`)
    python benchmarks/real_model.py trace card panes         # some parts
    python benchmarks/real_model.py --model DIR --index DIR  # a folder, and a finished index of the model

CPU time on one thread; a plain forward pass of the same tokens is measured in the same run. Without `--index`, the part
`ranking` builds an index over the shipped text first, which takes about a quarter of an hour. The part `panes` takes ten
minutes, most of them for the Flow of a long prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
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
            for part in ("here", "sources"):
                page.post(f"/api/v1/heads/23/4/{part}", json={"prompt": PROMPTS[0]}).raise_for_status()

        def memory() -> None:
            for part in ("", "/connections", "/truth"):
                page.get(f"/api/v1/memories/24/1005{part}").raise_for_status()
            page.post("/api/v1/memories/24/1005/activations", json={"prompt": PROMPTS[0]}).raise_for_status()

        def patched() -> None:
            for point in ("z", "coefficients"):
                page.post("/api/v1/patching", json={**body, "point": point}).raise_for_status()

        def searched() -> None:
            page.get("/api/v1/memories/search", params={"q": "/(.*)*x/"}).raise_for_status()

        def first_rows() -> None:
            with page.stream("POST", "/api/v1/traces/stream", json={"prompt": text}) as answer:
                first = json.loads(next(answer.iter_lines()))
            assert first["prediction"] and first["layers"][-1] == lm.n_layers - 1

        page.post("/api/v1/traces/stream", json={"prompt": PROMPTS[0]}).raise_for_status()  # the screen before a card
        opening, known, cell, pattern = spent(opened), spent(memory), spent(patched), spent(searched)
        kilobytes = map_bytes(page) / 1000
        rows = spent(first_rows) - plain  # last: the rest of the grid would go on being read
        claims = [
            Claim("a head's card, opened first, to 1 s", opening, 1, f"{opening:.2f} s"),
            Claim("a memory's card, opened first, without an index, to 1 s", known, 1, f"{known:.2f} s"),
            Claim("one cell of Compare, heads and memories, to 1 s", cell, 1, f"{cell:.2f} s"),
            Claim("a search for /(.*)*x/, to 1 s", pattern, 1, f"{pattern:.2f} s"),
            Claim("the map of all values, compressed, to 400 kB", kilobytes / 400, 1, f"{kilobytes:.0f} kB"),
            Claim("500 tokens: prediction and top layers after the forward pass, to 2 s", rows / 2, 1, f"{rows:.2f} s"),
        ]
        record("The explorer on a real model", claims, how=HOW)


def map_bytes(page: TestClient) -> int:
    """The bytes of the atlas's map as a browser receives them."""
    with page.stream("POST", "/api/v1/atlas", json={}) as lines:
        version = [found for line in lines.iter_lines() if (found := json.loads(line).get("version"))][-1]
    with page.stream("GET", f"/api/v1/atlas/maps/{version}", headers={"accept-encoding": "gzip"}) as answer:
        return sum(len(part) for part in answer.iter_raw())


def panes(lm: unembed.LanguageModel) -> None:
    """The memory of a server after everything that the explorer shows of a prompt of 465 tokens."""
    text, _ = prompt(lm, 465)
    clean, corrupted = (text.rsplit(" ", 1)[0] + end for end in (" France", " Italy"))
    command = [sys.executable, "-m", "unembed", "serve", "--model", lm.name, "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    while (link := re.search(r"(http://\S+/)\?token=(\S+)", process.stdout.readline())) is None:
        pass

    def megabytes(name: str) -> float:
        status = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1000

    headers = {"authorization": f"Bearer {link[2]}", "x-client": "bench"}
    with httpx.Client(base_url=f"{link[1]}api/v1", headers=headers, timeout=3600) as page:
        while not page.get("/models").raise_for_status().json()["models"]:
            time.sleep(0.5)
        time.sleep(2)
        start = megabytes("VmRSS")
        traced = page.post("/traces/stream", json={"prompt": text}).raise_for_status().text
        trace = json.loads(traced.splitlines()[0])["id"]
        for path in ("", "/layers/20", "/attribution?by=source", "/effects", "/trajectories?token= the", "/spread"):
            page.get(f"/traces/{trace}{path}").raise_for_status()
        for path in ("prompt", "patterns", "23/4/attention", "23/4/here", "23/4/sources"):
            page.post(f"/heads/{path}", json={"prompt": text}).raise_for_status()
        for path in (
            "/heads",
            "/heads/23/4",
            "/heads/23/4/partners",
            "/memories/24/1005",
            "/memories/search?q=capital",
        ):
            page.get(path).raise_for_status()
        page.post("/memories/24/1005/activations", json={"prompt": text}).raise_for_status()
        page.post("/comparison", json={"clean": clean, "corrupted": corrupted}).raise_for_status()
        for point in ("z", "coefficients"):
            cell = {"position": 3, "layer": 20, "top": 12, "point": point}
            page.post("/patching", json={"clean": clean, "corrupted": corrupted, **cell}).raise_for_status()
        page.post("/atlas", json={}).raise_for_status()
        page.post("/flow", json={"prompt": text}).raise_for_status()
        time.sleep(3)
    end, peak = megabytes("VmRSS"), megabytes("VmHWM")
    process.terminate()
    shown = (
        f"{start:,.0f} MB with the model open, {end:,.0f} MB after, at most {peak:,.0f} MB, while the Flow was found"
    )
    record(
        "The explorer's memory on a real model",
        [Claim("resident memory after all panes of 465 tokens, to that with the model open", end / start, 1.3, shown)],
        how="SmolLM2-135M-Instruct in float32; resident memory of `unembed serve` when it is idle.",
    )


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


PARTS: dict[str, Callable[[unembed.LanguageModel], None]] = {
    "trace": trace,
    "long": long,
    "card": card,
    "panes": panes,
    "index": index,
}


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
