"""Addresses too long for a link: kept under a short name that their text decides.

Where there is an index, its folder keeps them, as it keeps labels; without one they last until the server stops.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from unembed.errors import InvalidInput
from unembed.server.responses import Cache
from unembed.server.state import Session
from unembed.server.store import KeptAddresses

_KEPT = 8 * 1024 * 1024
"""Bytes of addresses kept, the least recently asked thrown out first."""


class SavedAddress(BaseModel):
    """What the page shows, as the part of its address after the file's name."""

    model_config = ConfigDict(extra="forbid")
    address: str = Field(min_length=2, max_length=200_000, pattern=r"^#/[\x21-\x7e]*$")


class SavedName(BaseModel):
    """The name under which an address is kept."""

    id: str
    stays: bool = Field(description="whether it outlives the server, in the index's folder")


def router(session: Session) -> APIRouter:
    """The routes; what is kept belongs to them alone."""
    routes = APIRouter(tags=["about"])
    kept = Cache(_KEPT)
    file = None if session.index is None else KeptAddresses(session.index.path)

    @routes.post("/sessions")
    async def save(asked: SavedAddress) -> SavedName:
        """Keep an address; the same one has the same name."""
        body = asked.address.encode()
        name = hashlib.blake2b(body, digest_size=9).hexdigest()
        kept.put(name, body)
        stays = file is not None and await session.beside(partial(file.put, name, asked.address), "files")
        return SavedName(id=name, stays=stays)

    @routes.get("/sessions/{name}")
    async def get(name: Annotated[str, Path(pattern=r"^[0-9a-f]{18}$")]) -> SavedAddress:
        """The address kept under a name."""
        body = kept.get(name)
        if body is not None:
            return SavedAddress(address=body.decode())
        address = None if file is None else await session.beside(partial(file.get, name), "files")
        if address is None:
            raise InvalidInput(
                f"session {name}",
                why="this server does not know it",
                instead="Open the file that was saved with it, or make the link again",
            )
        return SavedAddress(address=address)

    return routes
