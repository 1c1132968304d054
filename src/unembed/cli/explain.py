"""`unembed explain`: why one token is, or is not, predicted next."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from unembed.cli.command import command
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link, question_in_address
from unembed.cli.option_groups import Conversation, Opening, Output
from unembed.cli.trace.command import compared_with
from unembed.names import By
from unembed.options import (
    Against,
    IndexFolder,
    Option,
    Position,
    Prompt,
    ReadingBasis,
    ShowAll,
    ShowUnlearned,
    Token,
    UnusedSeed,
)


@command("explain", 'unembed explain "He was born in the United" --token " States" --against " Kingdom"')
def explain(
    prompt: Prompt,
    conversation: Conversation = Conversation(),
    token: Token = None,
    against: Against = None,
    by: Annotated[By | None, Option("Split the logit this way only; default: component, head and memory.")] = None,
    effects: Annotated[bool, Option("List direct and total effects of the writers (each ablated alone).")] = False,
    position: Position = -1,
    writers: Annotated[int, Option("Number of writers to list in each split.", low=1, aliases=("--top", "-k"))] = 12,
    everything: ShowAll = False,
    edits: EditOptions = EditOptions(),
    basis: ReadingBasis = None,
    show_unlearned: ShowUnlearned = False,
    index: IndexFolder = None,
    opening: Opening = Opening(),
    seed: UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Explain why a token is predicted rather than another: the difference of their logits as a sum.

    The token's rank in each layer, then its logit minus the runner-up's (--against another token, or none), split by
    component, head, source token or memory (FFN neuron). Every attribution states the error of its
    sum. With --csv: the writers shown and their contributions.

    Caution: The sum holds direct effects only: a part that works through later parts counts little, and one that later
    parts undo counts much. `ablate` measures the whole effect.
    """
    from unembed.cli.stored_index import index_for

    lm = opening.open(seed)
    (prompt,) = conversation.texts(lm, [prompt])
    changes = edits.edits(lm)
    from unembed.cli.trace.output import deliver
    from unembed.cli.trace.terminal import draw_explanation
    from unembed.trace import TraceSettings, explain_view

    other, alone = compared_with(against)
    state = {"by": by, **question_in_address(lm, prompt, position, token, other, alone=alone)}
    if effects:
        trace = lm.trace(prompt, edits=changes)
        question = trace.question(token, other, position, alone=alone)
        attribution = trace.attribution(question.token, position, question.against, by or "memory")
        table = attribution.with_effects(writers).to_table()
        output.deliver(table)
        if output.for_terminal:
            print_explorer_link(opening, "trace", index=index, prompt=prompt, edits=changes, effects="total", **state)
        return
    settings = TraceSettings(prompt, position, 5, basis, show_unlearned, changes, seed, other, alone)
    view, provenance = explain_view(
        lm, settings, token=token, by=by, writers=writers, tracing=lm.trace, index=index_for(opening, lm, index)
    )
    deliver([view], provenance, partial(draw_explanation, everything=everything), output)
    if output.for_terminal:
        print_explorer_link(opening, "trace", index=index, prompt=prompt, edits=changes, **state)
