"""One memory (FFN neuron): the tokens of its value, its top activating examples, its neighbours and its cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from unembed.gallery import memory_descriptions
from unembed.index import (
    ClusterView,
    CoefficientsView,
    ContextsView,
    Filters,
    Search,
    cluster_view,
    coefficients_view,
    contexts_view,
    search,
)
from unembed.schemas.memory import (
    ConnectionsView,
    MemoryOnPrompt,
    MemoryView,
    connections_view,
    memory_on_prompt,
    memory_view,
)
from unembed.server import requests as r
from unembed.server.responses import json_response, ndjson_response

routes = APIRouter(tags=["memories"])


@routes.get("/memories/{layer}/{index}", responses={200: {"model": MemoryView}})
async def get_memory(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    index: r.Index,
    top: r.Top = 20,
    hide_unlearned: bool = True,
    client: r.Client = "",
) -> Response:
    """The tokens at both ends of a value, as `unembed value L I --json` lists them."""

    def work() -> MemoryView:
        return memory_view(state.lm, layer, index, top, hide_unlearned=hide_unlearned)

    key = f"memory {layer} {index} {top} {hide_unlearned}"
    body = await state.body(key, work, what="reading a value", client=client, channel="memory")
    return json_response(request, body)


@routes.get("/memories/descriptions")
async def get_descriptions(request: Request, state: r.State, client: r.Client = "") -> Response:
    """The automatic descriptions of memories, best first: those of the index's gallery, else of an embedded model's."""

    def work() -> dict[str, Any]:
        found = memory_descriptions(state.lm, None if state.index is None else state.index.path)
        names = ("layer", "index", "pole", "description")
        return {"rows": [dict(zip(names, row, strict=True)) for row in found]}

    body = await state.body(
        "descriptions", work, what="reading descriptions", client=client, channel="descriptions", on="files"
    )
    return json_response(request, body)


@routes.get("/memories/search", responses={200: {"model": Search}})
async def get_search(
    request: Request,
    state: r.State,
    q: Annotated[str, Query(max_length=400)],
    top: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=r.LARGEST)] = 0,
    layer: Annotated[int | None, Query(ge=0, le=r.LARGEST)] = None,
    why: Literal["promotes", "suppresses", "trigger", "name", "memory"] | None = None,
    density_above: Annotated[float | None, Query(ge=0, le=1)] = None,
    density_below: Annotated[float | None, Query(ge=0, le=1)] = None,
    labelled: bool | None = None,
    client: r.Client = "",
) -> Response:
    """One page of the memories that promote or suppress words, have words in their triggers, or have a label."""
    filters = Filters(layer, why, density_above, density_below, labelled)

    def work() -> Search:
        return search(state.lm, state.index, q, top, offset, filters)

    key = f"search {q} {top} {offset} {filters} {state.label_version}"
    body = await state.body(key, work, what="searching memories", client=client, channel="search")
    return json_response(request, body)


@routes.get("/memories/{layer}/{index}/triggers")
async def get_triggers(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    index: r.Index,
    top: Annotated[int, Query(ge=1, le=200)] = 10,
    context: Annotated[int, Query(ge=1, le=512)] = 24,
    pole: r.Pole = "positive",
    client: r.Client = "",
) -> Response:
    """The corpus prefixes on which the key fires most: what `unembed index triggers --json` prints."""
    corpus = state.require_index()

    def work() -> dict[str, Any]:
        return corpus.triggers(layer, index, top, pole=pole, context=context).to_dict()

    key = f"triggers {layer} {index} {top} {context} {pole}"
    body = await state.body(key, work, what="reading triggers", client=client, channel="triggers", on="files")
    return json_response(request, body)


@routes.get("/index/estimate")
async def get_estimate(request: Request, state: r.State, client: r.Client = "") -> Response:
    """The cost of an index over the shipped corpus: the numbers of `unembed index build --dry-run`."""

    def work() -> dict[str, Any]:
        import unembed

        return unembed.Index.estimate(state.lm, None).to_dict()

    body = await state.body("estimate", work, what="estimating", client=client, channel="estimate", on="long")
    return json_response(request, body)


@routes.get("/memories/{layer}/{index}/contexts", responses={200: {"model": ContextsView}})
async def get_contexts(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    index: r.Index,
    top: r.Top = 25,
    pole: r.Pole = "positive",
    client: r.Client = "",
) -> Response:
    """The key's triggers token by token, each with the coefficient that the memory has there."""
    corpus = state.require_index()

    def work() -> ContextsView:
        return contexts_view(state.lm, corpus, layer, index, top, pole)

    key = f"contexts {layer} {index} {top} {pole}"
    body = await state.body(key, work, what="reading triggers", client=client, channel="contexts", on="long")
    return json_response(request, body)


