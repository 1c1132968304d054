"""Compare groups of memories: factors of coefficients, clusters of values, and both at random, by an atlas's two tests.

python -m tools.atlas_groups CORPUS [--model smollm2] [--layers 12 20 26] [--tokens 50000]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import unembed
from unembed.atlas.groups import group_scores


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 20, 26])
    parser.add_argument("--tokens", type=int, default=50_000)
    given = parser.parse_args()
    print(group_scores(unembed.load(given.model), given.layers, given.corpus, tokens=given.tokens))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
