"""The analysis `concepts` of the command line and the explorer: concepts that memories (FFN neurons) promote."""

from __future__ import annotations

from typing import Annotated

from unembed.analyses import Analysis, Cost, Needs
from unembed.concepts.value_concepts import VectorConcepts, value_concepts
from unembed.document.model import Answer, Screen
from unembed.models.decoder import Decoder
from unembed.names import SignedMemory, read_signed_memory
from unembed.options import Layers, Option, PerLayer, Seed, TopTokens, ValueBasis
from unembed.results import Table

_KINDS = ("in_a_concept", "semantic", "syntactic", "names", "stopwords", "embedding")


def concepts_answer(
    lm: Decoder,
    named: Annotated[
        list[SignedMemory] | None,
        Option(
            "Memories (FFN neurons), such as L5M278; -L5M278 is the same memory at negative coefficients. "
            "Default: a random sample.",
            parse=read_signed_memory,
            metavar="MEMORY",
            argument=True,
        ),
    ] = None,
    *,
    per_layer: PerLayer = 10,
    layers: Layers = None,
    listed: Annotated[
        bool,
        Option(
            "List every concept found in the sample, instead of each layer's share of memories with a concept.",
            name="list",
        ),
    ] = False,
    top_tokens: TopTokens = 30,
    basis: ValueBasis = None,
    embedding: Annotated[
        bool | None,
        Option(
            "Also count clusters of similar token embeddings as concepts. Default: only if the vocabulary has at most "
            "20,000 tokens.",
            off="--no-embedding",
        ),
    ] = None,
    seed: Seed = 0,
) -> Answer:
    """Name the concepts that memories (FFN neurons) promote: classes that 4 or more of their top tokens belong to.

    The top tokens are those that a memory's value vector promotes most. Memories of gated layers, whose coefficients
    have either sign, are analysed at both signs, unless a name has a minus sign (-L5M278).

    Caution: Top tokens are computed from the value vector alone, not from what adding it does (see `unembed truth`);
    compare with the random vectors in the table.
    """
    found = value_concepts(
        lm,
        named or None,
        per_layer=per_layer,
        layers=layers or None,
        seed=seed,
        top=top_tokens,
        basis=basis,
        embedding=embedding,
    )
    if not named and not listed:
        brief = ("layer", "vectors", *_KINDS, "concepts_per_vector")
        return Answer.of_table(found.by_layer(), percent=_KINDS, brief=brief, screen=Screen("atlas"))
    table, screen = found.to_table(), Screen("atlas")
    if named:
        screen = Screen("memory", {"memory": lm.memory_name(*lm.memory(*named[0].address), named[0].pole)})
    brief = ("vector", "concept", "kind", "score", "tokens")
    return Answer.of_table(_with_none_found(table, found), brief=brief, data=table, screen=screen)


def _with_none_found(table: Table, found: VectorConcepts) -> Table:
    """Add a row with the concept "none found" for each vector that has no concept."""
    names, at = table.column_names, {name: i for i, name in enumerate(found.labels)}
    rows = [list(row.values()) for row in table.rows()]
    without = [name for name in found.labels if name not in set(table["vector"])]
    empty = {"concept": "none found", "kind": "", "score": None, "tokens": []}
    rows += [[({"vector": name} | empty).get(column) for column in names] for name in without]
    return Table.of_rows(table.title, names, sorted(rows, key=lambda row: at[row[0]]), table.provenance)


ANALYSIS = Analysis("concepts", concepts_answer, Needs.MODEL, Cost.SECONDS, "unembed concepts L3M17 L4M200")
