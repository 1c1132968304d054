"""`unembed lens`: the logit lens over many prompts, as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from unembed.cli.command import command
from unembed.cli.edit_options import EditOptions
from unembed.cli.option_groups import Conversation, Opening, Output
from unembed.cli.trace.prompts import Cut, Prompts, PromptsFile, prompts_of
from unembed.options import Layer, Option, Position, ReadingBasis, ReadPoint, ShowAll, ShowUnlearned, Tokens

if TYPE_CHECKING:
    from unembed.results import Table


@command("lens", 'unembed lens "The war lasted from 1861" "He was born in the United" --csv')
def lens(
    prompts: Prompts = None,
    file: PromptsFile = None,
    cut: Cut = Cut(),
    conversation: Conversation = Conversation(),
    layer: Layer = None,
    position: Position = -1,
    all_positions: Annotated[bool, Option("Read every position of every prompt, not only --position.")] = False,
    tokens: Tokens = 1,
    edits: EditOptions = EditOptions(),
    point: ReadPoint = "resid_post",
    basis: ReadingBasis = None,
    show_unlearned: ShowUnlearned = False,
    everything: ShowAll = False,
    opening: Opening = Opening(),
    output: Output = Output(),
) -> None:
    """Show the most probable tokens of the stream at every layer, for many prompts in one table (the logit lens).

    Caution: A reading is not all that the stream holds: the logit lens takes the later layers for the identity, and
    shows little in the middle layers of most models. `fit-lens` makes a lens that reads them better.
    """
    given = prompts_of(prompts, file, may_lack=conversation.messages is not None)
    lm = opening.open()
    texts = conversation.texts(lm, given)
    from unembed.trace import logit_lens

    table = logit_lens(
        lm,
        [piece.text if piece.tokens is None else piece.tokens for piece in cut.pieces(lm, texts)],
        point=point,
        top=tokens,
        basis=basis,
        layer=layer,
        position=None if all_positions else position,
        edits=edits.edits(lm),
        show_unlearned=show_unlearned,
    )
    if not output.for_terminal:
        output.deliver(table)
        return
    for part in _parts(_with_characters(table)):
        if everything:
            from unembed.cli.output import show_whole

            show_whole(part, plain=output.plain)
        else:
            output.deliver(part)


def _parts(table: Table) -> list[Table]:
    """The table of each prompt, in parts that a terminal shows whole unless every position was read."""
    from unembed.results import Table

    numbers = list(dict.fromkeys(table["prompt"]))
    if len(numbers) < 2:
        return [table]
    rows = {n: [i for i, prompt in enumerate(table["prompt"]) if prompt == n] for n in numbers}
    return [
        Table(
            f"{table.title}, prompt {n}",
            {name: [table[name][i] for i in of] for name in table.column_names},
            table.provenance,
        )
        for n, of in rows.items()
    ]


def _with_characters(table: Table) -> Table:
    """The table with whole characters in place of single input tokens' bytes; JSON and CSV have the bytes."""
    from unembed.results import Table, characters

    inputs: dict[int, dict[int, str]] = {}
    for row in table.rows():
        inputs.setdefault(row["prompt"], {})[row["position"]] = row["input"]
    texts = {n: dict(zip(tokens, characters(list(tokens.values())), strict=True)) for n, tokens in inputs.items()}
    shown = [texts[n][at] for n, at in zip(table["prompt"], table["position"], strict=True)]
    columns = {("input_token" if name == "input" else name): table[name] for name in table.column_names}
    return Table(table.title, {**columns, "input_token": shown}, table.provenance)
