"""`unembed concepts`: the classes that the top tokens of values share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli import options
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output, grouped

if TYPE_CHECKING:
    from unembed.results import Table


@grouped
def concepts(
    memories: Annotated[
        list[str] | None, typer.Argument(metavar="MEMORY", help="Memories, such as L5M278; by default a random sample.")
    ] = None,
    per_layer: Annotated[int, typer.Option(min=1, help="Memories drawn from each layer.")] = 10,
    layer: Annotated[
        list[int] | None, typer.Option("--layer", "-l", help="Sample only from this layer; repeatable.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List every concept of the sample instead of shares by layer.")
    ] = False,
    top: Annotated[int, typer.Option("--top", "-k", min=4, help="Top tokens of each value.")] = 30,
    basis: Annotated[
        options.ValueBasis,
        typer.Option(help="raw: the unembedding alone, as in the papers; final: with the final norm."),
    ] = "raw",
    embedding: Annotated[
        bool | None,
        typer.Option(
            "--embedding/--no-embedding",
            help="Include neighbours in the embedding; by default for vocabularies up to 20,000.",
        ),
    ] = None,
    opening: Opening = Opening(),
    seed: options.Seed = None,
    output: Output = Output(),
) -> None:
    """Name the concepts that memories (FFN neurons) promote: classes shared by 4 or more of a value's top tokens."""
    named = [options.memory(text, "MEMORY") for text in memories or []]
    import unembed

    lm = opening.open(seed)
    found = unembed.value_concepts(
        lm,
        named or None,
        per_layer=per_layer,
        layers=layer or None,
        seed=seed or 0,
        top=top,
        basis=basis,
        embedding=embedding,
    )
    table = found.to_table() if named or listed else found.by_layer()
    if output.for_terminal:
        table = _for_terminal(table, found.labels)
    output.deliver(table)
    if output.for_terminal:
        first = lm.memory_name(*lm.memory(*named[0])) if named else None
        print_explorer_link(opening, "atlas" if first is None else "memory", memory=first)


def _for_terminal(table: Table, vectors: Sequence[str]) -> Table:
    """The columns that fit the terminal, shares in per cent; --json, --csv and --html have all.

    Args:
        table: the concepts, or shares by layer.
        vectors: the names of the vectors, each without a concept has a row that states it.
    """
    from unembed.results import Table

    given = table.columns
    if "concept" in given:
        names = ("vector", "concept", "kind", "score", "tokens")
        rows = [(*(row[name] for name in names[:3]), f"{row['score']:.1f}", row["tokens"]) for row in table.rows()]
        rows += [(name, "none found", "", "", []) for name in vectors if name not in given["vector"]]
        rows.sort(key=lambda row: vectors.index(row[0]))
        columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    else:
        columns = {"layer": given["layer"], "vectors": given["vectors"]}
        named = {"in_a_concept": "concept", "semantic": "semantic", "syntactic": "syntax", "names": "names"}
        named |= {"stopwords": "stop words", "embedding": "neighbours"}
        columns |= {short: [f"{share:.1%}" for share in given[name]] for name, short in named.items()}
        columns["concepts"] = [f"{number:.2f}" for number in given["concepts_per_vector"]]
    return Table(table.title, columns, table.provenance)
