"""Whether two answers say the same."""

from __future__ import annotations

import pytest


def close(a, b, *, rel: float = 1e-5, abs_: float = 1e-6) -> None:
    """Assert equal structure and text; numbers of two runs of the model to the last bits of float32, unless said."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            close(a[name], b[name], rel=rel, abs_=abs_)
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            close(x, y, rel=rel, abs_=abs_)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=rel, abs=abs_)
    else:
        assert a == b
