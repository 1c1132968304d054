"""One memory (FFN neuron): the tokens of its value, its top activating examples, its neighbours and its cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import StreamingResponse

import unembed
from unembed.attention import MemoryConnections, memory_connections
from unembed.errors import Unsupported
from unembed.gallery import memory_descriptions
from unembed.index import (
    ClusterView,
    CoefficientsView,
    ContextsView,
    Filters,
    Search,
    TruthView,
    cluster_view,
    coefficients_view,
    contexts_view,
    measured_truth_view,
    search,
    truth_view,
)
from unembed.memories import MemoryView, memory_view, usual_size
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.responses import ndjson_response
from unembed.trace import MemoryOnPrompt, memory_on_prompt

routes = Routes("memories")


@routes.answer("GET /memories/{layer}/{index}", "reading a value")
def get_memory(
    state: r.State, layer: r.LayerNumber, index: r.Index, top: r.Top = 20, hide_unlearned: bool = True
) -> MemoryView:
    """The tokens at both ends of a value, as `unembed value L I --json` lists them."""
    return memory_view(state.lm, layer, index, top, hide_unlearned=hide_unlearned)


@routes.answer("GET /memories/descriptions", "reading descriptions", on="files")
def get_descriptions(state: r.State) -> dict[str, Any]:
    """The automatic descriptions of memories, best first: those of the index's gallery, else of an embedded model's."""
    found = memory_descriptions(state.lm, None if state.index is None else state.index.path)
    names = ("layer", "index", "pole", "description")
    return {"rows": [dict(zip(names, row, strict=True)) for row in found]}


@routes.answer("GET /memories/search", "searching memories", depends_on=lambda state: state.label_version)
def get_search(
    state: r.State,
    q: Annotated[str, Query(max_length=400)],
    top: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=r.LARGEST)] = 0,
    layer: Annotated[int | None, Query(ge=0, le=r.LARGEST)] = None,
    why: Literal["promotes", "suppresses", "trigger", "name", "memory"] | None = None,
    density_above: Annotated[float | None, Query(ge=0, le=1)] = None,
    density_below: Annotated[float | None, Query(ge=0, le=1)] = None,
    labelled: bool | None = None,
) -> Search:
    """One page of the memories that promote or suppress words, have words in their triggers, or have a label."""
    filters = Filters(layer, why, density_above, density_below, labelled)
    return search(state.lm, state.index, q, top, offset, filters)


@routes.answer("GET /memories/{layer}/{index}/triggers", "reading triggers", on="files")
def get_triggers(
    state: r.State,
    layer: r.LayerNumber,
    index: r.Index,
    top: Annotated[int, Query(ge=1, le=200)] = 10,
    context: Annotated[int, Query(ge=1, le=512)] = 24,
    pole: r.Pole = "positive",
) -> dict[str, Any]:
    """The corpus prefixes on which the key fires most: what `unembed index triggers --json` prints."""
    return state.require_index().triggers(layer, index, top, pole=pole, context=context).to_dict()


@routes.answer("GET /index/estimate", "estimating", on="long")
def get_estimate(state: r.State) -> dict[str, Any]:
    """The cost of an index over the shipped corpus: the numbers of `unembed index build --dry-run`."""
    return unembed.Index.estimate(state.lm, None).to_dict()


@routes.answer("GET /memories/{layer}/{index}/contexts", "reading triggers", on="long")
def get_contexts(
    state: r.State, layer: r.LayerNumber, index: r.Index, top: r.Top = 25, pole: r.Pole = "positive"
) -> ContextsView:
    """The key's triggers token by token, each with the coefficient that the memory has there."""
    return contexts_view(state.lm, state.require_index(), layer, index, top, pole)


@routes.answer("GET /memories/{layer}/{index}/coefficients", "sampling coefficients", on="long")
def get_coefficients(state: r.State, layer: r.LayerNumber, index: r.Index) -> CoefficientsView:
    """The memory's coefficient over the index's corpus: statistics, and a histogram and quantiles of a sample."""
    return coefficients_view(state.lm, state.require_index(), layer, index)


@routes.answer("GET /memories/{layer}/{index}/truth", "reading what was measured", on="files")
def get_truth(state: r.State, layer: r.LayerNumber, index: r.Index, pole: r.Pole = "positive") -> TruthView:
    """How far adding the value raises what it is read to promote, as it was measured for the gallery or the index."""
    return truth_view(state.lm, state.index, layer, index, pole)


@routes.answer("GET /memories/{layer}/{index}/truth/measured", "measuring what the value does", on="long")
def get_truth_measured(state: r.State, layer: r.LayerNumber, index: r.Index, pole: r.Pole = "positive") -> TruthView:
    """The same, measured now: what `unembed value --truth` says."""
    return measured_truth_view(state.lm, layer, index, pole)


@routes.answer("GET /memories/{layer}/{index}/usual", "measuring usual sizes", on="long")
def get_usual(state: r.State, layer: r.LayerNumber, index: r.Index) -> dict[str, Any]:
    """The memory's usual size, the unit of `unembed steer --set L5M278=x2`, and from what it is known.

    The size is null where it is not known: without an index, a sample of a text shows it for gated memories only.
    """
    state.lm.memory(layer, index)
    try:
        size, source = usual_size(state.lm, layer, index, state.index)
    except Unsupported:
        size, source = None, ""
    return {"schema": "unembed.usual_size/1", "size": size, "source": source}


@routes.answer(
    "GET /memories/{layer}/{index}/cluster",
    "reading a cluster",
    on="files",
    depends_on=lambda state: state.clusters.is_known,
)
def get_cluster(state: r.State, layer: r.LayerNumber, index: r.Index) -> ClusterView:
    """The cluster that the value is in; `cluster` is null until POST /clusters has computed the clusters."""
    return cluster_view(state.lm, state.clusters.find(), layer, index)


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


@routes.answer("POST /memories/{layer}/{index}/activations", "running a text")
def post_activations(state: r.State, layer: r.LayerNumber, index: r.Index, query: r.QuestionRequest) -> MemoryOnPrompt:
    """The memory's coefficient at every token of a text, and its effect on the prediction at one of them."""
    state.lm.memory(layer, index)  # refused before the prompt is run
    trace = query.trace(state)
    return memory_on_prompt(trace, layer, index, query.question(trace), query.position, state.index)


@routes.answer("GET /memories/{layer}/{index}/connections", "reading weights", on="long", shape=MemoryConnections)
def get_connections(state: r.State, layer: r.LayerNumber, index: r.Index, top: r.Top = 6) -> dict[str, Any]:
    """What writes to the key and what reads the value, by the weights alone: heads and memories."""
    found = memory_connections(state.lm, layer, index, top)
    return {"schema": "unembed.memory_connections/1", **vars(found)}
