"""Presets: edits saved under a name, to be loaded into the tray again.

With an index they are saved in its folder, as labels are; without one they last until the server stops.
"""

from __future__ import annotations

import json

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
def get_presets(state: r.State) -> Presets:
    """All presets, by name."""
    found = state.presets.all()
    presets = [Preset(**{**one, "edits": json.loads(one["edits"])}) for one in found]
    return Presets(presets=presets, persistent=state.index is not None)


@routes.post("/presets")
def post_preset(state: r.State, query: r.PresetRequest) -> dict[str, int]:
    """Save edits under a name, replacing those of the same name."""
    lm = state.lm
    model = lm.name + (f"@{lm.revision[:8]}" if lm.revision else "")
    edits = [edit.model_dump() for edit in query.edits]
    return {"id": state.presets.put(query.name.strip(), edits, model)}


@routes.delete("/presets/{number}")
def delete_preset(state: r.State, number: r.Index) -> dict[str, bool]:
    """Delete a preset."""
    return {"removed": state.presets.remove(number)}
