"""`unembed circuits`: attention heads by their weights and by what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unembed.cli import options
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output, grouped

if TYPE_CHECKING:
    from unembed.attention import Circuits
    from unembed.reports import Section
    from unembed.results import Provenance

app = typer.Typer(
    name="circuits",
    help="Analyse attention heads as circuits: what they match, what they move, how they compose.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Basis = Annotated[
    Literal["raw", "folded"] | None,
    typer.Option(
        help="raw: the weights alone, as in the paper; folded: with norm gains, the default where there are norms.",
        show_default=False,
    ),
]
LayerOfHead = Annotated[
    int, typer.Argument(help="Layer, from 0; or layer and head in one: L0H3 or 0.3.", show_default=False)
]
HeadOfLayer = Annotated[int, typer.Argument(help="Head of the layer, from 0.", show_default=False)]
Top = Annotated[int, typer.Option("--top", "-k", min=1, help="Rows listed.")]
Sequences = Annotated[int, typer.Option("--sequences", min=2, help="Sequences of repeated random tokens.")]
Length = Annotated[
    int | None,
    typer.Option(
        "--length",
        min=2,
        help="Tokens before the repetition; default: 64, or half of a shorter context.",
        show_default=False,
    ),
]
Corpus = Annotated[
    str | None,
    typer.Option("--corpus", "-c", help="Text file or folder; default: the shipped WikiText.", show_default=False),
]


def opened_circuits(opening: Opening, seed: int = 0) -> Circuits:
    """The circuits of a model named on the command line."""
    lm = opening.open(seed)  # before torch is imported: a name that no hub answers for ends here
    import unembed

    return unembed.circuits(lm)


def deliver_sections(
    circuits: Circuits,
    title: str,
    sections: list[Section],
    provenance: Provenance,
    output: Output,
    csv_table: str | None = None,
) -> None:
    """Write sections in the requested forms, as a separate report; with --csv one table, the first by default."""
    from unembed.analyses import Cost, Listing, Needs
    from unembed.attention import SOURCE
    from unembed.cli.answer import deliver
    from unembed.document import Answer

    answer = Answer(title, tuple(sections), provenance, csv_table or "")
    deliver(Listing("circuits", "", Needs.CIRCUITS, Cost.SECONDS, "", (), source=SOURCE), circuits.lm, answer, output)


@app.command("heads")
@grouped
def heads(
    basis: Basis = None,
    sequences: Sequences = 50,
    length: Length = None,
    opening: Opening = Opening(model="attn-2l"),
    seed: Annotated[int, typer.Option(help="Seed of the random tokens.")] = 0,
    output: Output = Output(),
) -> None:
    """Score every head: previous token, earlier occurrence, induction, resting, copying, matching."""
    circuits = opened_circuits(opening, seed)
    chosen: str = circuits.known_basis(basis)
    from unembed.reports import heads_section

    provenance = circuits.lm.provenance(basis=chosen, seed=seed)
    scores = circuits.head_scores(seed, n_sequences=sequences, length=length)
    made = [heads_section(circuits, scores, chosen, provenance)]
    deliver_sections(circuits, f"Heads of {circuits.lm.name}", made, provenance, output=output)
    if output.for_terminal:
        print_explorer_link(opening, "heads")


@app.command("head", cls=options.OfOneHead)
@grouped
def head(
    layer: LayerOfHead,
    head: HeadOfLayer,
    offset: Annotated[
        int,
        typer.Option(
            "--offset", min=0, help="For the QK circuit with rotary positions: how many tokens back the source is."
        ),
    ] = 0,
    basis: Basis = None,
    top: Top = 15,
    opening: Opening = Opening(model="attn-2l"),
    seed: Annotated[int, typer.Option(help="Seed of the sample of tokens.")] = 0,
    output: Output = Output(),
) -> None:
    """Show one head: eigenvalues, own tokens, the largest entries of its full OV and QK circuits, its partners."""
    circuits = opened_circuits(opening, seed)
    chosen: str = circuits.known_basis(basis)
    from unembed.reports import head_sections

    provenance = circuits.lm.provenance(basis=chosen, seed=seed)
    made = head_sections(circuits, layer, head, top, chosen, seed, provenance, offset)
    title = f"Head L{layer}H{head} of {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, output)
    if output.for_terminal:
        print_explorer_link(opening, "heads", head=f"L{layer}H{head}")


@app.command("skip-trigrams", cls=options.OfOneHead)
@grouped
def skip_trigrams(
    layer: LayerOfHead,
    head: HeadOfLayer,
    source: Annotated[str | None, typer.Option(help="Only this source token.", show_default=False)] = None,
    check: Annotated[bool, typer.Option("--check", help="Count the skip-trigrams in the corpus.")] = False,
    min_count: Annotated[
        int,
        typer.Option("--min-count", min=0, help="Only tokens that occur at least this often in the corpus; 0: all."),
    ] = 0,
    corpus: Corpus = None,
    basis: Basis = None,
    top: Top = 30,
    opening: Opening = Opening(model="attn-1l"),
    output: Output = Output(),
) -> None:
    """List the "source ... destination, then output" triples that a head raises most."""
    circuits = opened_circuits(opening)
    chosen: str = circuits.known_basis(basis)
    from unembed.attention import count_in_corpus, frequent_tokens
    from unembed.reports import skip_trigram_section

    provenance = circuits.lm.provenance(basis=chosen, corpus=(corpus or "wikitext sample") if check else None)
    among = frequent_tokens(circuits.lm, corpus, min_count) if min_count > 0 else None
    found = circuits.skip_trigrams(layer, head, top, basis=chosen, source=source, among=among)
    triples = [(t.source, t.destination, t.output) for t in found]
    seen = count_in_corpus(circuits.lm, triples, corpus) if check else None
    made = [skip_trigram_section(circuits, layer, head, found, provenance, seen)]
    title = f"Skip-trigrams of head L{layer}H{head} of {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, output)


@app.command("expand")
@grouped
def expand(
    prompt: options.Prompt,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", "-t", help="Token whose logit is expanded; default: the predicted one.", show_default=False
        ),
    ] = None,
    order: Annotated[int, typer.Option("--order", min=0, max=3, help="Largest number of heads in a path.")] = 2,
    position: options.Position = -1,
    top: Top = 20,
    opening: Opening = Opening(model="attn-2l"),
    output: Output = Output(),
) -> None:
    """Write a token's logit as a sum over paths through heads, with the error of the sum."""
    circuits = opened_circuits(opening)
    from unembed.reports import expansion_section

    provenance = circuits.lm.provenance(basis="raw")
    found = circuits.expand(prompt, order, position)
    target = int(found.logits.argmax()) if token is None else circuits.lm.single_token(token)
    made = [expansion_section(circuits, found, target, top, provenance)]
    title = f"Path expansion in {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, output, csv_table="expansion_terms")


