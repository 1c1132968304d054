"""The mean of the weights of two exported models, which predicts text better than either at the end of a training run.

`python -m tools.mean_weights FIRST SECOND OUT`: OUT is a copy of SECOND but for the weights.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from unembed.errors import InvalidInput

WEIGHTS = "model.safetensors"


def mean(first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of each tensor of two models of the same sizes, in the precision of the second."""
    return {name: ((first[name].float() + tensor.float()) / 2).to(tensor.dtype) for name, tensor in second.items()}


def main(arguments: list[str]) -> int:
    """Write the folder."""
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    first, second, out = map(Path, arguments)
    try:
        weights, others = load_file(first / WEIGHTS), load_file(second / WEIGHTS)
        if {name: t.shape for name, t in weights.items()} != {name: t.shape for name, t in others.items()}:
            raise InvalidInput(f"the mean of {first} and {second}", why="their tensors have other names or shapes")
        shutil.copytree(second, out)
    except (OSError, InvalidInput) as fault:
        print(fault, file=sys.stderr)
        return 1
    weights = mean(weights, others)
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
