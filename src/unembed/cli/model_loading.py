"""Opening the model that a command names."""

from __future__ import annotations

import sys
from pathlib import Path
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
    placed = "auto" if device == "auto" else None
    return unembed.load(
        model, revision=revision, offline=offline, dtype=dtype, device=None if placed else device, device_map=placed
    )


def index_of(lm: Any, folder: Path | None) -> Any:
    """The index asked for, else a ready one of this model, else None."""
    if folder is not None:
        import unembed

        return unembed.Index.open(folder, lm)
    from unembed.index.default_index import cached_index

    return cached_index(lm)
