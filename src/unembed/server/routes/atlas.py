"""The atlas of memories: the map of all values, and the matches of a query on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Query
from fastapi.responses import StreamingResponse

from unembed.index import AtlasMatches, atlas_matches, atlas_view
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.responses import ndjson_response

routes = Routes("atlas")


@routes.post("/atlas", response_class=StreamingResponse)
async def post_atlas(state: r.State, client: r.Client = "") -> StreamingResponse:
    """The map of the values (`unembed.index.atlas.AtlasView`), computed at the first request and stored with the index.

    Lines of progress, then the map (`kind` atlas). A client that disconnects ends the work.
    """

    def work(report: Callable[[object], None]) -> None:
        view = atlas_view(state.lm, state.index, lambda done, of: report({"kind": "progress", "done": done, "of": of}))
        report({"kind": "atlas", "atlas": view})

    return ndjson_response(state.stream_progress(work, client=client, channel="atlas"))


@routes.answer("GET /atlas/matches", "searching memories", depends_on=lambda state: state.label_version)
def get_matches(state: r.State, q: Annotated[str, Query(max_length=400)]) -> AtlasMatches:
    """All memories that a query of the search finds."""
    return atlas_matches(state.lm, state.index, q)
