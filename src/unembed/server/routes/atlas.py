"""Routes for the atlas: a map of all value vectors of memories (FFN neurons), and search results on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

from fastapi import Path, Query, Response
from fastapi.responses import StreamingResponse

from unembed.errors import OutOfRange, UnembedError
from unembed.index import AtlasMatches, atlas_matches, atlas_view
from unembed.results import write_whole
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.packed_atlas import PackedAtlas, pack, stored_atlas, stored_path
from unembed.server.responses import ndjson_response
from unembed.server.state import ServerState

routes = Routes("atlas")


@routes.post("/atlas", response_class=StreamingResponse)
async def post_atlas(state: r.State, client: r.Client = "") -> StreamingResponse:
    """Compute the map of all value vectors at the first request; it is stored with the index or in the cache folder.

    The response is lines of progress, then a line of `kind` "atlas" with the map's `version`. The computation ends if
    the client disconnects.
    """

    def work(report: Callable[[object], None]) -> None:
        made_of = _files(state)
        if state.atlas is None or state.atlas[0] != made_of:
            state.atlas = made_of, _packed(state, lambda done, of: report({"kind": "progress", "done": done, "of": of}))
        report({"kind": "atlas", "version": state.atlas[1].version})

    return ndjson_response(state.stream_progress(work, client=client, channel="atlas"))


@routes.get("/atlas/maps/{version}", response_class=Response)
async def get_map(state: r.State, version: Annotated[str, Path(pattern="^[0-9a-f]{24}$")]) -> Response:
    """A version of the map, in the format of `unembed.server.packed_atlas`. Browsers may cache it: it never changes."""
    if state.atlas is None or state.atlas[1].version != version:
        raise OutOfRange(
            f"map {version}", why="this server now has another version of the map", instead="Request the atlas again"
        )
    headers = {"content-encoding": "gzip", "cache-control": "private, max-age=31536000, immutable"}
    return Response(state.atlas[1].body, media_type="application/octet-stream", headers=headers)


@routes.answer("GET /atlas/matches", "searching memories", depends_on=lambda state: state.label_version)
def get_matches(state: r.State, q: Annotated[str, Query(max_length=400)]) -> AtlasMatches:
    """All memories that a search query finds."""
    return atlas_matches(state.lm, state.index, q, state.descriptions)


def _packed(state: ServerState, progress: Callable[[int, int], None]) -> PackedAtlas:
    """Return the map. A map made without an index or an atlas folder is stored in the cache folder and read from it."""
    if state.index is not None or state.atlas_folder is not None:
        return pack(atlas_view(state.lm, state.index, progress))
    path = stored_path(state.lm)
    if (found := stored_atlas(path)) is not None:
        return found
    made = pack(atlas_view(state.lm, None, progress))
    with suppress(UnembedError, OSError):  # a folder that cannot be written to: it is computed again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, made.body)
    return made


def _files(state: ServerState) -> int:
    """Return when a file was last added to the index's folder or replaced there (time in ns); 0 without an index."""
    return 0 if state.index is None else state.index.path.stat().st_mtime_ns
