"""One prompt with and without edits: the next token before and after, and two continuations that grow together."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from unembed.server import requests as a
from unembed.server.responses import lines, tagged
from unembed.server.state import Session

MAX_RUNS = 64


class CompareAsked(a.PromptAsked):
    """What POST /compare takes."""

    max_new_tokens: int = Field(30, ge=1, le=200)
    seed: int | None = Field(None, ge=0, le=a.LARGEST)
    temperature: float = Field(1.0, gt=0, le=10, allow_inf_nan=False)
    top_k: int | None = Field(50, ge=1, le=a.LARGEST)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)


def router(session: Session) -> APIRouter:
    """The routes, over what is open."""
    routes = APIRouter(tags=["intervene"])
    runs: OrderedDict[int, dict[str, Any]] = OrderedDict()

    @routes.post("/next")
    async def next_token(request: Request, asked: a.PromptAsked, client: a.Client = "") -> Response:
        """The likeliest next tokens with and without the edits: the first table of `unembed steer --json`."""
        edits = [e.edit() for e in asked.edits]

        def work() -> dict[str, Any]:
            from unembed import steering

            return steering.next_token_table(session.lm, asked.prompt, edits, 10).to_dict()

        key = f"next {session.trace_id(asked.prompt, edits)}"
        return tagged(
            request, await session.body(key, work, what="reading the next token", client=client, channel="next")
        )

    @routes.post("/compare")
    async def compare(asked: CompareAsked, client: a.Client = "") -> StreamingResponse:
        """Both continuations, token by token: lines with `side` base or edit, then a summary."""
        edits = [e.edit() for e in asked.edits]

        def both() -> Iterator[dict[str, Any]]:
            from unembed.stream.generation import generate_steps

            options: dict[str, Any] = asked.model_dump(
                include={"max_new_tokens", "seed", "temperature", "top_k", "top_p"}
            )
            sides = {"base": generate_steps(session.lm, asked.prompt, (), **options)}
            if edits:
                sides["edit"] = generate_steps(session.lm, asked.prompt, edits, **options)
            ids: dict[str, list[int]] = {name: [] for name in sides}
            texts = dict.fromkeys(sides, "")
            while sides:
                for name in list(sides):
                    step = next(sides[name], None)
                    if step is None:
                        del sides[name]
                        continue
                    ids[name].append(step.id)
                    texts[name] = step.text
                    yield {"kind": "token", "side": name, **dataclasses.asdict(step)}
            number = next(reversed(runs), 0) + 1
            said = {
                "kind": "summary",
                "run": number,
                "prompt": asked.prompt,
                "edits": [e.model_dump() for e in asked.edits],
                "options": options,
                "texts": texts,
                "diverges_at": _divergence(ids) if edits else None,
            }
            runs[number] = said
            while len(runs) > MAX_RUNS:
                runs.popitem(last=False)
            yield said

        async def items() -> AsyncIterator[Any]:
            stream = session.worker.stream(both, what="generating", client=client, channel="compare")
            async for item in stream:
                yield item
                await asyncio.sleep(0)

        return lines(items())

    @routes.get("/runs")
    async def get_runs() -> dict[str, Any]:
        """The comparisons made since the server started, oldest first."""
        return {"runs": list(runs.values())}

    @routes.delete("/runs/{number}")
    async def delete_run(number: a.Index) -> dict[str, Any]:
        """Forget a comparison."""
        return {"removed": runs.pop(number, None) is not None}

    return routes


def _divergence(ids: dict[str, list[int]]) -> int | None:
    """The first new token, from 0, at which the two sides differ; None where they never do."""
    base, edit = ids["base"], ids["edit"]
    for i in range(max(len(base), len(edit))):
        if base[i : i + 1] != edit[i : i + 1]:
            return i
    return None
