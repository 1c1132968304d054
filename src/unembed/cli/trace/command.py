"""`unembed trace`: one prompt seen whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from unembed.cli import options


def trace(
    prompt: options.Prompt,
    layer: options.Layer = None,
    position: options.Position = -1,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            "-k",
            min=1,
            help="Tokens listed at every point of every layer; 1 on the terminal, else 5.",
            show_default=False,
        ),
    ] = None,
    memories: Annotated[int, typer.Option(min=0, help="Memories listed.")] = 10,
    token: Annotated[
        str | None,
        typer.Option("--token", "-t", help="Follow this token instead of the predicted one.", show_default=False),
    ] = None,
    against: options.Against = None,
    set_: options.Sets = None,
    point: options.PointOption = "resid_post",
    basis: options.BasisOption = "final",
    show_unlearned: options.ShowUnlearned = False,
    index: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Show each memory's top trigger from this index; default: a ready one of the model.",
            show_default=False,
        ),
    ] = None,
    next_steps: Annotated[
        bool, typer.Option("--next", help="End with three commands to try next, for this prompt.")
    ] = False,
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
    """Show how the prediction after a prompt forms, layer by layer.

    The top token of the stream before and after each layer, and the rank of the predicted one; at most three findings;
    the memories (FFN neurons) that decide between the predicted token and the runner-up, and the difference of the two
    logits as the sum of its writers. With --csv: every reading at --point.
    """
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    edits = options.edits(set_)
    from unembed.cli.model_loading import index_of, opened

    lm = opened(model, tokenizer=tokenizer, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    from unembed.cli.trace.output import deliver
    from unembed.cli.trace.terminal import draw_trace
    from unembed.schemas.trace_builder import TraceSettings, trace_view

    other, alone = options.compared_with(against)
    asked = TraceSettings(prompt, position, top or 5, basis, show_unlearned, edits, seed, other, alone)
    held = index_of(lm, index)
    view, provenance = trace_view(lm, asked, layer=layer, memories=memories, token=token, point=point, index=held)
    draw = partial(draw_trace, lines=top or 1, next_steps=("" if model == "wren" else model) if next_steps else None)
    deliver(view, provenance, draw, as_json=as_json, csv=csv, plain=plain, html=html)
