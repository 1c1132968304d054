"""The example that the explorer shows on wren before the first request: `python -m tools.explorer_example`.

The functions behind the API compute it; a test compares the stored file with what they compute now.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unembed.models import model_sizes
from unembed.trace import TraceSettings, emergence, spread, trace_view

if TYPE_CHECKING:
    from unembed.language_model import LanguageModel

PROMPT = "He was born on 16"
FILE = Path(__file__).parents[1] / "src/unembed/server/static/example.json"
_DIGITS = 5


def example(lm: LanguageModel) -> dict[str, Any]:
    """A trace, its last position and its entropies, and the sizes that the page needs to draw them."""
    trace = lm.trace(PROMPT)
    settings = TraceSettings(PROMPT, -1, 10, "final", False, (), None)
    view, _ = trace_view(lm, settings, layer=None, memories=20, token=None, point=None, tracing=lm.trace, dominant=5)
    found = {
        "model": {**model_sizes(lm), "can": {"memories": True, "events": True}},
        "trace": asdict(emergence(lm, trace, PROMPT)),
        "position": asdict(view),
        "spread": spread(trace),
    }
    return rounded(json.loads(json.dumps(found)))


def rounded(value: object) -> Any:
    """A JSON value whose numbers have five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in cast("dict[str, object]", value).items()}
    return [rounded(one) for one in cast("list[object]", value)] if isinstance(value, list) else value


if __name__ == "__main__":
    import unembed

    FILE.write_text(json.dumps(example(unembed.load()), ensure_ascii=False, separators=(",", ":")) + "\n")
