"""`unembed concepts`: the classes that the top tokens of values share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from unembed.cli import options

if TYPE_CHECKING:
    from unembed.results import Table


def concepts(
    memories: Annotated[
        list[str] | None, typer.Argument(metavar="MEMORY", help="Memories, such as L5M278; by default a random sample.")
    ] = None,
    per_layer: Annotated[int, typer.Option(min=1, help="Memories drawn from each layer.")] = 10,
    layer: Annotated[
        list[int] | None, typer.Option("--layer", "-l", help="Draw only from this layer; repeatable.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Show every concept of the sample, not shares by layer.")
    ] = False,
    top: Annotated[int, typer.Option("--top", "-k", min=4, help="Top tokens of each value.")] = 30,
    basis: Annotated[
        options.ValueBasis, typer.Option(help="raw: the readout alone, as in the papers; final: the last norm too.")
    ] = "raw",
    embedding: Annotated[
        bool | None,
        typer.Option(
            "--embedding/--no-embedding",
            help="Include neighbours in the embedding; by default for vocabularies up to 20,000.",
        ),
    ] = None,
    model: options.Model = "wren",
    revision: options.Revision = None,
    tokenizer: options.Tokenizer = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    seed: options.Seed = None,
    as_json: options.Json = False,
    csv: options.Csv = False,
    plain: options.Plain = False,
    html: options.Html = None,
) -> None:
    """Name the concepts that memories (FFN neurons) promote: classes shared by 4 or more of a value's top tokens."""
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    named = [options.memory(text, "MEMORY") for text in memories or []]
    import unembed
    from unembed.cli.model_loading import opened
    from unembed.cli.output import deliver_table

    lm = opened(model, tokenizer=tokenizer, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
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
    if html is None and not as_json and not csv:
        table = _for_terminal(table)
    deliver_table(table, as_json=as_json, csv=csv, plain=plain, html=html)


def _for_terminal(table: Table) -> Table:
    """The columns that fit the terminal, shares in per cent; --json, --csv and --html have all."""
    from unembed.results import Table

    given = table.columns
    if "concept" in given:
        columns = {name: given[name] for name in ("vector", "concept", "kind", "score", "tokens")}
        columns["score"] = [f"{score:.1f}" for score in columns["score"]]
    else:
        columns = {"layer": given["layer"], "vectors": given["vectors"]}
        named = {"in_a_concept": "concept", "semantic": "semantic", "syntactic": "syntax", "names": "names"}
        named |= {"stopwords": "stop words", "embedding": "neighbours"}
        columns |= {short: [f"{share:.1%}" for share in given[name]] for name, short in named.items()}
        columns["concepts"] = [f"{number:.2f}" for number in given["concepts_per_vector"]]
    return Table(table.title, columns, table.provenance)
