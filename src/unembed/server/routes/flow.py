"""Routes for the screen Flow: the circuit of a prediction, and the prediction without some of its components."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from fastapi.responses import StreamingResponse

from unembed.circuit_graph import Removal, changed, prompt_picture, read_case
from unembed.results import numbers
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.responses import ndjson_response, to_json
from unembed.server.state import ServerState

routes = Routes("flow")


@routes.post("/flow", response_class=StreamingResponse)
async def post_flow(state: r.State, query: r.FlowRequest, client: r.Client = "") -> StreamingResponse:
    """The circuit of a prediction (`unembed.circuit_graph.FlowView`), a test of the circuit, and measured effects.

    The response is lines of progress (`kind` is "progress", `step` names the next step), then the circuit (`kind` is
    "flow"). If the client disconnects, the computation ends after the current step.
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
    """Return the token ids up to the position, the token to explain, and the token that it is compared with."""
    trace = state.lm.trace(query.prompt)
    question = query.question(trace)
    tokens: list[int] = numbers(state.lm.encode(query.prompt)[0])
    return tokens[: range(len(tokens))[query.position] + 1], question.token, question.against


@routes.answer("POST /flow/without", "measuring the prediction without a part", on="long")
def post_without(state: r.State, query: r.WithoutRequest) -> Removal:
    """The prediction after one head or memory at a position is set to 0, or to its value on another prompt."""
    tokens, target, against = _question(state, query)
    case = read_case(state.lm, tokens, None, target, against)
    return changed(state.lm, case, [(query.part, query.layer, query.at, query.index)], other=query.other)


@routes.answer("POST /flow/group", "measuring the prediction with a group changed", on="long")
def post_group(state: r.State, query: r.GroupRequest) -> Removal:
    """The prediction after heads and memories are multiplied by a factor, or set to their values on another prompt."""
    tokens, target, against = _question(state, query)
    case = read_case(state.lm, tokens, None, target, against)
    parts: list[tuple[Literal["head", "memory"], int, int, int]] = [
        (one.part, one.layer, one.at, one.index) for one in query.parts
    ]
    return changed(state.lm, case, parts, query.factor, other=query.other)
