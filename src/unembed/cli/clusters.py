"""`unembed clusters`: clusters of a model's values by direction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from unembed.cli.command import command
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output
from unembed.options import Clusters, Layers, Memories, Option, Out, Tokens, Top, UnusedSeed
from unembed.results import check_writable

if TYPE_CHECKING:
    from unembed.results import Table


@command("clusters", "unembed clusters --clusters 600 --top 20")
def clusters(
    n_clusters: Clusters = None,
    top: Top = 20,
    tokens: Tokens = 10,
    layers: Layers = None,
    linkage: Annotated[
        Literal["average", "complete"], Option("average, or complete as in LM-Debugger (for small models).")
    ] = "average",
    memories: Memories = None,
    out: Out = None,
    opening: Opening = Opening(),
    seed: UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Cluster the values of all memories (FFN neurons) by cosine, exactly, and show the largest clusters.

    There are a tenth as many clusters as values unless --clusters says otherwise. With --memory, the clusters of those
    memories are shown. --out writes the cluster of every value as Parquet.
    """
    if out is not None:
        check_writable(out)
    import unembed

    lm = opening.open(seed)
    named = [lm.memory(*memory) for memory in memories or ()]
    n_values = sum(lm.n_memories_of(lm.layer(n)) for n in layers) if layers else lm.n_memories
    found = unembed.cluster_values(lm, n_clusters or max(1, n_values // 10), layers=layers or None, linkage=linkage)
    numbers = [found.of(*memory) for memory in named] or None
    if out is not None:
        found.to_table().to_parquet(out)
    cards = found.cards(top, tokens=tokens, numbers=numbers)
    if output.for_terminal:
        cards = _for_terminal(cards)
    output.deliver(cards)
    if output.for_terminal:
        first = lm.memory_name(*named[0]) if named else None
        print_explorer_link(opening, "memory" if first else "atlas", memory=first)


def _for_terminal(cards: Table) -> Table:
    """The columns that fit the terminal; --json, --csv and --html have all."""
    from unembed.results import Table

    given = cards.columns
    layers = [f"{a}–{b}" if a != b else str(a) for a, b in zip(given["first_layer"], given["last_layer"], strict=True)]
    columns = {"cluster": given["cluster"], "size": given["size"], "layers": layers}
    columns |= {"coherence": given["coherence"], "top_tokens": given["top_tokens"]}
    return Table(cards.title, columns, cards.provenance)
