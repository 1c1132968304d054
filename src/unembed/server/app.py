"""The application: the API under /api/v1, the page, and who may ask."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from unembed import __version__
from unembed.server import responses
from unembed.server.assets import add_page
from unembed.server.auth import LOOPBACK, Guard
from unembed.server.routes import comparing, heads, labels, labs, memories, presets, sessions, traces
from unembed.server.state import MAX_PROMPT, Session

_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": responses.Problem} for status in (401, 404, 409, 413, 422, 503, 507)
}


def create(session: Session, *, token: str, port: int, hosts: frozenset[str] = LOOPBACK) -> ASGIApp:
    """The guarded application.

    Args:
        session: what is open.
        token: who knows it may ask.
        port: where the server listens: part of the cookie's name.
        hosts: host names that requests may name.
    """
    # Some machines' registries map .js to text/plain, and browsers then refuse modules.
    mimetypes.add_type("text/javascript", ".js")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        session.close()

    app = FastAPI(
        title="unembed explorer",
        version=__version__,
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=_FAILURES,
    )
    responses.install(app)
    # Level 1: on one machine time matters more than bytes.
    app.add_middleware(GZipMiddleware, minimum_size=1400, compresslevel=1)
    api = APIRouter(prefix="/api/v1")
    api.include_router(_about(session))
    for room in (traces, memories, heads, comparing, labels, labs, presets, sessions):
        api.include_router(room.router(session))
    app.include_router(api)
    add_page(app)
    return Guard(app, token, port, hosts)


def _about(session: Session) -> APIRouter:
    routes = APIRouter(tags=["about"])
    lm = session.lm

    @routes.get("/status")
    async def status() -> dict[str, Any]:
        """What the model is doing; answers at once, whatever that is."""
        return {"version": __version__, "model": lm.name, **session.worker.status()}

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        """The open model: its sizes, and what can be asked of it."""
        return {
            "models": [
                {
                    "name": lm.name,
                    "revision": lm.revision,
                    "family": lm.structure.family,
                    "dtype": lm.dtype_name,
                    "device": str(lm.device),
                    "n_layers": lm.n_layers,
                    "d_model": lm.d_model,
                    "d_mlp": lm.d_mlp,
                    "n_heads": lm.n_heads,
                    "n_kv_heads": lm.n_kv_heads,
                    "d_vocab": lm.d_vocab,
                    "n_ctx": lm.n_ctx,
                    "max_prompt": MAX_PROMPT,
                    "can": {
                        "memories": bool(lm.d_mlp),
                        "events": lm.structure.blocks[0].feed_forward is not None,
                        "gated": any(getattr(b.feed_forward, "gate", None) is not None for b in lm.structure.blocks),
                        "index": session.index is not None,
                        "parallel": any(b.parallel for b in lm.structure.blocks),
                        "shared_keys": lm.n_kv_heads != lm.n_heads,
                    },
                    "index": session.index_name,
                }
            ]
        }

    return routes
