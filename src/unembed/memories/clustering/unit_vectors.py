"""Scale vectors to length 1, and find equal ones."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from unembed.errors import InvalidInput


def unit_rows(vectors: Tensor) -> Float32[Tensor, "n d"]:
    """Scale the vectors to length 1, in float32; zero vectors stay zero.

    Raises:
        InvalidInput: the vectors are not a matrix, are empty, or hold NaN or infinity.
    """
    if vectors.dim() != 2 or not vectors.numel() or not vectors.is_floating_point():
        raise InvalidInput(
            f"cannot cluster a {vectors.dtype} tensor of shape {tuple(vectors.shape)}",
            why="clustering takes a matrix of numbers with one vector per row",
            instead="Give a float tensor (n, d)",
        )
    out = torch.empty(vectors.shape, dtype=torch.float32, device=vectors.device)
    for start in range(0, len(vectors), 8192):
        rows = vectors[start : start + 8192].detach().double()
        lengths = rows.norm(dim=1, keepdim=True)
        if not bool(lengths.isfinite().all()):
            at = start + int((~lengths.isfinite()).flatten().nonzero()[0])
            raise InvalidInput(f"vector {at} has no direction", why="it contains NaN or infinity")
        out[start : start + 8192] = torch.where(lengths > 0, rows / lengths.clamp_min(1e-300), 0.0)
    return out


def equal_rows(directions: Float32[Tensor, "n d"]) -> tuple[np.ndarray, np.ndarray]:
    """Find equal rows.

    Returns, for each row, the number of the first row that is equal to it; and the sorted numbers of these first rows.
    """
    rows = (directions + 0.0).cpu().numpy()  # + 0.0 makes -0.0 and 0.0 the same bytes
    seen: dict[bytes, int] = {}
    # To save memory, the keys of the dict are 16-byte hashes of the rows, not the rows themselves.
    first_of = np.array([seen.setdefault(blake2b(row, digest_size=16).digest(), i) for i, row in enumerate(rows)])
    return first_of, np.unique(first_of)
