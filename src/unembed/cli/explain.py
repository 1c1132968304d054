"""`unembed explain`: why one token is, or is not, predicted next."""

from __future__ import annotations

from typing import Annotated

import typer

from unembed.cli import options
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link, question_in_address
from unembed.cli.option_groups import Opening, Output, grouped
from unembed.names import By


@grouped
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
        By | None,
        typer.Option(help="Split the logit this way only; default: component, head and memory.", show_default=False),
    ] = None,
    effects: Annotated[
        bool, typer.Option("--effects", help="List direct and total effects of the writers (each ablated alone).")
    ] = False,
    position: options.Position = -1,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Writers listed per attribution.")] = 12,
    edits: EditOptions = EditOptions(),
    basis: options.BasisOption = "final",
    show_unlearned: options.ShowUnlearned = False,
    index: options.IndexFolder = None,
    opening: Opening = Opening(),
    seed: options.UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Explain why a token is predicted rather than another: the difference of their logits as a sum.

    The token's rank in each layer, then its logit minus the runner-up's (--against another token, or none), split by
    component, head, source token or memory (FFN neuron). Every attribution states the error of its
    sum. With --csv: the writers shown and their contributions.
    """
    from unembed.cli.stored_index import index_for

    lm = opening.open(seed)
    changes = edits.edits(lm)
    from unembed.cli.trace.output import deliver
    from unembed.cli.trace.terminal import draw_explanation
    from unembed.trace import TraceSettings, explain_view

    other, alone = options.compared_with(against)
    state = {"by": by, **question_in_address(lm, prompt, position, token, other, alone=alone)}
    if effects:
        trace = lm.trace(prompt, edits=changes)
        question = trace.question(token, other, position, alone=alone)
        attribution = trace.attribution(question.token, position, question.against, by or "memory")
        table = attribution.with_effects(top).to_table()
        output.deliver(table)
        if output.for_terminal:
            print_explorer_link(opening, "trace", index=index, prompt=prompt, edits=changes, effects="total", **state)
        return
    settings = TraceSettings(prompt, position, 5, basis, show_unlearned, changes, seed, other, alone)
    view, provenance = explain_view(
        lm, settings, token=token, by=by, writers=top, tracing=lm.trace, index=index_for(opening, lm, index)
    )
    deliver([view], provenance, draw_explanation, output)
    if output.for_terminal:
        print_explorer_link(opening, "trace", index=index, prompt=prompt, edits=changes, **state)
