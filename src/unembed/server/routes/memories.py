"""One memory: what its value promotes and suppresses, and what sets it off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from unembed.index.clusters import ClusterView, cluster_view, made_clusters, stored_clusters
from unembed.index.coefficients import CoefficientsView, coefficients_view
from unembed.index.contexts import ContextsView, contexts_view
from unembed.index.memory_search import Search, search
from unembed.memories.clustering.value_clusters import ValueClusters
from unembed.schemas.memory import MemoryView, memory_view
from unembed.server import requests as a
from unembed.server.responses import lines, tagged
from unembed.server.state import Session


class _Grouped:
    """The clusters of all values: read from the index's folder, or made once, by one thread at a time."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.clusters: ValueClusters | None = None

    def find(self) -> ValueClusters | None:
        """Those that are known, if any."""
        if self.clusters is None and self._session.index is not None:
            self.clusters = stored_clusters(self._session.lm, self._session.index)
        return self.clusters

    def make(self, progress: Callable[[int, int], None]) -> ValueClusters:
        """Those that are known, or all values grouped now."""
        if self.find() is None:
            self.clusters = made_clusters(self._session.lm, self._session.index, progress)
        assert self.clusters is not None
        return self.clusters


def router(session: Session) -> APIRouter:
    """The routes, over what is open."""
    routes = APIRouter(tags=["memories"])
    grouped = _Grouped(session)

    @routes.get("/memories/{layer}/{index}", responses={200: {"model": MemoryView}})
    async def get_memory(
        request: Request,
        layer: a.LayerNumber,
        index: a.Index,
        top: a.Top = 20,
        hide_unlearned: bool = True,
        client: a.Client = "",
    ) -> Response:
        """The tokens at both ends of a value, as `unembed value L I --json` lists them."""
        key = f"memory {layer} {index} {top} {hide_unlearned}"

        def work() -> MemoryView:
            return memory_view(session.lm, layer, index, top, hide_unlearned=hide_unlearned)

        body = await session.body(key, work, what="reading a value", client=client, channel="memory", on="reading")
        return tagged(request, body)

    @routes.get("/memories/search", responses={200: {"model": Search}})
    async def get_search(
        request: Request,
        q: Annotated[str, Query(max_length=400)],
        top: Annotated[int, Query(ge=1, le=200)] = 50,
        client: a.Client = "",
    ) -> Response:
        """Memories by words they promote or suppress, by words of their triggers, by name; see `views.search`."""
        body = await session.body(
            f"search {q} {top} {session.labelled}",
            lambda: search(session.lm, session.index, q, top),
            what="searching memories",
            client=client,
            channel="search",
        )
        return tagged(request, body)

    @routes.get("/memories/{layer}/{index}/triggers")
    async def get_triggers(
        request: Request,
        layer: a.LayerNumber,
        index: a.Index,
        top: Annotated[int, Query(ge=1, le=200)] = 10,
        context: Annotated[int, Query(ge=1, le=512)] = 24,
        pole: Literal["positive", "negative"] = "positive",
        client: a.Client = "",
    ) -> Response:
        """The corpus prefixes on which the key fires most: what `unembed index triggers --json` prints."""
        held = session.need_index()

        def work() -> dict[str, Any]:
            return held.triggers(layer, index, top, pole=pole, context=context).to_dict()

        key = f"triggers {layer} {index} {top} {context} {pole}"
        return tagged(
            request,
            await session.body(key, work, what="reading triggers", client=client, channel="triggers", on="files"),
        )

    @routes.get("/index/estimate")
    async def get_estimate(request: Request, client: a.Client = "") -> Response:
        """What an index over the shipped corpus would cost: the numbers of `unembed index build --dry-run`."""

        def work() -> dict[str, Any]:
            import unembed

            return unembed.Index.estimate(session.lm, None).to_dict()

        body = await session.body("estimate", work, what="estimating", client=client, channel="estimate", on="long")
        return tagged(request, body)

    @routes.get("/memories/{layer}/{index}/contexts", responses={200: {"model": ContextsView}})
    async def get_contexts(
        request: Request,
        layer: a.LayerNumber,
        index: a.Index,
        top: a.Top = 25,
        pole: Literal["positive", "negative"] = "positive",
        client: a.Client = "",
    ) -> Response:
        """The key's triggers token by token, each with the coefficient it had there."""
        held = session.need_index()

        def work() -> ContextsView:
            return contexts_view(session.lm, held, layer, index, top, pole)

        key = f"contexts {layer} {index} {top} {pole}"
        return tagged(
            request,
            await session.body(key, work, what="reading triggers", client=client, channel="contexts", on="long"),
        )

    @routes.get("/memories/{layer}/{index}/coefficients", responses={200: {"model": CoefficientsView}})
    async def get_coefficients(
        request: Request, layer: a.LayerNumber, index: a.Index, client: a.Client = ""
    ) -> Response:
        """How large the coefficient is over the index's corpus: statistics; of a sample a histogram and bands."""
        held = session.need_index()

        def work() -> CoefficientsView:
            return coefficients_view(session.lm, held, layer, index)

        key = f"coefficients {layer} {index}"
        body = await session.body(key, work, what="sampling coefficients", client=client, channel="sample", on="long")
        return tagged(request, body)

    @routes.get("/memories/{layer}/{index}/similar")
    async def get_similar(
        request: Request,
        layer: a.LayerNumber,
        index: a.Index,
        top: a.Top = 6,
        among: Literal["values", "keys"] = "values",
        client: a.Client = "",
    ) -> Response:
        """Memories whose values (or keys) point in the most similar directions."""
        held = session.need_index()

        def work() -> dict[str, Any]:
            return held.similar(layer, index, top, among=among).to_dict()

        key = f"similar {layer} {index} {top} {among}"
        return tagged(
            request,
            await session.body(key, work, what="finding neighbours", client=client, channel="similar", on="files"),
        )

    @routes.get("/memories/{layer}/{index}/cluster", responses={200: {"model": ClusterView}})
    async def get_cluster(request: Request, layer: a.LayerNumber, index: a.Index, client: a.Client = "") -> Response:
        """The group of alike directions that the value is in; `cluster` is null until POST /clusters has made them."""

        def work() -> dict[str, Any]:
            return cluster_view(session.lm, grouped.find(), layer, index).to_dict()

        key = f"cluster {layer} {index} {grouped.clusters is not None}"
        body = await session.body(key, work, what="reading a cluster", client=client, channel="cluster", on="files")
        return tagged(request, body)

    @routes.post("/clusters", response_class=StreamingResponse)
    async def post_clusters(client: a.Client = "") -> StreamingResponse:
        """Group all values by direction, as `unembed clusters` does, and keep that in the index's folder.

        Lines of progress, at most one for a hundredth of the steps, then the number of clusters (`kind` clusters).
        Whoever hangs up ends the work.
        """

        def work(tell: Callable[[Any], None]) -> None:
            shown = -1

            def progress(done: int, of: int) -> None:
                nonlocal shown
                tell(
                    None if (hundredths := 100 * done // of) == shown else {"kind": "progress", "done": done, "of": of}
                )
                shown = hundredths

            tell({"kind": "clusters", "n_clusters": grouped.make(progress).n_clusters})

        return lines(session.telling(work, client=client, channel="clusters"))

    @routes.get("/memories/{layer}/{index}/concepts")
    async def get_concepts(request: Request, layer: a.LayerNumber, index: a.Index, client: a.Client = "") -> Response:
        """Classes that the value's 30 top tokens share, found automatically: the table of `unembed concepts`."""

        def work() -> dict[str, Any]:
            import unembed

            return unembed.value_concepts(session.lm, [(layer, index)]).table().to_dict()

        key = f"concepts {layer} {index}"
        return tagged(
            request,
            await session.body(key, work, what="finding concepts", client=client, channel="concepts", on="long"),
        )

    @routes.post("/firing")
    async def post_firing(request: Request, asked: a.PromptAsked, client: a.Client = "") -> Response:
        """Keys that fire most on a text, beside their own best trigger."""
        held = session.need_index()
        key = f"firing {session.trace_id(asked.prompt, ())}"

        def work() -> dict[str, Any]:
            return held.firing_on(asked.prompt, 20).to_dict()

        return tagged(request, await session.body(key, work, what="finding keys", client=client, channel="firing"))

    @routes.post("/memories/{layer}/{index}/activations")
    async def activations(
        request: Request, layer: a.LayerNumber, index: a.Index, asked: a.PromptAsked, client: a.Client = ""
    ) -> Response:
        """The memory's coefficient at every token of a text."""
        edits = [e.edit() for e in asked.edits]
        key = f"activations {layer} {index} {session.remember(asked.prompt, edits)}"

        def work() -> dict[str, Any]:
            session.lm.memory(layer, index)
            trace = session.tracing(asked.prompt, edits)
            m = trace.run.at("coefficients", layer)[0, :, index]
            return {"layer": layer, "index": index, "tokens": trace.token_strings, "coefficients": m.tolist()}

        body = await session.body(key, work, what="trying a text", client=client, channel="activations")
        return tagged(request, body)

    return routes
