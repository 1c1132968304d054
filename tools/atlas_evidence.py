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
from unembed.atlas import MEMORIES, AtlasSource, open_card, read_lines, read_rule
from unembed.atlas.layer import LayerDescriber
from unembed.atlas.lines import Line, described
from unembed.index import Index
from unembed.index.atlas_of_index import atlas_source
from unembed.memories.truth_of_values import unread_windows
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder

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
    source = atlas_source(Index.open(given.index), lm)
    passages = unread_windows(lm, None, int(card.notes["passages"]))
    describer = LayerDescriber(lm, source, passages, seed=card.provenance.seed or 0)
    for number, line in enumerate(drawn(read_lines(given.atlas / MEMORIES), given.lines, given.seed), 1):
        print(f"\n{number}. {evidence(lm, source, describer, line)}", flush=True)


def drawn(lines: list[Line], n: int, seed: int) -> list[Line]:
    """Draw n described lines at random, in the order of their layers."""
    found = described(lines)
    return sorted(random.Random(seed).sample(found, min(n, len(found))), key=lambda one: one.layer)


def evidence(lm: Decoder, source: AtlasSource, describer: LayerDescriber, line: Line) -> str:
    """Return a described line with its evidence."""
    fires, rises = ("passes" if passed else "does not pass" for passed in (line.input_passes, line.output_passes))
    rows = [
        f"{line.memory}  {line.description}",
        f"    rule: true at {line.test_hits:.0%} of {line.firings} firings, {fires}",
        f"    and at {line.test_base:.1%} of other positions",
        *firings(source, describer, line),
        f"    tokens: {line.test_output:.1%} of like ones rise less; {rises}",
        f"    rise most: {', '.join(rising(lm, source, describer, line))}",
    ]
    return "\n".join(rows)


def firings(source: AtlasSource, describer: LayerDescriber, line: Line) -> list[str]:
    """Return the text at the strongest firings on the documents that chose nothing, "+" where the rule is true."""
    text, at = source.text, source.positions[line.pole][source.starts[line.layer] + line.index]
    at = at[at >= 0]
    at = at[describer.testing[at]][:FIRINGS]
    assert line.rule is not None
    holds, rows = read_rule(json.loads(line.rule)).holds(text), list[str]()
    for p in at:
        tokens = [text.strings[t] for t in text.token[max(text.start[p], p - BEFORE) : p + AFTER + 1].tolist()]
        place = min(BEFORE, p - text.start[p])
        words = "".join(tokens[:place]) + f"[{tokens[place]}]" + "".join(tokens[place + 1 :])
        rows.append(f"    {'+' if holds[p] else '-'} " + words.replace("\n", "\\n"))
    return rows


def rising(lm: Decoder, source: AtlasSource, describer: LayerDescriber, line: Line) -> list[str]:
    """Return the whole words that rise most at the passages that chose nothing."""
    vector = written_values(lm, line.layer, torch.tensor([line.index]))
    rises = describer.measured.of(line.layer, -vector if line.pole == "negative" else vector, "test").rises[0]
    words = describer.words.tokens
    return [source.text.strings[int(words[i])].strip() for i in rises[words].topk(WORDS).indices]


if __name__ == "__main__":
    np.seterr(all="raise")
    torch.set_num_threads(1)
    main()
