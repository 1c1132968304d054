"""Routes that compare a prompt with and without edits: next-token probabilities, and continuations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse

from unembed import steering
from unembed.document import share_of
from unembed.errors import NotFinite
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.responses import ndjson_response
from unembed.server.state import MAX_RUNS, ServerState
from unembed.stream import generate_steps

routes = Routes("intervene")
T = TypeVar("T")


@routes.answer("POST /next", "reading the next token")
def post_next_token(state: r.State, query: r.PromptRequest) -> dict[str, Any]:
    """The most likely next tokens with and without the edits: the first table of `unembed steer --json`."""
    return steering.next_token_table(state.lm, query.prompt, query.library_edits(), 10).to_dict()


@routes.answer("POST /next/positions", "reading every position")
def post_positions(state: r.State, query: r.PromptRequest) -> dict[str, Any]:
    """At every position of the prompt: the top token without and with the edits, and the KL divergence."""
    return steering.change_by_position(state.lm, query.prompt, query.library_edits()).to_dict()


@routes.answer("POST /samples", "sampling", channel="samples")
def post_samples(state: r.State, query: r.SamplesRequest) -> dict[str, Any]:
    """Sampled continuations without and with the edits.

    For i of n continuations, such as those that contain a word, `shares[i]` is the share i / n with its 95 % confidence
    interval.
    """
    n, edits = query.samples, query.library_edits()
    found = steering.steer(
        state.lm, query.prompt, edits, samples=n, max_new_tokens=query.max_new_tokens, seed=query.seed
    )
    shares = [dataclasses.asdict(share_of(i, n)) for i in range(n + 1)]
    return {"plain": found.plain, "edited": found.edited, "shares": shares}


@routes.post("/compare")
async def post_comparison(state: r.State, query: r.CompareRequest, client: r.Client = "") -> StreamingResponse:
    """The continuations without the edits (`side` is "base") and with them ("edit"), token by token, then a summary."""
    both = partial(_continuations, state, query)
    return ndjson_response(state.queue.stream(both, what="generating", client=client, channel="compare"))


@routes.get("/runs")
async def get_runs(state: r.State) -> dict[str, Any]:
    """The comparisons since the server started, latest last."""
    return {"runs": list(state.runs.values())}


@routes.delete("/runs/{number}")
async def delete_run(state: r.State, number: r.Index) -> dict[str, Any]:
    """Delete a comparison."""
    return {"removed": state.runs.pop(number, None) is not None}


def _continuations(state: ServerState, query: r.CompareRequest) -> Iterator[dict[str, Any]]:
    """Yield the new tokens without and with the edits in turn, then a summary, which is stored as a run.

    The run replaces an earlier run with the same prompt, edits and options.
    """
    edits = query.library_edits()
    options: dict[str, Any] = query.model_dump(include={"max_new_tokens", "seed", "temperature", "top_k", "top_p"})
    sides = {"base": generate_steps(state.lm, query.prompt, (), **options)}
    if edits:
        sides["edit"] = generate_steps(state.lm, query.prompt, edits, **options)
    ids: dict[str, list[int]] = {name: [] for name in sides}
    texts = dict.fromkeys(sides, "")
    for name, step in in_turn(sides):
        ids[name].append(step.id)
        texts[name] = step.text
        yield {"kind": "token", "side": name, **dataclasses.asdict(step)}
    request = {"prompt": query.prompt, "edits": [edit.model_dump() for edit in query.edits], "options": options}
    number = _number(state, request)
    summary = {
        "kind": "summary",
        "run": number,
        **request,
        "texts": texts,
        "diverges_at": _divergence(ids["base"], ids["edit"]) if edits else None,
    }
    state.runs[number] = summary
    state.runs.move_to_end(number)
    while len(state.runs) > MAX_RUNS:
        state.runs.popitem(last=False)
    yield summary


def in_turn(sides: dict[str, Iterator[T]]) -> Iterator[tuple[str, T]]:
    """Yield the items of several iterators in turn, each with the name of its iterator, until all have ended.

    If an iterator raises `NotFinite`, the others are continued to their end before the error is raised.
    """
    overflow: NotFinite | None = None
    while sides:
        for name in list(sides):
            try:
                step = next(sides[name], None)
            except NotFinite as error:
                step, overflow = None, error
            if step is None:
                del sides[name]
            else:
                yield name, step
    if overflow is not None:
        raise overflow


def _number(state: ServerState, request: dict[str, Any]) -> int:
    """Return the number of an earlier run with the same prompt, edits and options, or the next free number."""
    same = (number for number, run in state.runs.items() if all(run[name] == request[name] for name in request))
    return next(same, max(state.runs, default=0) + 1)


def _divergence(base: list[int], edited: list[int]) -> int | None:
    """Return the first position, counted from 0, at which two lists of token ids differ; None if they are equal."""
    for i in range(max(len(base), len(edited))):
        if base[i : i + 1] != edited[i : i + 1]:
            return i
    return None
