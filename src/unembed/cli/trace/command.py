"""`unembed trace`: the full trace of one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unembed.cli import options
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link, question_in_address
from unembed.cli.option_groups import Opening, Output, grouped
from unembed.cli.trace.prompts import Cut, Piece, Prompts, PromptsFile, prompts_of

if TYPE_CHECKING:
    from unembed import Edit, LanguageModel, Trace
    from unembed.results import Provenance
    from unembed.trace import TraceView, Tracing


@grouped
def trace(
    prompts: Prompts = None,
    file: PromptsFile = None,
    cut: Cut = Cut(),
    layer: options.Layer = None,
    position: options.Position = -1,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            "-k",
            min=1,
            help="Tokens listed at every point of every layer; default: 1 in the terminal, 5 elsewhere.",
            show_default=False,
        ),
    ] = None,
    memories: Annotated[int, typer.Option(min=0, help="Memories listed.")] = 10,
    token: Annotated[
        str | None,
        typer.Option("--token", "-t", help="Follow this token instead of the predicted one.", show_default=False),
    ] = None,
    against: options.Against = None,
    edits: EditOptions = EditOptions(),
    point: options.PointOption = "resid_post",
    basis: options.BasisOption = "final",
    show_unlearned: options.ShowUnlearned = False,
    index: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Show each memory's top trigger from this index; default: the model's ready index.",
            show_default=False,
        ),
    ] = None,
    next_steps: Annotated[
        bool, typer.Option("--next", help="Also print three commands to try next with this prompt.")
    ] = False,
    opening: Opening = Opening(),
    seed: options.UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Show how the prediction after a prompt forms, layer by layer.

    The top token of the stream before and after each layer, and the rank of the predicted one; at most three findings;
    the memories (FFN neurons) that decide between the predicted token and the runner-up, and the difference of the two
    logits as the sum of its writers. With --csv: every reading at --point. Several prompts follow one another; in JSON
    and CSV they are one object and one table.
    """
    texts = prompts_of(prompts, file)
    if output.html is not None and (len(texts) > 1 or cut.windows is not None):
        raise typer.BadParameter("a page shows one prompt", param_hint="--html")
    from unembed.cli.stored_index import index_for

    lm = opening.open(seed)
    from unembed.cli.trace.output import deliver
    from unembed.cli.trace.terminal import draw_trace
    from unembed.trace import TraceSettings, trace_view

    other, alone = options.compared_with(against)
    changes, opened = edits.edits(lm), index_for(opening, lm, index)
    views: list[tuple[TraceView, Provenance]] = []
    pieces = cut.pieces(lm, texts)
    for piece in pieces:
        settings = TraceSettings(piece.text, position, top or 5, basis, show_unlearned, changes, seed, other, alone)
        views.append(
            trace_view(
                lm,
                settings,
                layer=layer,
                memories=memories,
                token=token,
                point=point,
                tracing=lm.trace if piece.tokens is None else _of_tokens(lm, piece),
                index=opened,
            )
        )
    next_model = "" if opening.model == "wren" else opening.model
    draw = partial(draw_trace, lines=top or 1, next_steps=next_model if next_steps else None)
    deliver([view for view, _ in views], views[0][1], draw, output)
    if output.for_terminal and not next_steps and len(pieces) == 1 and pieces[0].tokens is None:
        state = question_in_address(lm, texts[0], position, token, other, alone=alone)
        print_explorer_link(opening, "trace", index=index, prompt=texts[0], edits=changes, **state)


def _of_tokens(lm: LanguageModel, piece: Piece) -> Tracing:
    """The traces of a piece of a prompt."""

    def tracing(prompt: str, /, *, edits: Sequence[Edit]) -> Trace:
        assert piece.tokens is not None
        return lm.trace(piece.tokens, edits=edits)

    return tracing
