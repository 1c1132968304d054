"""`unembed steer`: one prompt continued with and without edits."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli.command import command
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, TextOutput
from unembed.names import SignedMemory
from unembed.options import AnySeed, Coefficient, NewTokens, Option, Prompt, Samples, Tokens

if TYPE_CHECKING:
    from unembed.results import Table
    from unembed.steering import SteeringResult


@command("steer", 'unembed steer "The men were very" --promote "happy, proud" --seed 1')
def steer(
    prompt: Prompt,
    edits: EditOptions = EditOptions(),
    promote: Annotated[str | None, Option('Words to promote, such as "safe, thank".')] = None,
    suppress: Annotated[str | None, Option("Words to suppress.")] = None,
    per_word: Annotated[int, Option("Number of values for each word.", low=1, aliases=("--values",))] = 2,
    coefficient: Coefficient = 3.0,
    factor: Annotated[float, Option("Factor for the coefficients of values to suppress; 0 silences them.")] = 0.0,
    save: Annotated[Path | None, Option("Save the edits to this file.")] = None,
    triggers: Annotated[bool, Option("Show the texts on which these values fire most.")] = False,
    new_tokens: NewTokens = 20,
    samples: Samples = 1,
    tokens: Tokens = 8,
    cost_tokens: Annotated[int, Option("Tokens for the perplexity cost; 0: do not measure.", low=0)] = 4096,
    opening: Opening = Opening(),
    seed: AnySeed = None,
    output: TextOutput = TextOutput(),
) -> None:
    """Continue a prompt with and without edits to memories (FFN neurons), heads, layers or the stream.

    Edits come from options, from a file, or from a search for values by the words they promote. Both continuations use
    the same seed (greedy without --seed); the cost is perplexity on the shipped WikiText.
    """
    if not edits and not promote and not suppress:
        raise typer.BadParameter(
            "nothing to steer with; give --set, --scale, --add-vector, --promote, --suppress or --edits"
        )
    from unembed.results import check_writable

    if save is not None:
        check_writable(save)
    lm = opening.open(seed)
    from unembed import steering

    changes = edits.edits(lm)
    text = steering.default_text() if cost_tokens or triggers else None
    up = steering.promoting(lm, steering.words_of(promote), per_word) if promote else []
    down = steering.promoting(lm, steering.words_of(suppress), per_word) if suppress else []
    if triggers and text is not None and (ranked := up + down):
        lines = [line for line in text.splitlines() if len(line) > 40][:64]
        fires = steering.firing(lm, [SignedMemory(p.layer, p.index, p.pole) for p in ranked], lines)
        up, down = (
            [replace(p, triggers=fires[SignedMemory(p.layer, p.index, p.pole)]) for p in part] for part in (up, down)
        )
    changes += steering.chosen_edits(up, down, to=coefficient, by=factor)
    steered = steering.steer(
        lm,
        prompt,
        changes,
        max_new_tokens=new_tokens,
        seed=seed,
        samples=samples,
        top=tokens,
        cost_text=text if cost_tokens else None,
        cost_tokens=cost_tokens,
    )
    if save is not None:
        steering.save_edits(changes, save, model=lm.name)
    found_table = steering.ranked_values_table(lm, up + down) if up or down else None
    if output.as_json:
        sys.stdout.write(json.dumps(_data(steered, found_table), ensure_ascii=False) + "\n")
    else:
        _show(steered, found_table, output.plain)
        print_explorer_link(opening, "intervene", prompt=prompt, edits=changes)


def _data(steered: SteeringResult, found: Table | None) -> dict[str, Any]:
    return {
        "schema": "unembed.steer/1",
        "prompt": steered.prompt,
        "edits": [edit.to_dict() for edit in steered.edits],
        "plain": list(steered.plain),
        "edited": list(steered.edited),
        "perplexity": {"plain": steered.perplexity_plain, "edited": steered.perplexity_edited},
        "found": None if found is None else found.to_dict(),
        "values": steered.values.to_dict(),
        "next_tokens": steered.next_tokens.to_dict(),
    }


def _show(steered: SteeringResult, found: Table | None, plain: bool) -> None:
    from rich.console import Group
    from rich.text import Text

    from unembed.cli.output import show
    from unembed.results import visible_rich

    memories = found if found is not None else steered.values
    parts: list[Any] = [memories, Text(), steered.next_tokens] if len(memories) else [steered.next_tokens]
    parts.append(Text())
    for name, texts in (("plain ", steered.plain), ("edited", steered.edited)):
        for text in texts:
            parts.append(Text.assemble((f"{name}  ", "bold"), visible_rich(steered.prompt + text, prose=True)))
    if steered.perplexity_plain is not None and steered.perplexity_edited is not None:
        change = steered.perplexity_edited / steered.perplexity_plain - 1
        cost = f"{steered.perplexity_plain:.2f} plain, {steered.perplexity_edited:.2f} edited ({change:+.1%})"
        parts.append(Text(f"\nPerplexity on WikiText: {cost}"))
    show(lambda _: Group(*parts), plain=plain)
