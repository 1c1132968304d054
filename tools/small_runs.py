"""Small runs that plan a large one: sizes and penalties, on the same tokens, judged by more than the loss.

`python -m tools.small_runs --out models --to models/small --tokens 1000000`

Reads the encoded text that training left in `models/text`. Each run reads the same batches, with a rate that falls to
zero over the last fifth. The table has held-back bits per byte and how many values hold together (`value_coherence`).
A stopped run resumes; a finished one is not repeated.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from tools.training import encoding, export
from tools.training.gradients import OneProcess
from tools.training.loop import Run
from tools.training.networks import Shape
from tools.training.recipes import WINDOW, Phase, Recipe
from tools.training.windows import EncodedCorpus
from tools.two_processes import TwoProcesses
from tools.value_coherence import Coherence, contexts, judged

WINDOWS = 8  # of a batch
CANDIDATES = {
    "6 layers of 192": (6, 192, 0.0, 0.0),
    "6 layers of 256": (6, 256, 0.0, 0.0),
    "8 layers of 256": (8, 256, 0.0, 0.0),
    "8 layers of 256, sparsity 0.001": (8, 256, 0.001, 0.0),
    "8 layers of 256, sparsity 0.001, nearness 0.5": (8, 256, 0.001, 0.5),
}


def recipe_of(
    n_layers: int, d_model: int, sparsity: float = 0.0, nearness: float = 0.0, *, d_vocab: int, tokens: int
) -> Recipe:
    """Heads of 64, four memories for each dimension of the stream, 256 positions."""
    shape = Shape(n_layers, d_model, d_model // 64, 64, 4 * d_model, d_vocab, 256)
    steps = max(5, tokens // (WINDOWS * WINDOW))
    first = Phase(steps * 4 // 5, context=256, windows=WINDOWS, sparsity=sparsity, nearness=nearness)
    return Recipe(shape, (first, replace(first, until=steps, lr=(1.0, 0.0))), warmup=min(40, steps // 5))


def small_run(
    recipe: Recipe, text: EncodedCorpus, held_back: EncodedCorpus, folder: Path, *, processes: int, compiled: bool
) -> dict[str, float]:
    """Train, export into `folder/model`, and return the last measurement on held-back text."""
    engine = TwoProcesses if processes > 1 else OneProcess
    run = Run(recipe, text, folder, held_back=held_back, compiled=compiled, engine=engine)
    try:
        run.train()
    finally:
        run.close()
    export.save(run.network, folder / "model")
    last = json.loads((folder / "held_back.jsonl").read_text().splitlines()[-1])
    n_parameters = sum(parameter.numel() for parameter in run.network.parameters())
    return {"parameters": n_parameters, "tokens": last["tokens"], "bits per byte": last["bits_per_byte"]}


def main() -> None:
    """Print a Markdown table, a row as each run ends."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder with `text/` and `token_counts.json`")
    parser.add_argument("--to", type=Path, required=True, help="where the runs go")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens of each run")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    text = encoding.load(given.out / "text" / "train.npz")
    held_back = encoding.load(given.out / "text" / "held_back.npz")
    counts = np.array(json.loads((given.out / "token_counts.json").read_text()))
    cache = given.to / "contexts.npy"
    given.to.mkdir(parents=True, exist_ok=True)
    if not cache.exists():
        np.save(cache, contexts(text.tokens[:8_000_000], len(counts)))
    coherence = Coherence(np.load(cache), counts, least=100)
    print("| run | parameters | tokens | held-back bits per byte | values above 95 % of random vectors |", flush=True)
    print("| --- | ---: | ---: | ---: | ---: |", flush=True)
    for label, candidate in CANDIDATES.items():
        folder = given.to / label.replace(" ", "-").replace(",", "")
        done = folder / "row.json"
        if not done.exists():
            recipe = recipe_of(*candidate, d_vocab=len(counts), tokens=given.tokens)
            compiled = not given.no_compile
            row = small_run(recipe, text, held_back, folder, processes=given.processes, compiled=compiled)
            row |= judged(folder / "model", coherence)
            done.write_text(json.dumps(row) + "\n")
        row = json.loads(done.read_text())
        share = row["share above the 95th percentile of random"]
        cells = [label, f"{row['parameters'] / 1e6:.1f}M", f"{row['tokens'] / 1e6:.1f}M"]
        print(f"| {' | '.join(cells)} | {row['bits per byte']:.3f} | {share:.0%} |", flush=True)


if __name__ == "__main__":
    main()
