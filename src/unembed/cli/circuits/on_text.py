"""`unembed circuits direct-path|term-importance|in-context`: circuits measured on a corpus."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from unembed.cli import options
from unembed.cli.circuits.command import Corpus, app, deliver_sections, opened_circuits
from unembed.cli.option_groups import Opening, Output, grouped

MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Number of tokens to run.")]


@app.command("direct-path")
@grouped
def direct_path(
    corpus: Corpus = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Number of most frequent tokens to compare by rank.")
    ] = 200,
    max_tokens: MaxTokens = 400_000,
    opening: Opening = Opening(model="attn-0l"),
    output: Output = Output(),
) -> None:
    """Compare token embedding times unembedding with the bigrams of a corpus."""
    circuits = opened_circuits(opening)
    from unembed.reports import direct_path_section

    provenance = circuits.lm.provenance(corpus=corpus or "wikitext sample")
    found = circuits.direct_path(corpus, n_tokens=tokens, max_tokens=max_tokens)
    made = [direct_path_section(circuits, found, provenance)]
    title = f"The direct path of {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, output)


@app.command("term-importance")
@grouped
def term_importance(
    corpus: Corpus = None,
    order: Annotated[
        int | None,
        typer.Option(
            "--order", min=0, help="Highest order of paths (number of heads); default: all.", show_default=False
        ),
    ] = None,
    max_tokens: MaxTokens = 20_000,
    opening: Opening = Opening(model="attn-2l"),
    output: Output = Output(),
) -> None:
    """Measure by how much each order of path through heads lowers the loss on text."""
    circuits = opened_circuits(opening)
    from unembed.reports import importance_section

    provenance = circuits.lm.provenance(corpus=corpus or "wikitext sample")
    found = circuits.term_importance(corpus, order, max_tokens=max_tokens)
    made = [importance_section(found, provenance)]
    title = f"Term importance in {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, output)


@app.command("in-context")
@grouped
def in_context(
    without: Annotated[
        str, typer.Option("--without", help='Heads to ablate, such as "L1H0,L1H6".', show_default=False)
    ] = "",
    corpus: Corpus = None,
    early: Annotated[
        int | None, typer.Option(min=0, help="Early position; default: at a tenth of the window.", show_default=False)
    ] = None,
    late: Annotated[
        int | None, typer.Option(min=0, help="Late position; default: near the end of the window.", show_default=False)
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=32, help="Tokens per window; default: the context, at most 512.", show_default=False),
    ] = None,
    windows: Annotated[int, typer.Option("--windows", min=1, help="Number of windows.")] = 64,
    opening: Opening = Opening(model="attn-2l"),
    output: Output = Output(),
) -> None:
    """Measure the loss by position, late minus early, with all heads and without some (Olsson et al. 2022)."""
    heads = [options.head(name, "--without") for name in without.split(",") if name.strip()]
    circuits = opened_circuits(opening)
    from unembed.reports import in_context_section

    provenance = circuits.lm.provenance(corpus=corpus or "wikitext sample")
    settings: dict[str, Any] = {"early": early, "late": late, "window": window, "max_windows": windows}
    whole = circuits.in_context(corpus, **settings)
    ablated = circuits.in_context(corpus, heads, **settings) if heads else None
    made = [in_context_section(whole, ablated, None, provenance)]
    title = f"In-context learning of {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, output)
