"""Laboratories: values found by words; what the other laboratories need."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from unembed.server import asked as a
from unembed.server.answers import tagged
from unembed.server.session import Session


class WordsAsked(BaseModel):
    """Words to raise and to lower, separated by commas."""

    model_config = ConfigDict(extra="forbid")
    promote: str = Field("", max_length=400)
    suppress: str = Field("", max_length=400)
    values: int = Field(2, ge=1, le=20)
    to: float = Field(3.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    by: float = Field(0.0, ge=-1e6, le=1e6, allow_inf_nan=False)


_LABS = [
    {
        "name": "toxicity",
        "title": "Toxicity suppression",
        "here": False,
        "why": "this screen is not built yet; the library's part is `unembed.toxicity`",
        "fix": "Until then: find values under Steer by words, put them into the edits, and compare both texts.",
    },
    {
        "name": "early-exit",
        "title": "Early exit",
        "here": False,
        "why": "this screen is not built yet; the library's part is `unembed.early_exit`",
        "fix": "Until then: Trace marks with ◆ where each position's prediction settles.",
    },
]


def router(session: Session) -> APIRouter:
    """The routes, over what is open."""
    routes = APIRouter(tags=["labs"])

    @routes.get("/labs")
    async def labs() -> dict[str, Any]:
        """Which laboratories there are, and why one is not here."""
        return {"labs": _LABS}

    @routes.post("/labs/promoters")
    async def promoters(request: Request, asked: WordsAsked, client: a.Client = "") -> Response:
        """Values by the words they promote, as `unembed steer --promote` finds them, and the edits they make."""

        def work() -> dict[str, Any]:
            from unembed import steering

            found = [
                steering.promoting(session.lm, steering.words_of(text), asked.values) if text.strip(" ,") else []
                for text in (asked.promote, asked.suppress)
            ]
            edits = steering.chosen_edits(*found, to=asked.to, by=asked.by)
            table = steering.promoters_table(session.lm, [*found[0], *found[1]]).to_dict()
            return {**table, "edits": [dataclasses.asdict(edit) for edit in edits]}

        key = f"promoters {asked.model_dump_json()}"
        body = await session.body(key, work, what="finding values", client=client, channel="promoters", on="long")
        return tagged(request, body)

    return routes
