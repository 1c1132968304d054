"""The example that the explorer shows before anything is asked of a model: `python -m unembed.server.example`.

It is made on wren with the same functions that answer the page's questions, and kept beside the page's files; a test
compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unembed.schemas.layer_grid import emergence, spread
from unembed.schemas.trace_builder import Asked, trace_view

PROMPT = "The first month of the year is"
FILE = Path(__file__).parent / "static/example.json"
_DIGITS = 5


def example(lm: Any) -> dict[str, Any]:
    """A trace, its last position and its entropies, and the sizes that the page needs to draw them."""
    trace = lm.trace(PROMPT)
    asked = Asked(PROMPT, -1, 10, "final", False, (), None)
    view, _ = trace_view(lm, asked, layer=None, memories=5, token=None, point=None, tracing=lambda *_, **__: trace)
    sizes = {name: getattr(lm, name) for name in ("n_layers", "n_heads", "d_mlp", "d_vocab", "n_ctx")}
    found = {
        "model": {"name": lm.name, **sizes, "can": {"memories": True, "events": True}},
        "trace": emergence(lm, trace, PROMPT).to_dict(),
        "position": view.to_dict(),
        "spread": spread(trace),
    }
    return rounded(json.loads(json.dumps(found)))


def rounded(value: Any) -> Any:
    """JSON with five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    import unembed

    FILE.write_text(json.dumps(example(unembed.load()), ensure_ascii=False, separators=(",", ":")) + "\n")
