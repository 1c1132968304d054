"""Automatic concepts of values: how many a minute, on one thread.

    python benchmarks/concepts.py [--values 1000] [--dry]

The classes of the vocabulary are made once for a model and are timed apart.
"""

from __future__ import annotations

import argparse
import time

import torch
from measure import Claim, record

import unembed
from unembed.concepts.value_concepts import model_classes, sample_memories, value_concepts


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--values", type=int, default=1000)
    options.add_argument("--model", default="wren")
    options.add_argument("--dry", action="store_true", help="print only, leave RESULTS.md as it is")
    given = options.parse_args()
    torch.set_num_threads(1)
    lm = unembed.load(given.model)
    start = time.process_time()
    model_classes(lm)
    made = time.process_time() - start
    memories = sample_memories(lm, -(-given.values // lm.n_layers), seed=0)[: given.values]
    start = time.process_time()
    value_concepts(lm, memories)
    seconds = time.process_time() - start
    per_thousand = seconds * 1000 / len(memories)
    note = f"{per_thousand:.2f} CPU seconds; the vocabulary's classes took {made:.1f} once"
    claim = Claim("1,000 values, to a minute", per_thousand / 60, 1.0, note)
    if given.dry:
        print(claim)
    else:
        record(f"Automatic concepts of {len(memories):,} values of {given.model}", [claim], how="One thread, CPU time.")


if __name__ == "__main__":
    main()
