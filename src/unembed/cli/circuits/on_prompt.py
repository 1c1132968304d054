"""`unembed circuits look|scores|virtual-head`: heads on one prompt."""

from __future__ import annotations

from typing import Annotated

import typer

from unembed.cli import options
from unembed.cli.circuits.command import Basis, HeadOfLayer, LayerOfHead, Top, app, deliver_sections, opened_circuits

HeadName = Annotated[str, typer.Argument(help="A head, such as L0H3 or 0.3.", show_default=False)]


@app.command("look")
def look(
    layer: LayerOfHead,
    head: HeadOfLayer,
    prompt: options.Prompt,
    token: Annotated[
        str | None, typer.Option("--token", "-t", help="Whose logit; default: the predicted one.", show_default=False)
    ] = None,
    position: options.Position = -1,
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
    """Show where a head attends from one position, and what each source adds to a token's logit."""
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    circuits = opened_circuits(model, revision, offline, dtype, device)
    from unembed.reports import look_section

    provenance = circuits.lm.provenance()
    made = [look_section(circuits, prompt, layer, head, position, token, provenance)]
    title = f"Head {layer}.{head} of {circuits.lm.name} at one position"
    deliver_sections(circuits, title, made, provenance, as_json=as_json, csv=csv, plain=plain, html=html)


@app.command("scores")
def scores(
    layer: LayerOfHead,
    head: HeadOfLayer,
    prompt: options.Prompt,
    position: options.Position = -1,
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
    """Take a head's attention scores at one position apart: content, positions, biases, ALiBi."""
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    circuits = opened_circuits(model, revision, offline, dtype, device)
    from unembed.reports import score_terms_section

    provenance = circuits.lm.provenance()
    made = [score_terms_section(circuits, prompt, layer, head, position, provenance)]
    title = f"Attention scores of head {layer}.{head} of {circuits.lm.name}"
    deliver_sections(circuits, title, made, provenance, as_json=as_json, csv=csv, plain=plain, html=html)


@app.command("virtual-head")
def virtual_head(
    first: HeadName,
    second: HeadName,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Show what it moves on this text.", show_default=False)
    ] = None,
    position: options.Position = -1,
    basis: Basis = None,
    top: Top = 15,
    model: options.Model = "attn-2l",
    revision: options.Revision = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    seed: Annotated[int, typer.Option(help="Of the sample of tokens.")] = 0,
    as_json: options.Json = False,
    csv: options.Csv = False,
    plain: options.Plain = False,
    html: options.Html = None,
) -> None:
    """Show an earlier and a later head that act as one: what it copies, and what it moves on a prompt."""
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    heads = options.head(first, "FIRST"), options.head(second, "SECOND")
    circuits = opened_circuits(model, revision, offline, dtype, device)
    from unembed.reports import moved_section, virtual_head_section

    lm = circuits.lm
    chosen: str = circuits.known_basis(basis)
    pair = circuits.virtual_head(*heads)
    provenance = lm.provenance(basis=chosen, seed=seed)
    made = [virtual_head_section(circuits, pair, top, chosen, seed, provenance)]
    if prompt is not None:
        made.append(moved_section(lm, pair, prompt, position, top, provenance))
    title = f"{pair.label} of {lm.name}"
    deliver_sections(circuits, title, made, provenance, as_json=as_json, csv=csv, plain=plain, html=html)
