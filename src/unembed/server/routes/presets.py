"""Presets: edits saved under a name, to be loaded into the tray again.

With an index they are saved in its folder, as labels are; without one they last until the server stops.
"""

from __future__ import annotations

import json
from functools import partial

from fastapi import APIRouter
from pydantic import BaseModel, Field

from unembed.server import requests as r

routes = APIRouter(tags=["intervene"])


class Preset(BaseModel):
    """Saved edits."""

    id: int
    name: str
    edits: list[r.PresetEdit]
    model: str = Field(description="the model and revision for which they were made, as links name it")
    made: str


class Presets(BaseModel):
    """All presets."""

    presets: list[Preset]
    persistent: bool = Field(description="whether they outlive the server, in the index's folder")


@routes.get("/presets")
async def get_presets(state: r.State) -> Presets:
    """All presets, by name."""
    found = await state.run_in_pool(state.presets.all, "files")
    presets = [Preset(**{**one, "edits": json.loads(one["edits"])}) for one in found]
    return Presets(presets=presets, persistent=state.index is not None)


@routes.post("/presets")
async def post_preset(state: r.State, query: r.PresetRequest) -> dict[str, int]:
    """Save edits under a name, replacing those of the same name."""
    lm = state.lm
    model = lm.name + (f"@{lm.revision[:8]}" if lm.revision else "")
    edits = [edit.model_dump() for edit in query.edits]
    return {"id": await state.run_in_pool(partial(state.presets.put, query.name.strip(), edits, model), "files")}


@routes.delete("/presets/{number}")
async def delete_preset(state: r.State, number: r.Index) -> dict[str, bool]:
    """Delete a preset."""
    return {"removed": await state.run_in_pool(partial(state.presets.remove, number), "files")}
