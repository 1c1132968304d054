"""Views of the page under a short name, for links that would be too long.

With an index they are saved in its folder, as labels are; without one they last until the server stops.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from unembed.errors import InvalidInput
from unembed.server import requests as r

routes = APIRouter(tags=["about"])


class SavedName(BaseModel):
    """The name under which an address is saved."""

    id: str
    persistent: bool = Field(description="whether it outlives the server, in the index's folder")


@routes.post("/sessions")
async def post_session(state: r.State, query: r.SavedAddress) -> SavedName:
    """Save an address. The same address has the same name."""
    body = query.address.encode()
    name = hashlib.blake2b(body, digest_size=9).hexdigest()
    state.addresses.put(name, body)
    file = state.saved_addresses
    persistent = file is not None and await state.run_in_pool(partial(file.put, name, query.address), "files")
    return SavedName(id=name, persistent=persistent)


@routes.get("/sessions/{name}")
async def get_session(state: r.State, name: Annotated[str, Path(pattern=r"^[0-9a-f]{18}$")]) -> r.SavedAddress:
    """The address of a name."""
    body = state.addresses.get(name)
    if body is not None:
        return r.SavedAddress(address=body.decode())
    file = state.saved_addresses
    address = None if file is None else await state.run_in_pool(partial(file.get, name), "files")
    if address is None:
        raise InvalidInput(
            f"session {name}",
            why="this server has no session of that name",
            instead="Open the session file that was saved with it, or copy the link again",
        )
    return r.SavedAddress(address=address)
