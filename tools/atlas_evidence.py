"""Print described lines of an atlas, drawn at random, with the evidence that a person needs to agree or not.

    python -m tools.atlas_evidence ATLAS INDEX [--model smollm2] [--lines 30] [--seed 0]

For each line: the strongest firings on the documents that chose nothing, "+" where the rule is true; and the whole
words that rise most at the passages that chose nothing, over the layer's other value vectors.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch

import unembed
from unembed.atlas import MEMORIES, open_card, read_lines, read_rule
from unembed.atlas.layer import LayerDescriber
from unembed.atlas.lines import Line, described
from unembed.index import Index
from unembed.index.atlas_of_index import atlas_source
from unembed.memories.truth_of_values import unread_windows
from unembed.memories.values import written_values

FIRINGS, BEFORE, AFTER, WORDS = 8, 8, 2, 15


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("atlas", type=Path)
    parser.add_argument("index", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    lm, card = unembed.load(given.model), open_card(given.atlas)
    passages = unread_windows(lm, None, int(card.notes["passages"]))
    source = atlas_source(Index.open(given.index), lm)
    describer = LayerDescriber(lm, source, passages, seed=card.provenance.seed or 0)
    found = described(read_lines(given.atlas / MEMORIES))
    strings, text = source.text.strings, source.text

    def firings(line: Line) -> str:
        at = source.positions[line.pole][source.starts[line.layer] + line.index]
        at = at[at >= 0]
        at = at[describer.testing[at]][:FIRINGS]
        assert line.rule is not None
        holds, rows = read_rule(json.loads(line.rule)).holds(text), list[str]()
        for p in at:
            tokens = [strings[t] for t in text.token[max(text.start[p], p - BEFORE) : p + AFTER + 1].tolist()]
            place = min(BEFORE, p - text.start[p])
            words = "".join(tokens[:place]) + f"[{tokens[place]}]" + "".join(tokens[place + 1 :])
            rows.append(f"    {'+' if holds[p] else '-'} " + words.replace("\n", "\\n"))
        return "\n".join(rows)

    drawn = random.Random(given.seed).sample(found, min(given.lines, len(found)))
    for number, line in enumerate(sorted(drawn, key=lambda one: one.layer), 1):
        vector = written_values(lm, line.layer, torch.tensor([line.index]))
        rises = describer.measured.of(line.layer, -vector if line.pole == "negative" else vector, "test").rises[0]
        words = describer.shared.words
        top = ", ".join(strings[int(words[i])].strip() for i in rises[words].topk(WORDS).indices)
        print(f"\n{number}. {line.memory}  {line.description}")
        print(f"    rule: true at {line.test_hits:.0%} of {line.firings} firings, {_test(line.input_passes)}")
        print(f"    and at {line.test_base:.1%} of other positions")
        print(firings(line))
        print(f"    tokens: {line.test_output:.1%} of like ones rise less; {_test(line.output_passes)}")
        print(f"    rise most: {top}", flush=True)


def _test(passed: bool | None) -> str:
    return "passes" if passed else "does not pass"


if __name__ == "__main__":
    np.seterr(all="raise")
    torch.set_num_threads(1)
    main()
