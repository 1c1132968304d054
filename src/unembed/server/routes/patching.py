"""Routes for activation patching: compare two prompts, patch activations, and continue the patched prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi.responses import StreamingResponse

import unembed
from unembed.causality import continue_patched
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.responses import ndjson_response
from unembed.server.routes.comparison import in_turn
from unembed.stream import generate_steps
from unembed.trace import ComparisonView, alignment_of, compared_tokens, comparison_view, given_coefficients

routes = Routes("compare")


@routes.answer("POST /comparison", "comparing prompts")
def post_prompts(state: r.State, query: r.TwoPrompts) -> ComparisonView:
    """The tokens of two prompts, which of them correspond, and the logit difference on each prompt."""
    clean, corrupted = state.trace(query.clean), state.trace(query.corrupted)
    return comparison_view(clean, corrupted, (query.clean, query.corrupted), *query.tokens())


@routes.answer("POST /patching", "patching", channel="patching {query.point}")
def post_patching(state: r.State, query: r.PatchingRequest) -> dict[str, Any]:
    """Patch every activation of one kind by itself, as `lm.patch` does, and return the effects.

    `recovered` is the share of the logit difference that patching restores: 0 for no effect, 1 for all of it. `given`
    has the coefficients that were patched in, for each layer, position and memory; null if no memories were patched.
    """
    lm = state.lm
    clean, corrupted = state.trace(query.clean), state.trace(query.corrupted)
    target, other = compared_tokens(clean, corrupted, *query.tokens())
    found = lm.patch(
        clean.run,
        corrupted.run,
        query.point,
        unembed.logit_difference(target, other),
        layers=None if query.layer is None else [query.layer],
        positions=None if query.position is None else [query.position],
        alignment=alignment_of(clean, corrupted),
        direction=query.direction,
        top=query.top,
    )
    given = given_coefficients(found, clean, corrupted)
    return {"schema": "unembed.patching/1", **vars(found), "recovered": found.recovered, "given": given}


@routes.post("/patching/continuation")
async def post_continuation(
    state: r.State, query: r.PatchedContinuationRequest, client: r.Client = ""
) -> StreamingResponse:
    """Continue both prompts and the patched one. In each line, `side` is "clean", "corrupted" or "patched"."""

    def steps() -> Iterator[dict[str, Any]]:
        lm, n = state.lm, query.max_new_tokens
        clean, corrupted = state.trace(query.clean), state.trace(query.corrupted)
        yield {"kind": "start"}
        sides: dict[str, Iterator[Any]] = {
            "clean": generate_steps(lm, query.clean, max_new_tokens=n),
            "corrupted": generate_steps(lm, query.corrupted, max_new_tokens=n),
            "patched": continue_patched(
                lm,
                query.clean,
                query.corrupted,
                query.point,
                query.layer,
                query.position,
                query.index,
                direction=query.direction,
                alignment=alignment_of(clean, corrupted),
                max_new_tokens=n,
            ),
        }
        for side, step in in_turn(sides):
            token = lm.token_strings([step.id])[0]
            yield {"kind": "token", "side": side, "id": step.id, "token": token, "probability": step.probability}

    return ndjson_response(state.queue.stream(steps, what="generating", client=client, channel="patched"))
