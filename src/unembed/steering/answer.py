"""The analysis `steer`: continue a prompt with and without edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Exhibit, Screen, Section
from unembed.errors import InvalidInput
from unembed.index import cached_index
from unembed.memories import usual_size
from unembed.memories.token_ranking import RankedValue, firing, promoting, words_of
from unembed.models.decoder import Decoder
from unembed.names import SignedMemory
from unembed.options import AnySeed, Coefficient, Edits, NewTokens, Option, Prompt, Samples, SaveEdits, Tokens
from unembed.results import check_writable, format_number, format_percent
from unembed.steering.continuations import chosen_edits, ranked_values_table, steer
from unembed.steering.edit_files import save_edits
from unembed.steering.text_cost import default_text
from unembed.stream.interventions import Edit


def steer_answer(
    lm: Decoder,
    prompt: Prompt,
    *,
    edits: Edits = (),
    promote: Annotated[str | None, Option('Words to promote, such as "safe, thank".')] = None,
    suppress: Annotated[str | None, Option("Words to suppress, separated by commas.")] = None,
    per_word: Annotated[
        int, Option("Number of value vectors to edit for each word.", low=1, aliases=("--values",))
    ] = 2,
    coefficient: Coefficient = 3.0,
    in_usual: Annotated[
        bool,
        Option(
            "Give --coefficient in units of each memory's typical coefficient on text, for the memories that --promote "
            "finds.",
            name="times-usual",
        ),
    ] = False,
    factor: Annotated[
        float, Option("Multiply the coefficients of memories that --suppress finds by this factor; 0 turns them off.")
    ] = 0.0,
    save: SaveEdits = None,
    triggers: Annotated[
        bool, Option("For the memories found by --promote and --suppress, show the texts on which they fire most.")
    ] = False,
    new_tokens: NewTokens = 20,
    samples: Samples = 1,
    tokens: Tokens = 8,
    cost_tokens: Annotated[
        int, Option("Number of tokens on which to measure the perplexity cost; 0: do not measure it.", low=0)
    ] = 4096,
    seed: AnySeed = None,
    follow_config: Annotated[
        bool,
        Option(
            "Use the settings in the model's generation_config.json (penalties, suppressed tokens, beams).",
            name="generation-config",
        ),
    ] = False,
) -> Answer:
    """Continue a prompt with and without edits to memories (FFN neurons), heads, layers or the residual stream.

    Edits come from options, from a file, or from a search for value vectors by the words they promote. Both
    continuations use the same seed (greedy without --seed). The cost of the edits is measured as perplexity on the
    WikiText sample in the package.

    Caution: One continuation with edits and one without are one sample each. The perplexity is measured on other text,
    and does not tell how fluent these continuations are.
    """
    if not edits and not promote and not suppress:
        raise InvalidInput(
            "steering without a change",
            why="there is no edit, and no word to promote or suppress",
            instead="Give --set, --scale, --add-vector, --promote, --suppress or --edits",
        )
    if save is not None:
        check_writable(save)
    text = default_text()
    raised, lowered = words_of(promote or ""), words_of(suppress or "")
    up, down = promoting(lm, raised, per_word), promoting(lm, lowered, per_word)
    if triggers:
        fires = _fires(lm, [*up, *down], text)
        up, down = ([replace(one, triggers=fires[_name(one)]) for one in part] for part in (up, down))
    chosen = chosen_edits(up, down, to=coefficient, by=factor)
    changes = [*edits, *(_in_usual(lm, chosen) if in_usual else chosen)]
    steered = steer(
        lm,
        prompt,
        changes,
        max_new_tokens=new_tokens,
        seed=seed,
        samples=samples,
        top=tokens,
        promote=raised,
        suppress=lowered,
        cost_text=text if cost_tokens else None,
        cost_tokens=cost_tokens,
        generation_config=lm.hf.generation_config if follow_config else None,
    )
    if save is not None:
        save_edits(changes, save, model=lm.name)
    found = ranked_values_table(lm, up + down) if up or down else None
    memories = found or steered.values
    exhibits = [] if steered.wanted is None else [Exhibit("wanted", steered.wanted)]
    exhibits += [Exhibit("values", memories)] if len(memories) else []
    exhibits += [Exhibit("next_tokens", steered.next_tokens), Exhibit("continuations", steered.to_table())]
    before, after, cost = steered.perplexity_plain, steered.perplexity_edited, ()
    if before is not None and after is not None:
        cost = (
            f"Perplexity on WikiText: {format_number(before, decimals=2)} plain, {format_number(after, decimals=2)} "
            f"edited ({format_percent(after / before - 1, signed=True)}).",
        )
    title = f"Steering {lm.name}"
    data = {
        "schema": "unembed.steer/1",
        "prompt": prompt,
        "edits": [edit.to_dict() for edit in steered.edits],
        "plain": list(steered.plain),
        "edited": list(steered.edited),
        "perplexity": {"plain": before, "edited": after},
        "found": None if found is None else found.to_dict(),
        "wanted": None if steered.wanted is None else steered.wanted.to_dict(),
        "values": steered.values.to_dict(),
        "next_tokens": steered.next_tokens.to_dict(),
    }
    screen = Screen("intervene", {"prompt": prompt}, changes)
    section = Section(title, cost, tuple(exhibits))
    return Answer(title, (section,), steered.next_tokens.provenance, "continuations", data, screen)


def _in_usual(lm: Decoder, chosen: list[Edit]) -> list[Edit]:
    """Multiply each coefficient that an edit sets by the memory's typical coefficient; keep other edits unchanged."""
    index = cached_index(lm)
    return [
        replace(one, value=one.value * usual_size(lm, one.layer, one.index, index)[0]) if one.action == "set" else one
        for one in chosen
    ]


def _fires(lm: Decoder, ranked: list[RankedValue], text: str) -> Mapping[Any, tuple[str, ...]]:
    """Return, for each memory in `ranked`, the lines of a text on which it fires most."""
    lines = [line for line in text.splitlines() if len(line) > 40][:64]
    # A memory that promotes several of the words occurs several times in `ranked`.
    names = list(dict.fromkeys(map(_name, ranked)))
    return firing(lm, names, lines) if names else {}


def _name(value: RankedValue) -> SignedMemory:
    return SignedMemory(value.layer, value.index, value.pole)


ANALYSIS = Analysis(
    "steer",
    steer_answer,
    Needs.MODEL,
    Cost.SECONDS,
    'unembed steer "The men were very" --promote "happy, proud" --seed 1',
)
