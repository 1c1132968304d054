"""The analysis `clusters` of the command line and the explorer: clusters of value vectors."""

from __future__ import annotations

from typing import Annotated, Literal

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Screen
from unembed.memories.clustering.value_clusters import cluster_values
from unembed.models.decoder import Decoder
from unembed.options import Clusters, Layers, Memories, Option, Out, Progress, Tokens, Top
from unembed.results import check_writable


def clusters_answer(
    lm: Decoder,
    *,
    n_clusters: Clusters = None,
    top: Top = 20,
    tokens: Tokens = 10,
    layers: Layers = None,
    linkage: Annotated[
        Literal["average", "complete"],
        Option(
            "Linkage of the hierarchical clustering: average, or complete as in LM-Debugger. Complete linkage keeps "
            "the distances of all pairs in RAM, so use it only for small models."
        ),
    ] = "average",
    memories: Memories = None,
    out: Out = None,
    progress: Progress = None,
) -> Answer:
    """Cluster the value vectors of all memories (FFN neurons) by cosine similarity, and show the largest clusters.

    The clustering is exact. By default there is one cluster for every ten value vectors; --clusters sets the number.
    --memory shows the clusters of the memories that it names. --out writes the cluster of every value vector to a
    Parquet file.

    Caution: Random vectors fall into clusters too. A cluster's tokens are those that its mean vector scores highest;
    they do not show an effect on the model's predictions.
    """
    if out is not None:
        check_writable(out)
    named = [lm.memory(*memory) for memory in memories or ()]
    n_values = sum(lm.n_memories_of(lm.layer(n)) for n in layers) if layers else lm.n_memories
    found = cluster_values(
        lm,
        n_clusters or max(1, n_values // 10),
        layers=layers or None,
        linkage=linkage,
        progress=None if progress is None else lambda done, total: progress("merges", done, total),
    )
    if out is not None:
        found.to_table().to_parquet(out)
    return Answer.of_table(
        found.cards(top, tokens=tokens, numbers=[found.of(*memory) for memory in named] or None),
        brief=("cluster", "size", "first_layer", "last_layer", "coherence", "top_tokens"),
        screen=Screen("memory", {"memory": lm.memory_name(*named[0])}) if named else Screen("atlas"),
    )


ANALYSIS = Analysis("clusters", clusters_answer, Needs.MODEL, Cost.SECONDS, "unembed clusters --clusters 600 --top 20")
