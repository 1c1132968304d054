"""`unembed lens`: the logit lens over many prompts, as one table."""

from __future__ import annotations

from typing import Annotated

import typer

from unembed.cli import options
from unembed.cli.edit_options import EditOptions
from unembed.cli.option_groups import Opening, Output, grouped
from unembed.cli.trace.prompts import Cut, Prompts, PromptsFile, prompts_of


@grouped
def lens(
    prompts: Prompts = None,
    file: PromptsFile = None,
    cut: Cut = Cut(),
    layer: options.Layer = None,
    position: options.Position = -1,
    all_positions: Annotated[
        bool, typer.Option("--all-positions", help="Read every position of every prompt, not only --position.")
    ] = False,
    top: options.Top = 1,
    edits: EditOptions = EditOptions(),
    point: options.PointOption = "resid_post",
    basis: options.BasisOption = "final",
    show_unlearned: options.ShowUnlearned = False,
    opening: Opening = Opening(),
    output: Output = Output(),
) -> None:
    """Show the likeliest tokens of the stream at every layer, for many prompts in one table (the logit lens)."""
    texts = prompts_of(prompts, file)
    lm = opening.open()
    from unembed.trace import logit_lens

    table = logit_lens(
        lm,
        [piece.text if piece.tokens is None else piece.tokens for piece in cut.pieces(lm, texts)],
        point=point,
        top=top,
        basis=basis,
        layer=layer,
        position=None if all_positions else position,
        edits=edits.edits(lm),
        show_unlearned=show_unlearned,
    )
    output.deliver(table)
