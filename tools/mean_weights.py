"""A weighted mean of the weights of two exported models: at the end of training it predicts text better than either.

`python -m tools.mean_weights FIRST SECOND OUT --share 0.6`: OUT is a copy of SECOND but for the weights.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unembed.errors import InvalidInput

WEIGHTS = "model.safetensors"


def mean(first: dict[str, Tensor], second: dict[str, Tensor], share: float = 0.5) -> dict[str, Tensor]:
    """Of each tensor of two models of the same sizes, `share` of the second, in the precision of the second."""
    return {
        name: ((1 - share) * first[name].float() + share * tensor.float()).to(tensor.dtype)
        for name, tensor in second.items()
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the mean of two models' weights to a folder."""
    parser = argparse.ArgumentParser(prog="python -m tools.mean_weights", description=main.__doc__)
    parser.add_argument("first", type=Path, help="an exported model")
    parser.add_argument("second", type=Path, help="an exported model of the same sizes")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--share", type=float, default=0.5, help="weight of the second model, from 0 to 1")
    given = parser.parse_args(arguments)
    if not 0 <= given.share <= 1:
        parser.error(f"--share {given.share} is not between 0 and 1")
    try:
        weights, others = load_file(given.first / WEIGHTS), load_file(given.second / WEIGHTS)
        if {name: t.shape for name, t in weights.items()} != {name: t.shape for name, t in others.items()}:
            raise InvalidInput(
                f"the mean of {given.first} and {given.second}", why="their tensors have other names or shapes"
            )
        shutil.copytree(given.second, given.out)
    except (OSError, SafetensorError, InvalidInput) as fault:
        print(fault, file=sys.stderr)
        return 1
    save_file(mean(weights, others, given.share), given.out / WEIGHTS, metadata={"format": "pt"})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
