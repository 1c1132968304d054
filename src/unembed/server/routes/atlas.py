"""The atlas of memories: the map of all values, and the matches of a query on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from unembed.index import AtlasMatches, atlas_matches, atlas_view
from unembed.server import requests as r
from unembed.server.responses import json_response, ndjson_response

routes = APIRouter(tags=["atlas"])


@routes.post("/atlas", response_class=StreamingResponse)
async def post_atlas(state: r.State, client: r.Client = "") -> StreamingResponse:
    """The map of the values (`unembed.index.atlas.AtlasView`), computed at the first request and stored with the index.

    Lines of progress, then the map (`kind` atlas). A client that disconnects ends the work.
    """

    def work(report: Callable[[object], None]) -> None:
        view = atlas_view(state.lm, state.index, lambda done, of: report({"kind": "progress", "done": done, "of": of}))
        report({"kind": "atlas", "atlas": view})

    return ndjson_response(state.stream_progress(work, client=client, channel="atlas"))


@routes.get("/atlas/matches", responses={200: {"model": AtlasMatches}})
async def get_matches(
    request: Request, state: r.State, q: Annotated[str, Query(max_length=400)], client: r.Client = ""
) -> Response:
    """All memories that a query of the search finds."""

    def work() -> AtlasMatches:
        return atlas_matches(state.lm, state.index, q)

    key = f"atlas matches {q} {state.label_version}"
    body = await state.body(key, work, what="searching memories", client=client, channel="atlas-search")
    return json_response(request, body)
