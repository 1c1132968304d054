"""`unembed circuits look|scores|virtual-head`: heads on one prompt."""

from __future__ import annotations

from typing import Annotated

import typer

from unembed.cli import options
from unembed.cli.circuits.command import Basis, HeadOfLayer, LayerOfHead, Top, app, deliver_sections, opened_circuits
from unembed.cli.explorer_link import position_in_address, print_explorer_link
from unembed.cli.option_groups import Opening, Output, grouped

HeadName = Annotated[str, typer.Argument(help="A head, such as L0H3 or 0.3.", show_default=False)]


@app.command("look", cls=options.OfOneHead)
@grouped
def look(
    layer: LayerOfHead,
    head: HeadOfLayer,
    prompt: options.Prompt,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", "-t", help="Token whose logit is expanded; default: the predicted one.", show_default=False
        ),
    ] = None,
    position: options.Position = -1,
    opening: Opening = Opening(model="attn-2l"),
    output: Output = Output(),
) -> None:
    """Show where a head attends from one position, and what each source adds to a token's logit."""
    circuits = opened_circuits(opening)
    from unembed.reports import look_section

    provenance = circuits.lm.provenance()
    made = [look_section(circuits, prompt, layer, head, position, token, provenance)]
    title = f"Head L{layer}H{head} of {circuits.lm.name} at one position"
    deliver_sections(circuits, title, made, provenance, output)
    if output.for_terminal:
        at = position_in_address(circuits.lm, prompt, position)
        print_explorer_link(opening, "heads", prompt=prompt, position=at, head=f"L{layer}H{head}", token=token)


@app.command("scores", cls=options.OfOneHead)
@grouped
def scores(
    layer: LayerOfHead,
    head: HeadOfLayer,
    prompt: options.Prompt,
    position: options.Position = -1,
    opening: Opening = Opening(model="attn-2l"),
    output: Output = Output(),
) -> None:
    """Split a head's attention scores at one position into terms: content, positions, biases, ALiBi."""
    circuits = opened_circuits(opening)
    from unembed.reports import score_terms_section

    provenance = circuits.lm.provenance()
    made = [score_terms_section(circuits, prompt, layer, head, position, provenance)]
    title = f"Attention scores of head L{layer}H{head} of {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, output)


@app.command("virtual-head")
@grouped
def virtual_head(
    first: HeadName,
    second: HeadName,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Show what the two heads move on this text.", show_default=False)
    ] = None,
    position: options.Position = -1,
    basis: Basis = None,
    top: Top = 15,
    opening: Opening = Opening(model="attn-2l"),
    seed: Annotated[int, typer.Option(help="Seed of the sample of tokens.")] = 0,
    output: Output = Output(),
) -> None:
    """Show two heads that act as one (a virtual head): what they copy, and what they move on a prompt."""
    heads = options.head(first, "FIRST"), options.head(second, "SECOND")
    circuits = opened_circuits(opening)
    from unembed.reports import moved_section, virtual_head_section

    lm = circuits.lm
    chosen: str = circuits.known_basis(basis)
    pair = circuits.virtual_head(*heads)
    provenance = lm.provenance(basis=chosen, seed=seed)
    made = [virtual_head_section(circuits, pair, top, chosen, seed, provenance)]
    if prompt is not None:
        made.append(moved_section(lm, pair, prompt, position, top, provenance))
    title = f"{pair.label} of {lm.name}"
    deliver_sections(circuits, title, made, provenance, output)
