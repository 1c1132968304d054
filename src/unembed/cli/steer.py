"""`unembed steer`: one prompt continued with and without edits."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli import options
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, TextOutput, grouped

if TYPE_CHECKING:
    from unembed.results import Table
    from unembed.steering import SteeringResult

_STEERING = "Steering"


@grouped
def steer(
    prompt: options.Prompt,
    edits: EditOptions = EditOptions(),
    promote: Annotated[
        str | None,
        typer.Option(help='Words to promote, such as "safe, thank".', rich_help_panel=_STEERING, show_default=False),
    ] = None,
    suppress: Annotated[
        str | None, typer.Option(help="Words to suppress.", rich_help_panel=_STEERING, show_default=False)
    ] = None,
    values: Annotated[int, typer.Option(min=1, help="Number of values for each word.", rich_help_panel=_STEERING)] = 2,
    coefficient: Annotated[
        float, typer.Option(help="Coefficient of values to promote.", rich_help_panel=_STEERING)
    ] = 3.0,
    factor: Annotated[
        float,
        typer.Option(
            help="Factor for the coefficients of values to suppress; 0 silences them.", rich_help_panel=_STEERING
        ),
    ] = 0.0,
    save: Annotated[
        Path | None, typer.Option(help="Save the edits to this file.", rich_help_panel=_STEERING, show_default=False)
    ] = None,
    triggers: Annotated[
        bool,
        typer.Option("--triggers", help="Show the texts on which these values fire most.", rich_help_panel=_STEERING),
    ] = False,
    new_tokens: Annotated[int, typer.Option("--new-tokens", "-n", min=1, help="Tokens to generate.")] = 20,
    samples: Annotated[
        int, typer.Option(min=1, help="Continuations with and without edits; more than one needs --seed.")
    ] = 1,
    top: options.Top = 8,
    cost_tokens: Annotated[int, typer.Option(min=0, help="Tokens for the perplexity cost; 0: do not measure.")] = 4096,
    opening: Opening = Opening(),
    seed: options.Seed = None,
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
    up = steering.promoting(lm, steering.words_of(promote), values) if promote else []
    down = steering.promoting(lm, steering.words_of(suppress), values) if suppress else []
    if triggers and text is not None and (ranked := up + down):
        lines = [line for line in text.splitlines() if len(line) > 40][:64]
        fires = steering.firing(lm, [(p.layer, p.index) for p in ranked], lines)
        up, down = ([replace(p, triggers=fires[p.layer, p.index]) for p in part] for part in (up, down))
    changes += steering.chosen_edits(up, down, to=coefficient, by=factor)
    steered = steering.steer(
        lm,
        prompt,
        changes,
        max_new_tokens=new_tokens,
        seed=seed,
        samples=samples,
        top=top,
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
