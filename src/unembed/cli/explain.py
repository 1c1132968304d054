"""`unembed explain`: why one token is, or is not, what the model says next."""

from __future__ import annotations

from typing import Annotated

import typer

from unembed.cli import options


def explain(
    prompt: options.Prompt,
    token: Annotated[
        str,
        typer.Option("--token", "-t", help="The token to explain, its leading space included.", show_default=False),
    ],
    against: Annotated[
        str | None, typer.Option(help="Explain why the token rather than this one.", show_default=False)
    ] = None,
    by: Annotated[
        options.By | None,
        typer.Option(help="Split the logit only so; default: component, head and memory.", show_default=False),
    ] = None,
    effects: Annotated[
        bool, typer.Option("--effects", help="List writers with direct and total effects (each ablated alone).")
    ] = False,
    position: options.Position = -1,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Writers listed per attribution.")] = 12,
    set_: options.Sets = None,
    basis: options.BasisOption = "final",
    hide_unlearned: options.HideUnlearned = False,
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
    """Explain a token's logit as the sum of everything that wrote to the stream.

    Where the token stands in each layer, then its logit, or the difference of two with --against, split by component,
    head, source token or memory. Every attribution says by how much its sum misses. With --csv: the writers shown and
    their contributions.
    """
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    edits = options.edits(set_)
    from unembed.cli.model_loading import opened
    from unembed.cli.trace.output import deliver
    from unembed.cli.trace.terminal import draw_explanation
    from unembed.schemas.trace_builder import TraceSettings, explain_view

    lm = opened(model, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    if effects:
        from unembed.cli.output import deliver_table

        attribution = lm.trace(prompt, edits=edits).attribution(token, position, against, by or "memory")
        table = attribution.with_effects(top).to_table()
        return deliver_table(table, as_json=as_json, csv=csv, plain=plain, html=html)
    asked = TraceSettings(prompt, position, 5, basis, hide_unlearned, edits, seed)
    view, provenance = explain_view(lm, asked, token=token, against=against, by=by, writers=top)
    deliver(view, provenance, draw_explanation, as_json=as_json, csv=csv, plain=plain, html=html)
