"""Routes that save views of the page under short names, for links that would be too long otherwise.

A view is the part of the page's URL from `#/` on, its "address". Views are saved in the index's folder; without an
index, they are lost when the server stops.
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
    persistent: bool = Field(
        description="true if it is saved in the index's folder; else it is lost when the server stops"
    )


@routes.post("/sessions")
async def post_session(state: r.State, query: r.SavedAddress) -> SavedName:
    """Save a view's address, and return its name, which is a hash of the address."""
    body = query.address.encode()
    name = hashlib.blake2b(body, digest_size=9).hexdigest()
    state.addresses.put(name, body)
    file = state.saved_addresses
    persistent = file is not None and await state.run_in_pool(partial(file.put, name, query.address), "files")
    return SavedName(id=name, persistent=persistent)


@routes.get("/sessions/{name}")
async def get_session(state: r.State, name: Annotated[str, Path(pattern=r"^[0-9a-f]{18}$")]) -> r.SavedAddress:
    """The address that is saved under a name."""
    body = state.addresses.get(name)
    if body is not None:
        return r.SavedAddress(address=body.decode())
    file = state.saved_addresses
    address = None if file is None else await state.run_in_pool(partial(file.get, name), "files")
    if address is None:
        raise InvalidInput(
            f"session {name}",
            why="no session with this name is stored on this server",
            instead="Open the saved file of this session, or check that the whole link was copied",
        )
    return r.SavedAddress(address=address)
