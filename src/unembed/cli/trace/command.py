"""`unembed trace`: show how the prediction after a prompt forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from unembed.cli.command import command
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Conversation, Opening, Output
from unembed.cli.prompts import Piece, PromptTexts
from unembed.options import (
    Against,
    IndexFolder,
    Layer,
    Option,
    Position,
    ReadingBasis,
    ReadPoint,
    ShowAll,
    ShowUnlearned,
    Token,
    TokensOrFew,
    UnusedSeed,
)

if TYPE_CHECKING:
    from unembed import Edit, LanguageModel, Trace
    from unembed.results import Provenance
    from unembed.trace import TraceView, Tracing


@command("trace", 'unembed trace "The war lasted from 1861" --hide-unlearned')
def trace(
    prompts: PromptTexts = PromptTexts(),
    conversation: Conversation = Conversation(),
    layer: Layer = None,
    position: Position = -1,
    tokens: TokensOrFew = None,
    memories: Annotated[int, Option("Number of memories (FFN neurons) to list.", low=0)] = 10,
    token: Token = None,
    against: Against = None,
    edits: EditOptions = EditOptions(),
    point: ReadPoint = "resid_post",
    basis: ReadingBasis = None,
    show_unlearned: ShowUnlearned = False,
    index: IndexFolder = None,
    everything: ShowAll = False,
    next_steps: Annotated[bool, Option("Also print three commands to try next with this prompt.", name="next")] = False,
    opening: Opening = Opening(),
    seed: UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Show how the prediction after a prompt forms, layer by layer.

    The output begins with up to three findings. The first is measured: of the heads, memories (FFN neurons) and
    layers that add most to the prediction, the one without which it falls most. Then come the heads and memories
    that decide between the predicted token and the runner-up, the layers in which their ranks change, and the
    difference of the two logits as the sum of the contributions of components, the largest first (--all: every
    layer and component). With --index, each memory is shown with the text on which it fires most. With --csv, the
    output is the top tokens at --point, for every layer and position. Several prompts give one JSON object or one
    CSV table. For each layer, the terminal lists one token (see --tokens), the other formats five.

    Caution: A finding tells what this prompt's prediction loses without a component; other prompts may depend on other
    components. The tokens that a memory or the residual stream promotes are computed with the lens named in the last
    line; they are not measured effects.
    """
    given = prompts.texts(conversation)
    if output.html is not None and (len(given) > 1 or prompts.windows is not None):
        raise typer.BadParameter("an HTML page shows a single prompt; give one, without --windows", param_hint="--html")
    from unembed.cli.stored_index import KnownIndex, NamedModel

    model = NamedModel(opening, seed)
    lm = model.open()
    texts = conversation.texts(lm, given)
    from unembed.cli.trace.output import deliver
    from unembed.cli.trace.terminal import draw_trace
    from unembed.trace import TraceSettings, compared_with, trace_view

    other, alone = compared_with(against)
    changes, opened = edits.edits(lm), KnownIndex(model, index)()
    views: list[tuple[TraceView, Provenance]] = []
    pieces = prompts.cut(lm, texts)
    for piece in pieces:
        settings = TraceSettings(piece.text, position, tokens or 5, basis, show_unlearned, changes, seed, other, alone)
        views.append(
            trace_view(
                lm,
                settings,
                layer=layer,
                memories=memories,
                token=token,
                point=None if output.for_terminal else point,  # a terminal shows one position, so it needs no grid
                tracing=lm.trace if piece.tokens is None else _of_tokens(lm, piece),
                index=opened,
            )
        )
    next_model = "" if opening.model == "wren" else opening.model
    next_model = next_model if next_steps else None
    draw = partial(draw_trace, lines=tokens or 1, next_steps=next_model, everything=everything)
    deliver([view for view, _ in views], views[0][1], draw, output)
    if output.for_terminal and not next_steps and len(pieces) == 1 and pieces[0].tokens is None:
        state = {"token": token, "against": other, "single": "1" if alone else None}
        state["position"] = None if position == -1 else str(views[0][0].position)  # the page shows the last by default
        print_explorer_link(opening, "trace", index=index, prompt=texts[0], edits=changes, **state)


def _of_tokens(lm: LanguageModel, piece: Piece) -> Tracing:
    """Return a function that traces the tokens of `piece`; the prompt with which it is called is ignored."""

    def tracing(prompt: str, /, *, edits: Sequence[Edit]) -> Trace:
        assert piece.tokens is not None
        return lm.trace(piece.tokens, edits=edits)

    return tracing
