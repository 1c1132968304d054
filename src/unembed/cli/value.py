"""`unembed value`: what one memory's value promotes and suppresses."""

from __future__ import annotations

from typing import Annotated

import typer

from unembed.cli import options


def value(
    layer: Annotated[int, typer.Argument(help="Layer, from 0.", show_default=False)],
    index: Annotated[int, typer.Argument(help="Memory of the layer, from 0.", show_default=False)],
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Tokens at either end.")] = 20,
    basis: Annotated[
        options.ValueBasis, typer.Option(help="raw: the readout alone, as in the papers; final: the last norm too.")
    ] = "raw",
    show_unlearned: options.ShowUnlearned = False,
    model: options.Model = "wren",
    revision: options.Revision = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
    seed: options.Seed = None,
    as_json: options.Json = False,
    csv: options.Csv = False,
    plain: options.Plain = False,
    html: options.Html = None,
) -> None:
    """Show the tokens that a memory's value promotes most, and those it suppresses most."""
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    from unembed.cli.model_loading import opened
    from unembed.cli.output import deliver_table
    from unembed.results import Table

    lm = opened(model, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    columns = {}
    for name, bottom in (("promoted", False), ("suppressed", True)):
        ids, scores = lm.values.top(layer, index, top, basis=basis, bottom=bottom, show_unlearned=show_unlearned)
        columns |= {
            f"{name}_id": ids.tolist(),
            f"{name}_token": lm.token_strings(ids),
            f"{name}_score": scores.tolist(),
        }
    notes = {"show_unlearned": show_unlearned}
    provenance = lm.provenance(basis=basis, seed=seed, notes=notes)
    title = f"Memory {layer}.{index} of {lm.name}: its value has length {lm.values.norm(layer, index):.3g}"
    deliver_table(Table(title, columns, provenance), as_json=as_json, csv=csv, plain=plain, html=html)
