"""`unembed clusters`: clusters of a model's values by direction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unembed.cli import options
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output, grouped
from unembed.results import check_writable

if TYPE_CHECKING:
    from unembed.results import Table


@grouped
def clusters(
    n_clusters: Annotated[
        int | None,
        typer.Option("--clusters", "-n", min=1, help="Number of clusters; by default a tenth of the values."),
    ] = None,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Clusters to show, largest first.")] = 20,
    tokens: Annotated[int, typer.Option(min=1, help="Top tokens of each centre.")] = 10,
    layer: Annotated[
        list[int] | None, typer.Option("--layer", "-l", help="Only values of this layer; repeatable.")
    ] = None,
    linkage: Annotated[
        Literal["average", "complete"], typer.Option(help="average, or complete as in LM-Debugger (for small models).")
    ] = "average",
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="MEMORY", help="Show only the cluster of this memory.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the cluster of every value as Parquet.")
    ] = None,
    opening: Opening = Opening(),
    seed: options.UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Cluster the values of all memories (FFN neurons) by cosine, exactly, and show the largest clusters."""
    target = None if memory is None else options.memory(memory, "--memory")
    if out is not None:
        check_writable(out)
    import unembed

    lm = opening.open(seed)
    if target is not None:
        lm.memory(*target)
    n_values = sum(lm.n_memories_of(lm.layer(n)) for n in layer) if layer else lm.n_memories
    found = unembed.cluster_values(lm, n_clusters or max(1, n_values // 10), layers=layer or None, linkage=linkage)
    numbers = None if target is None else [found.of(*target)]
    if out is not None:
        found.to_table().to_parquet(out)
    cards = found.cards(top, tokens=tokens, numbers=numbers)
    if output.for_terminal:
        cards = _for_terminal(cards)
    output.deliver(cards)
    if output.for_terminal:
        named = None if target is None else lm.memory_name(*lm.memory(*target))
        print_explorer_link(opening, "atlas" if named is None else "memory", memory=named)


def _for_terminal(cards: Table) -> Table:
    """The columns that fit the terminal; --json, --csv and --html have all."""
    from unembed.results import Table

    given = cards.columns
    layers = [f"{a}–{b}" if a != b else str(a) for a, b in zip(given["first_layer"], given["last_layer"], strict=True)]
    columns = {"cluster": given["cluster"], "size": given["size"], "layers": layers}
    columns |= {"coherence": given["coherence"], "top_tokens": given["top_tokens"]}
    return Table(cards.title, columns, cards.provenance)
