"""`unembed circuits offsets|virtual-weights`: what weights alone show about positions and single parts."""

from __future__ import annotations

from typing import Annotated

import typer

from unembed.cli import options
from unembed.cli.circuits.command import Basis, HeadOfLayer, LayerOfHead, Top, app, deliver_sections, opened_circuits
from unembed.cli.option_groups import Opening, Output, grouped

PartName = Annotated[str, typer.Argument(help="A head or a memory, such as L0H3 or L5M278.", show_default=False)]


@app.command("offsets", cls=options.OfOneHead)
@grouped
def offsets(
    layer: LayerOfHead,
    head: HeadOfLayer,
    to: Annotated[int, typer.Option("--to", min=1, max=4096, help="Largest offset (tokens back).")] = 24,
    basis: Basis = None,
    opening: Opening = Opening(model="attn-2l"),
    output: Output = Output(),
) -> None:
    """Show how a head's score depends on how far back a source lies, by its weights alone."""
    circuits = opened_circuits(opening)
    from unembed.reports import offsets_section

    chosen: str = circuits.known_basis(basis)
    provenance = circuits.lm.provenance(basis=chosen)
    made = [offsets_section(circuits, layer, head, to, chosen, provenance)]
    title = f"Head L{layer}H{head} of {circuits.lm.name} by offset"
    deliver_sections(circuits, title, made, provenance, output)


@app.command("virtual-weights")
@grouped
def virtual_weights(
    part: PartName,
    basis: Basis = None,
    top: Top = 15,
    opening: Opening = Opening(),
    output: Output = Output(),
) -> None:
    """List the heads and memories (FFN neurons) that read most of what a part writes, and from which it reads most."""
    circuits = opened_circuits(opening)
    from unembed.reports import virtual_weights_section

    chosen: str = circuits.known_basis(basis)
    provenance = circuits.lm.provenance(basis=chosen)
    made = [virtual_weights_section(circuits, part, top, chosen, provenance)]
    title = f"Virtual weights of {part} of {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, output)
