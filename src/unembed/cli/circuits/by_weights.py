"""`unembed circuits offsets|virtual-weights`: what weights alone say of positions and of single parts."""

from __future__ import annotations

from typing import Annotated

import typer

from unembed.cli import options
from unembed.cli.circuits.command import Basis, HeadOfLayer, LayerOfHead, Top, app, deliver_sections, opened_circuits

PartName = Annotated[str, typer.Argument(help="A head or a memory, such as L0H3 or L5M278.", show_default=False)]


@app.command("offsets")
def offsets(
    layer: LayerOfHead,
    head: HeadOfLayer,
    to: Annotated[int, typer.Option("--to", min=1, max=4096, help="The largest offset.")] = 24,
    basis: Basis = None,
    model: options.Model = "attn-2l",
    revision: options.Revision = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    as_json: options.Json = False,
    csv: options.Csv = False,
    plain: options.Plain = False,
    html: options.Html = None,
) -> None:
    """Show how a head's score depends on how far back a source lies, by its weights alone."""
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    circuits = opened_circuits(model, revision, offline, dtype, device)
    from unembed.reports import offsets_section

    chosen: str = circuits.known_basis(basis)
    provenance = circuits.lm.provenance(basis=chosen)
    made = [offsets_section(circuits, layer, head, to, chosen, provenance)]
    title = f"Head {layer}.{head} of {circuits.lm.name} by offset"
    deliver_sections(circuits, title, made, provenance, as_json=as_json, csv=csv, plain=plain, html=html)


@app.command("virtual-weights")
def virtual_weights(
    part: PartName,
    basis: Basis = None,
    top: Top = 15,
    model: options.Model = "wren",
    revision: options.Revision = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    as_json: options.Json = False,
    csv: options.Csv = False,
    plain: options.Plain = False,
    html: options.Html = None,
) -> None:
    """List the heads and memories that read most of what one writes, and those whose output it reads most of."""
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    circuits = opened_circuits(model, revision, offline, dtype, device)
    from unembed.reports import virtual_weights_section

    chosen: str = circuits.known_basis(basis)
    provenance = circuits.lm.provenance(basis=chosen)
    made = [virtual_weights_section(circuits, part, top, chosen, provenance)]
    title = f"Virtual weights of {part} of {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, as_json=as_json, csv=csv, plain=plain, html=html)
