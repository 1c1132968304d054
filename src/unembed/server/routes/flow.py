"""The screen Flow: the circuit of a prediction as a picture, and the prediction without one part of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from fastapi.responses import StreamingResponse

from unembed.circuit_graph import Removal, changed, prompt_picture, read_case, removal
from unembed.results import numbers
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.responses import ndjson_response, to_json
from unembed.server.state import ServerState

routes = Routes("flow")


@routes.post("/flow", response_class=StreamingResponse)
async def post_flow(state: r.State, query: r.FlowRequest, client: r.Client = "") -> StreamingResponse:
    """The circuit of a prediction (`unembed.circuit_graph.FlowView`), with its test and measured effects.

    Lines of progress (`kind` progress, with the next `step`), then the picture (`kind` flow). A client that disconnects
    ends the work after the current step.
    """
    key = f"flow {query.model_dump_json()}"
    return ndjson_response(state.stream_cached(key, partial(_flow, state, query), client=client, channel="flow"))


def _flow(state: ServerState, query: r.FlowRequest, report: Callable[[object], None]) -> None:
    def step(text: str) -> None:
        report({"kind": "progress", "step": text})

    step("Running the prompt")
    tokens, target, against = _question(state, query)
    view = prompt_picture(
        state.lm,
        tokens,
        target,
        against,
        query.other,
        alone=query.alone or query.unpaired,
        max_nodes=query.max_nodes,
        step=step,
    )
    report(to_json({"kind": "flow", "flow": view.to_dict()}))


def _question(
    state: ServerState, query: r.FlowRequest | r.WithoutRequest | r.GroupRequest
) -> tuple[list[int], int, int | None]:
    """Return the tokens up to the position, the target, and the token that it is compared with."""
    trace = state.lm.trace(query.prompt)
    question = query.question(trace)
    tokens: list[int] = numbers(state.lm.encode(query.prompt)[0])
    return tokens[: range(len(tokens))[query.position] + 1], question.token, question.against


@routes.answer("POST /flow/without", "measuring the prediction without a part", on="long")
def post_without(state: r.State, query: r.WithoutRequest) -> Removal:
    """The prediction without one head or memory at a position: at 0, or with its value after another prompt."""
    tokens, target, against = _question(state, query)
    case = read_case(state.lm, tokens, None, target, against)
    return removal(state.lm, case, query.part, query.layer, query.at, query.index, other=query.other)


@routes.answer("POST /flow/group", "measuring the prediction with a group changed", on="long")
def post_group(state: r.State, query: r.GroupRequest) -> Removal:
    """The prediction with heads and memories multiplied together, or with their values after another prompt."""
    tokens, target, against = _question(state, query)
    case = read_case(state.lm, tokens, None, target, against)
    parts: list[tuple[Literal["head", "memory"], int, int, int]] = [
        (one.part, one.layer, one.at, one.index) for one in query.parts
    ]
    return changed(state.lm, case, parts, query.factor, other=query.other)
