"""Routes for presets: lists of edits that are saved under a name.

They are saved in the index's folder; without an index, they are lost when the server stops.
"""

from __future__ import annotations

import json

from fastapi import APIRouter
from pydantic import BaseModel, Field

from unembed.server import requests as r

routes = APIRouter(tags=["intervene"])


class Preset(BaseModel):
    """A list of edits that is saved under a name."""

    id: int
    name: str
    edits: list[r.PresetEdit]
    model: str = Field(description="the model for which the edits were made, as NAME@REVISION")
    made: str


class Presets(BaseModel):
    """All presets."""

    presets: list[Preset]
    persistent: bool = Field(
        description="true if presets are saved in the index's folder; else they are lost when the server stops"
    )


@routes.get("/presets")
def get_presets(state: r.State) -> Presets:
    """All presets, sorted by name."""
    found = state.presets.all()
    presets = [Preset(**{**one, "edits": json.loads(one["edits"])}) for one in found]
    return Presets(presets=presets, persistent=state.index is not None)


@routes.post("/presets")
def post_preset(state: r.State, query: r.PresetRequest) -> dict[str, int]:
    """Save edits under a name; a preset of the same name is replaced."""
    lm = state.lm
    model = lm.name + (f"@{lm.revision[:8]}" if lm.revision else "")
    edits = [edit.model_dump() for edit in query.edits]
    return {"id": state.presets.put(query.name.strip(), edits, model)}


@routes.delete("/presets/{number}")
def delete_preset(state: r.State, number: r.Index) -> dict[str, bool]:
    """Delete a preset."""
    return {"removed": state.presets.remove(number)}