@app.command("induction")
@grouped
def induction(
    basis: Basis = None,
    sequences: Sequences = 50,
    length: Length = None,
    top: Top = 20,
    opening: Opening = Opening(model="attn-2l"),
    seed: Annotated[int, typer.Option(help="Seed of the random tokens.")] = 0,
    output: Output = Output(),
) -> None:
    """Find induction heads from the weights alone, and by what they do."""
    circuits = opened_circuits(opening, seed)
    chosen: str = circuits.known_basis(basis)
    from unembed.reports import induction_section

    provenance = circuits.lm.provenance(basis=chosen, seed=seed)
    found = circuits.induction(chosen, seed, n_sequences=sequences, length=length)
    made = [induction_section(circuits, found, chosen, provenance, top)]
    title = f"Induction heads of {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, output)


@app.command("stream")
@grouped
def stream(
    basis: Basis = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Measure on text whether the memories (FFN neurons) that were found erase.")
    ] = False,
    corpus: Corpus = None,
    top: Top = 15,
    opening: Opening = Opening(),
    output: Output = Output(),
) -> None:
    """Show which parts read which through the residual stream, how many directions each uses, and which erase."""
    circuits = opened_circuits(opening)
    chosen: str = circuits.known_basis(basis)
    from unembed.attention import subspaces, virtual_weights
    from unembed.reports import stream_section

    lm = circuits.lm
    provenance = circuits.lm.provenance(basis=chosen, corpus=(corpus or "wikitext sample") if verify else None)
    memory = circuits.memory_management(chosen, top=top, corpus=corpus, verify=verify)
    made = [stream_section(circuits, virtual_weights(lm, chosen), subspaces(lm, chosen), memory, provenance, top)]
    title = f"The stream of {lm.name}"
    deliver_sections(circuits, title, made, provenance, output)
