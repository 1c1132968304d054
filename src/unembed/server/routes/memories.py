"""Routes for one memory (FFN neuron): tokens it promotes, top activating examples, search, clusters, connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import StreamingResponse

import unembed
from unembed.attention import MemoryConnections, memory_connections
from unembed.errors import Unsupported
from unembed.index import (
    ClusterView,
    CoefficientsView,
    ContextsView,
    Filters,
    Search,
    StatisticsView,
    TruthView,
    cluster_view,
    coefficients_view,
    contexts_view,
    made_clusters,
    measured_truth_view,
    search,
    statistics_view,
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
    """The tokens that a memory promotes and suppresses most, as `unembed value L I --json` lists them."""
    return memory_view(state.lm, layer, index, top, hide_unlearned=hide_unlearned)


@routes.answer("GET /memories/descriptions", "reading descriptions", on="files")
def get_descriptions(state: r.State) -> dict[str, Any]:
    """Automatic descriptions of memories, best first.

    They are read from an atlas; if there is none, from the gallery of the index or of the model.
    """
    names = ("layer", "index", "pole", "description")
    return {"rows": [dict(zip(names, row, strict=True)) for row in state.descriptions]}


@routes.answer("GET /memories/search", "searching memories", depends_on=lambda state: state.label_version)
def get_search(
    state: r.State,
    q: Annotated[str, Query(max_length=400)],
    top: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=r.LARGEST)] = 0,
    layer: Annotated[int | None, Query(ge=0, le=r.LARGEST)] = None,
    why: Literal["description", "promotes", "suppresses", "trigger", "name", "memory"] | None = None,
    density_above: Annotated[float | None, Query(ge=0, le=1)] = None,
    density_below: Annotated[float | None, Query(ge=0, le=1)] = None,
    labelled: bool | None = None,
) -> Search:
    """One page of the memories that a search finds, by description, promoted or suppressed words, texts or label."""
    filters = Filters(layer, why, density_above, density_below, labelled)
    return search(state.lm, state.index, q, top, offset, filters, state.descriptions)


@routes.answer("GET /memories/{layer}/{index}/triggers", "reading triggers", on="files")
def get_triggers(
    state: r.State,
    layer: r.LayerNumber,
    index: r.Index,
    top: Annotated[int, Query(ge=1, le=200)] = 10,
    context: Annotated[int, Query(ge=1, le=512)] = 24,
    pole: r.Pole = "positive",
) -> dict[str, Any]:
    """The corpus texts on which the memory fires most, as `unembed index triggers --json` prints them."""
    return state.require_index().triggers(layer, index, top, pole=pole, context=context).to_dict()


@routes.answer("GET /index/estimate", "estimating", on="long")
def get_estimate(state: r.State) -> dict[str, Any]:
    """The estimated cost of an index over the shipped corpus, as `unembed index build --dry-run` prints it."""
    return unembed.Index.estimate(state.lm, None).to_dict()


@routes.answer("GET /memories/{layer}/{index}/contexts", "reading triggers", on="long")
def get_contexts(
    state: r.State, layer: r.LayerNumber, index: r.Index, top: r.Top = 25, pole: r.Pole = "positive"
) -> ContextsView:
    """The texts on which the memory fires most, with the memory's coefficient at every token."""
    return contexts_view(state.lm, state.require_index(), layer, index, top, pole)


@routes.answer("GET /memories/{layer}/{index}/statistics", "reading statistics", on="files")
def get_statistics(state: r.State, layer: r.LayerNumber, index: r.Index) -> StatisticsView:
    """Mean, variance and extremes of the memory's coefficient over the index's corpus; the model is not run."""
    return statistics_view(state.lm, state.require_index(), layer, index)


@routes.answer("GET /memories/{layer}/{index}/coefficients", "sampling coefficients", on="long")
def get_coefficients(state: r.State, layer: r.LayerNumber, index: r.Index) -> CoefficientsView:
    """The memory's coefficient over the index's corpus: statistics, and a histogram and quantiles of a sample."""
    return coefficients_view(state.lm, state.require_index(), layer, index)


@routes.answer("GET /memories/{layer}/{index}/truth", "reading what was measured", on="files")
def get_truth(state: r.State, layer: r.LayerNumber, index: r.Index, pole: r.Pole = "positive") -> TruthView:
    """How much adding the value vector to the stream raises the tokens that it should promote.

    The measurement is read from the index or the gallery.
    """
    return truth_view(state.lm, state.index, layer, index, pole)


@routes.answer("GET /memories/{layer}/{index}/truth/measured", "measuring what the value does", on="long")
def get_truth_measured(state: r.State, layer: r.LayerNumber, index: r.Index, pole: r.Pole = "positive") -> TruthView:
    """The same as GET .../truth, but measured when requested, as `unembed value --truth` measures it."""
    return measured_truth_view(state.lm, layer, index, pole)


@routes.answer("GET /memories/{layer}/{index}/usual", "measuring usual sizes", on="long")
def get_usual(state: r.State, layer: r.LayerNumber, index: r.Index) -> dict[str, Any]:
    """The typical size of the memory's coefficient on text, and how it was found.

    It is the unit of `x2` in `unembed steer --set L5M278=x2`. `size` is null if the typical size is unknown: without an
    index, it can be measured for gated memories only.
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
    depends_on=lambda state: state.clusters is not None,
)
def get_cluster(state: r.State, layer: r.LayerNumber, index: r.Index) -> ClusterView:
    """The cluster of the memory's value vector; `cluster` is null until POST /clusters has computed the clusters."""
    return cluster_view(state.lm, state.known_clusters(), layer, index)


@routes.post("/clusters", response_class=StreamingResponse)
async def post_clusters(state: r.State, client: r.Client = "") -> StreamingResponse:
    """Cluster all value vectors by direction, as `unembed clusters` does, and save the result in the index's folder.

    The response is lines of progress, at most one per percent, then a line of `kind` "clusters" with the number of
    clusters. The computation ends if the client disconnects.
    """

    def work(report: Callable[[object], None]) -> None:
        reported = -1

        def progress(done: int, of: int) -> None:
            nonlocal reported
            percent = 100 * done // of
            report(None if percent == reported else {"kind": "progress", "done": done, "of": of})
            reported = percent

        state.clusters = found = state.known_clusters() or made_clusters(state.lm, state.index, progress)
        report({"kind": "clusters", "n_clusters": found.n_clusters})

    return ndjson_response(state.stream_progress(work, client=client, channel="clusters"))


@routes.answer("POST /memories/{layer}/{index}/activations", "running a text")
def post_activations(state: r.State, layer: r.LayerNumber, index: r.Index, query: r.QuestionRequest) -> MemoryOnPrompt:
    """The memory's coefficient at every token of a text, and its effect on the prediction at one position."""
    state.lm.memory(layer, index)  # raises an error for an unknown memory before the prompt is run
    trace = query.trace(state)
    return memory_on_prompt(trace, layer, index, query.question(trace), query.position, state.index)


@routes.answer("GET /memories/{layer}/{index}/connections", "reading weights", on="long", shape=MemoryConnections)
def get_connections(state: r.State, layer: r.LayerNumber, index: r.Index, top: r.Top = 6) -> dict[str, Any]:
    """The heads and memories whose output activates the memory's key, and those that read its value vector.

    They are found from the weights alone.
    """
    found = memory_connections(state.lm, layer, index, top)
    return {"schema": "unembed.memory_connections/1", **vars(found)}
