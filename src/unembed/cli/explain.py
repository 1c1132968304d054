"""`unembed explain`: why one token is, or is not, what the model says next."""

from __future__ import annotations

from typing import Annotated

import typer

from unembed.cli import options


def explain(
    prompt: options.Prompt,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            "-t",
            help="The token to explain, its leading space included; default: the predicted one.",
            show_default=False,
        ),
    ] = None,
    against: options.Against = None,
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
    show_unlearned: options.ShowUnlearned = False,
    index: options.IndexFolder = None,
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
    """Explain why a token is predicted rather than another: the difference of their logits as a sum.

    The token's rank in each layer, then the difference of its logit to the runner-up's (--against another token, or
    none), split by component, head, source token or memory (FFN neuron). Every attribution says by how much its sum
    misses. With --csv: the writers shown and their contributions.
    """
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    edits = options.edits(set_)
    from unembed.cli.model_loading import index_of, opened

    lm = opened(model, tokenizer=tokenizer, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    from unembed.cli.trace.output import deliver
    from unembed.cli.trace.terminal import draw_explanation
    from unembed.schemas.trace_builder import TraceSettings, explain_view

    other, alone = options.compared_with(against)
    if effects:
        from unembed.cli.output import deliver_table

        trace = lm.trace(prompt, edits=edits)
        question = trace.question(token, other, position, alone=alone)
        attribution = trace.attribution(question.token, position, question.against, by or "memory")
        table = attribution.with_effects(top).to_table()
        return deliver_table(table, as_json=as_json, csv=csv, plain=plain, html=html)
    asked = TraceSettings(prompt, position, 5, basis, show_unlearned, edits, seed, other, alone)
    view, provenance = explain_view(lm, asked, token=token, by=by, writers=top, index=index_of(lm, index))
    deliver(view, provenance, draw_explanation, as_json=as_json, csv=csv, plain=plain, html=html)
