"""Edits kept under a name, to be put into the tray again.

Where there is an index, its folder keeps them, as it keeps labels; without one they last until the server stops.
"""

from __future__ import annotations

import json
from functools import partial

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from unembed.server import requests as a
from unembed.server.state import MAX_EDITS, Session
from unembed.server.store import KeptPresets, PassingPresets


class PresetEdit(a.EditAsked):
    """An edit of the tray, which may be switched off."""

    on: bool = True


class PresetAsked(BaseModel):
    """Edits and the name that they get."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=80, pattern=r"\S")
    edits: list[PresetEdit] = Field(min_length=1, max_length=MAX_EDITS)


class Preset(BaseModel):
    """Edits that are kept."""

    id: int
    name: str
    edits: list[PresetEdit]
    model: str = Field(description="the model and revision for which they were made, as links name it")
    made: str


class Presets(BaseModel):
    """All that are kept."""

    presets: list[Preset]
    stay: bool = Field(description="whether they outlive the server, in the index's folder")


def router(session: Session) -> APIRouter:
    """The routes; what is kept belongs to them alone."""
    routes = APIRouter(tags=["intervene"])
    lm = session.lm
    kept = PassingPresets() if session.index is None else KeptPresets(session.index.path)
    model = lm.name + (f"@{lm.revision[:8]}" if lm.revision else "")

    @routes.get("/presets")
    async def get_presets() -> Presets:
        """The edits that are kept, by name."""
        found = await session.beside(kept.all, "files")
        presets = [Preset(**{**one, "edits": json.loads(one["edits"])}) for one in found]
        return Presets(presets=presets, stay=session.index is not None)

    @routes.post("/presets")
    async def post_preset(asked: PresetAsked) -> dict[str, int]:
        """Keep edits under a name, in the place of those that have it."""
        edits = [edit.model_dump() for edit in asked.edits]
        return {"id": await session.beside(partial(kept.put, asked.name.strip(), edits, model), "files")}

    @routes.delete("/presets/{number}")
    async def delete_preset(number: a.Index) -> dict[str, bool]:
        """Forget a preset."""
        return {"removed": await session.beside(partial(kept.remove, number), "files")}

    return routes
