"""Which values of a model training may change so that they promote what follows their triggers.

`python -m tools.changing_values MODEL models/wren/changing.npy`

These are the values of the upper half of the layers in whose top 30 tokens automatic concepts find least (`unembed
concepts`): at most a share of 0.6 of them, and those that equal the last one. `tools.training` reads the file in the
phases that set `agreement`; all other values stay as they are there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import unembed
from unembed.concepts.value_concepts import vector_concepts
from unembed.errors import UnembedError

SHARE = 0.6


def changing(lm: unembed.LanguageModel, *, share: float = SHARE) -> np.ndarray:
    """Truth values (layers of the upper half, d_mlp)."""
    upper = range(lm.n_layers // 2, lm.n_layers)
    covered = np.stack([vector_concepts(lm, lm.weights.W_out[layer].float()).coverage() for layer in upper])
    return covered <= np.quantile(covered, share)


def main(arguments: list[str]) -> int:
    """Write the file."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    model, path = arguments
    try:
        chosen = changing(unembed.load(model))
    except UnembedError as fault:
        print(fault, file=sys.stderr)
        return 1
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    np.save(path, chosen)
    print(f"{chosen.sum():,} of {chosen.size:,} values")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
