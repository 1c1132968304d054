"""`unembed concepts`: the classes that the top tokens of values share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from unembed.cli.command import command
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output
from unembed.names import SignedMemory, read_signed_memory
from unembed.options import AnySeed, Layers, Option, PerLayer, TopTokens, ValueBasis

if TYPE_CHECKING:
    from unembed.results import Table


@command("concepts", "unembed concepts L3M17 L4M200")
def concepts(
    memories: Annotated[
        list[SignedMemory] | None,
        Option(
            "Memories, such as L5M278, or -L5M278 at its negative pole; by default a random sample.",
            parse=read_signed_memory,
            metavar="MEMORY",
            argument=True,
        ),
    ] = None,
    per_layer: PerLayer = 10,
    layers: Layers = None,
    listed: Annotated[
        bool, Option("List every concept of the sample instead of shares by layer.", name="list")
    ] = False,
    top_tokens: TopTokens = 30,
    basis: ValueBasis = "raw",
    embedding: Annotated[
        bool | None,
        Option("Include neighbours in the embedding; by default for vocabularies up to 20,000.", off="--no-embedding"),
    ] = None,
    opening: Opening = Opening(),
    seed: AnySeed = None,
    output: Output = Output(),
) -> None:
    """Name the concepts that memories (FFN neurons) promote: classes shared by 4 or more of a value's top tokens.

    Those of gated layers fire with either sign: they are read at both, unless one is named.
    """
    import unembed

    lm = opening.open(seed)
    found = unembed.value_concepts(
        lm,
        memories or None,
        per_layer=per_layer,
        layers=layers or None,
        seed=seed or 0,
        top=top_tokens,
        basis=basis,
        embedding=embedding,
    )
    table = found.to_table() if memories or listed else found.by_layer()
    if output.for_terminal:
        table = _for_terminal(table, found.labels)
    output.deliver(table)
    if output.for_terminal:
        first = lm.memory_name(*lm.memory(*memories[0].address), memories[0].pole) if memories else None
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
