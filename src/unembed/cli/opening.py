"""Opening the model that a command names."""

from __future__ import annotations

import sys
from typing import Any


def opened(
    model: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    dtype: str | None = None,
    device: str | None = None,
    seed: int | None = None,
) -> Any:
    """The opened model; a line on stderr says so where it may take a while and a person watches."""
    import torch

    import unembed
    from unembed.results import visible

    if seed is not None:
        torch.manual_seed(seed)
    if "/" in model and sys.stderr.isatty():
        print(f"Opening {visible(model, prose=True)} ...", file=sys.stderr)
    return unembed.load(model, revision=revision, offline=offline, dtype=dtype, device=device)