@routes.get("/memories/{layer}/{index}/coefficients", responses={200: {"model": CoefficientsView}})
async def get_coefficients(
    request: Request, state: r.State, layer: r.LayerNumber, index: r.Index, client: r.Client = ""
) -> Response:
    """The memory's coefficient over the index's corpus: statistics, and a histogram and quantiles of a sample."""
    corpus = state.require_index()

    def work() -> CoefficientsView:
        return coefficients_view(state.lm, corpus, layer, index)

    key = f"coefficients {layer} {index}"
    body = await state.body(key, work, what="sampling coefficients", client=client, channel="sample", on="long")
    return json_response(request, body)


@routes.get("/memories/{layer}/{index}/similar")
async def get_similar(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    index: r.Index,
    top: r.Top = 6,
    among: Literal["values", "keys"] = "values",
    client: r.Client = "",
) -> Response:
    """Memories whose values (or keys) have the highest cosine similarity."""
    corpus = state.require_index()

    def work() -> dict[str, Any]:
        return corpus.similar(layer, index, top, among=among).to_dict()

    key = f"similar {layer} {index} {top} {among}"
    body = await state.body(key, work, what="finding neighbours", client=client, channel="similar", on="files")
    return json_response(request, body)


@routes.get("/memories/{layer}/{index}/cluster", responses={200: {"model": ClusterView}})
async def get_cluster(
    request: Request, state: r.State, layer: r.LayerNumber, index: r.Index, client: r.Client = ""
) -> Response:
    """The cluster that the value is in; `cluster` is null until POST /clusters has computed the clusters."""

    def work() -> ClusterView:
        return cluster_view(state.lm, state.clusters.find(), layer, index)

    key = f"cluster {layer} {index} {state.clusters.is_known}"
    body = await state.body(key, work, what="reading a cluster", client=client, channel="cluster", on="files")
    return json_response(request, body)


@routes.post("/clusters", response_class=StreamingResponse)
async def post_clusters(state: r.State, client: r.Client = "") -> StreamingResponse:
    """Cluster all values by direction, as `unembed clusters` does, and save the result in the index's folder.

    Lines of progress, one per percent at most, then the number of clusters (`kind` clusters). A client that
    disconnects ends the work.
    """

    def work(report: Callable[[object], None]) -> None:
        reported = -1

        def progress(done: int, of: int) -> None:
            nonlocal reported
            percent = 100 * done // of
            report(None if percent == reported else {"kind": "progress", "done": done, "of": of})
            reported = percent

        report({"kind": "clusters", "n_clusters": state.clusters.find_or_compute(progress).n_clusters})

    return ndjson_response(state.stream_progress(work, client=client, channel="clusters"))


@routes.get("/memories/{layer}/{index}/concepts")
async def get_concepts(
    request: Request, state: r.State, layer: r.LayerNumber, index: r.Index, client: r.Client = ""
) -> Response:
    """Categories that the value's 30 top tokens share, found automatically: the table of `unembed concepts`."""

    def work() -> dict[str, Any]:
        import unembed

        return unembed.value_concepts(state.lm, [(layer, index)]).to_table().to_dict()

    key = f"concepts {layer} {index}"
    body = await state.body(key, work, what="finding concepts", client=client, channel="concepts", on="long")
    return json_response(request, body)


@routes.post("/firing")
async def post_firing(request: Request, state: r.State, query: r.PromptRequest, client: r.Client = "") -> Response:
    """The keys that fire most on a text, each with its own top trigger."""
    corpus = state.require_index()

    def work() -> dict[str, Any]:
        return corpus.firing_on(query.prompt, 20).to_dict()

    key = f"firing {state.trace_id(query.prompt, ())}"
    body = await state.body(key, work, what="finding keys", client=client, channel="firing")
    return json_response(request, body)


@routes.post("/memories/{layer}/{index}/activations", responses={200: {"model": MemoryOnPrompt}})
async def post_activations(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    index: r.Index,
    query: r.QuestionRequest,
    client: r.Client = "",
) -> Response:
    """The memory's coefficient at every token of a text, and its effect on the prediction at one of them."""
    edits = query.library_edits()

    def work() -> MemoryOnPrompt:
        state.lm.memory(layer, index)
        trace, position = state.trace(query.prompt, edits), query.position
        return memory_on_prompt(trace, layer, index, query.question(trace), position, state.index)

    key = f"activations {layer} {index} {state.register_prompt(query.prompt, edits)} {query.key()}"
    body = await state.body(key, work, what="running a text", client=client, channel="activations")
    return json_response(request, body)


@routes.get("/memories/{layer}/{index}/connections", responses={200: {"model": ConnectionsView}})
async def get_connections(
    request: Request, state: r.State, layer: r.LayerNumber, index: r.Index, top: r.Top = 6, client: r.Client = ""
) -> Response:
    """What writes to the key and what reads the value, by the weights alone: heads and memories."""

    def work() -> ConnectionsView:
        return connections_view(state.lm, layer, index, top)

    key = f"connections {layer} {index} {top}"
    body = await state.body(key, work, what="reading weights", client=client, channel="connections", on="long")
    return json_response(request, body)
