"""Create the web application: the API under /api/v1, the page, and access control for both."""

from __future__ import annotations

import mimetypes
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from unembed import __version__
from unembed.server import responses
from unembed.server.assets import add_page
from unembed.server.auth import LOOPBACK, Guard
from unembed.server.routes import (
    about,
    analyses,
    atlas,
    comparison,
    flow,
    heads,
    labels,
    labs,
    memories,
    patching,
    presets,
    sessions,
    traces,
)
from unembed.server.state import ServerState

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": responses.Problem} for status in (401, 404, 409, 413, 422, 503, 507)
}


def create(state: ServerState, *, token: str, port: int, hosts: frozenset[str] = LOOPBACK) -> ASGIApp:
    """Return the application with its access control.

    Args:
        state: the loaded model and index; the caller closes it.
        token: the secret that every request to the API must contain.
        port: the port of the server, which is part of the cookie's name.
        hosts: the allowed values of a request's Host header, without the port.
    """
    # Some systems map .js to the type text/plain, and browsers refuse to run modules that are served as plain text.
    mimetypes.add_type("text/javascript", ".js")

    app = FastAPI(
        title="unembed explorer",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=_ERRORS,
    )
    app.state.server = state
    responses.install_error_handlers(app)
    # Compression level 1: server and browser are on the same machine, where time matters more than size.
    app.add_middleware(GZipMiddleware, minimum_size=1400, compresslevel=1)
    api = APIRouter(prefix="/api/v1")
    for room in (about, traces, flow, memories, atlas, heads, comparison, patching, labels, labs, presets, sessions):
        api.include_router(room.routes)
    api.include_router(analyses.declared_routes())
    app.include_router(api)
    add_page(app)
    return Guard(app, token, port, hosts)
