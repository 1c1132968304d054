"""`unembed trace`: one prompt seen whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unembed.cli import options


def trace(
    prompt: options.Prompt,
    layer: options.Layer = None,
    position: options.Position = -1,
    top: options.Top = 5,
    memories: Annotated[
        int | None,
        typer.Option(min=0, help="Sub-updates per layer; 2, or 10 with --layer.", show_default=False),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", "-t", help="Follow this token instead of the predicted one.", show_default=False),
    ] = None,
    set_: options.Sets = None,
    point: options.PointOption = "resid_post",
    basis: options.BasisOption = "final",
    hide_unlearned: options.HideUnlearned = False,
    index: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Show each memory's top trigger from this index; default: a ready one of the model.",
            show_default=False,
        ),
    ] = None,
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
    """Show how the prediction after a prompt forms, layer by layer.

    What the stream says before and after each layer, where the predicted token stands, what was found in at most three
    ranked sentences, the moments when a token rises or falls for good, which memories write most and what they push
    toward, and the predicted token's logit as the sum of its writers. With --csv: every reading at --point.
    """
    options.check_output(html, json=as_json, csv=csv, plain=plain)
    edits = options.edits(set_)
    from unembed.cli.model_loading import index_of, opened
    from unembed.cli.trace.output import deliver
    from unembed.cli.trace.terminal import draw_trace
    from unembed.schemas.trace_builder import TraceSettings, trace_view

    lm = opened(model, revision=revision, offline=offline, dtype=dtype, device=device, seed=seed)
    asked = TraceSettings(prompt, position, top, basis, hide_unlearned, edits, seed)
    held = index_of(lm, index)
    view, provenance = trace_view(lm, asked, layer=layer, memories=memories, token=token, point=point, index=held)
    deliver(view, provenance, draw_trace, as_json=as_json, csv=csv, plain=plain, html=html)
