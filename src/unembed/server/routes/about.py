"""Routes about the loaded model and the server's current job."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from unembed import __version__
from unembed.models import model_sizes
from unembed.server.requests import State
from unembed.server.state import MAX_PROMPT, ServerState

if TYPE_CHECKING:
    from unembed.index.manifest import Manifest

routes = APIRouter(tags=["about"])


@routes.get("/status")
async def get_status(state: State) -> dict[str, Any]:
    """The running job and the number of waiting jobs. This never waits for the model."""
    return {"version": __version__, "model": state.lm.name, **state.queue.status()}


@routes.get("/models")
async def get_models(state: State) -> dict[str, Any]:
    """The loaded model: its sizes, and which features of the page it supports."""
    lm = state.lm
    return {
        "models": [
            {
                **model_sizes(lm),
                "revision": lm.revision,
                "family": lm.structure.family,
                "dtype": lm.dtype_name,
                "device": str(lm.device),
                "d_model": lm.d_model,
                "experts": {n: found for n in range(lm.n_layers) if (found := lm.experts_of(n)) is not None},
                "n_kv_heads": lm.n_kv_heads,
                "max_prompt": MAX_PROMPT,
                "can": capabilities(state),
                "index": state.index_name,
                "index_mark": None if state.index is None else index_mark(state.index.manifest),
                "index_path": None if state.index is None else str(state.index.path.resolve()),
                "source": state.source,
            }
        ]
    }


def index_mark(manifest: Manifest) -> str:
    """Return a short hash (8 hexadecimal digits) of the model's weights, the corpus and the settings of an index."""
    content = [manifest.weights, manifest.provenance.corpus, dict(manifest.settings), dict(manifest.facts)]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:8]


def capabilities(state: ServerState) -> dict[str, bool]:
    """Return which features of the page the model supports."""
    lm = state.lm
    feed_forwards = [block.feed_forward for block in lm.structure.blocks]
    return {
        "memories": bool(lm.memory_layers),
        "events": any(one is not None for one in feed_forwards),
        "gated": any(one is not None and one.is_gated for one in feed_forwards),
        "index": state.index is not None,
        "parallel": any(block.parallel for block in lm.structure.blocks),
        "text": lm.tokenizer is not None,
        "chat": lm.tokenizer is not None and lm.vocabulary.has_chat_template,
        "shared_keys": lm.n_kv_heads != lm.n_heads,
    }
