"""`unembed toxicity`: select values that suppress toxic text, and evaluate them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unembed.cli.command import command
from unembed.cli.edit_options import EditFiles, Sets, memory_edit
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output
from unembed.options import AnySeed, Coefficient, MaxTokens, NewTokens, Option, Samples

if TYPE_CHECKING:
    from unembed.toxicity import Evaluation, Prompt

_Scorer = Annotated[str, Option("linear (ships), lexicon:FILE, stored:FILE, or a Hugging Face text classifier.")]


@command("toxicity select", "unembed toxicity select --values 10 --seed 0 --save values.json")
def select(
    method: Annotated[Literal["scorer", "greedy", "paper"], Option("The method; each is described above.")] = "scorer",
    scorer: _Scorer = "linear",
    comments: Annotated[Path | None, Option("For greedy: CSV of comment and label (1 = toxic), no header.")] = None,
    values: Annotated[int, Option("Number of values.", "n", low=1)] = 10,
    below: Annotated[float, Option("For scorer: select values whose tokens score below this.")] = 0.1,
    lowest: Annotated[bool, Option("For scorer: select the least toxic values instead of random ones.")] = False,
    coefficient: Coefficient = 3.0,
    budget: Annotated[
        float, Option("For greedy: largest relative increase of perplexity, such as 0.17.", low=0.0)
    ] = 0.17,
    reverse: Annotated[
        bool, Option("For greedy: also try negative coefficients, which suppress a value's tokens.")
    ] = False,
    max_tokens: MaxTokens = 2048,
    save: Annotated[Path | None, Option("Save the edits to this file.")] = None,
    opening: Opening = Opening(),
    seed: AnySeed = None,
    output: Output = Output(),
) -> None:
    """Select values to turn on, and save them as edits.

    Methods: scorer, random values whose top tokens score low; greedy, within a perplexity budget, which also tries
    twice and four times the coefficient and needs --comments; paper, the ten of gpt2-medium.
    """
    if method == "greedy" and comments is None:
        raise typer.BadParameter("greedy needs labelled text; give --comments FILE")
    if method != "greedy" and comments is not None:
        raise typer.BadParameter(f"--comments applies to --method greedy only, not to {method}")
    from unembed import steering, toxicity
    from unembed.results import check_writable

    if save is not None:
        check_writable(save)
    judge = toxicity.open_scorer(scorer, offline=opening.offline, device=opening.device) if method == "scorer" else None
    labelled = toxicity.read_comments(comments) if method == "greedy" and comments is not None else None
    if labelled is not None and len(set(labelled[1])) < 2:
        raise typer.BadParameter("all comments have one label; greedy needs both", param_hint="--comments")
    lm = opening.open(seed)
    if judge is not None:
        chosen = toxicity.by_scorer(lm, judge, values, below=below, lowest=lowest, seed=seed or 0, to=coefficient)
    elif labelled is None:
        chosen = toxicity.paper_values(lm, coefficient)
    else:
        texts, labels = labelled
        order = random.Random(seed or 0).sample(range(len(texts)), len(texts))
        kinds = ["\n".join(texts[i] for i in order if labels[i] == kind) for kind in (1, 0)]
        unwanted, wanted = (steering.windows(lm, text, window=128, max_tokens=max_tokens) for text in kinds)
        clean = steering.windows(lm, steering.default_text(), window=128, max_tokens=max_tokens)
        show: Callable[[int, int], None] = lambda done, total: _progress("value", done, total)  # noqa: E731
        strengths = tuple(sign * times * coefficient for sign in ((1, -1) if reverse else (1,)) for times in (1, 2, 4))
        chosen = toxicity.greedy(
            lm, unwanted, clean, wanted=wanted, n=values, budget=budget, strengths=strengths, progress=show
        )
    if save is not None:
        steering.save_edits(chosen.edits, save, model=lm.name)
    output.deliver(chosen.table)
    if output.for_terminal:
        print_explorer_link(opening, "labs/toxicity")


def _progress(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{what} {done} of {total}", end="\n" if done == total else "", file=sys.stderr)


@command("toxicity evaluate", "unembed toxicity evaluate --prompts prompts.jsonl --edits values.json --cache runs")
def evaluate(
    *,
    prompts: Annotated[Path, Option("A file with a prompt on each line.")],
    edits: EditFiles = None,
    set_: Sets = None,
    words: Annotated[Path | None, Option("Banned words, one on each line: adds the word filter.")] = None,
    self_debiasing: Annotated[bool, Option("Add the self-debiasing arm.")] = False,
    scorer: _Scorer = "linear",
    challenging: Annotated[bool, Option("Only prompts marked challenging.")] = False,
    limit: Annotated[int | None, Option("Only the first N prompts.", low=1)] = None,
    new_tokens: NewTokens = 20,
    samples: Samples = 1,
    beams: Annotated[int, Option("Beams; the paper used 3.", low=1)] = 1,
    batch: Annotated[int, Option("Prompts per batch.", low=1)] = 32,
    clean_tokens: Annotated[int, Option("WikiText tokens for perplexity; 0: none.", low=0)] = 16_384,
    cache: Annotated[
        Path | None,
        Option("Folder that stores continuations, so that an interrupted run continues.", metavar="DIR"),
    ] = None,
    save_texts: Annotated[Path | None, Option("Write the continuations as JSON lines.")] = None,
    opening: Opening = Opening(),
    seed: AnySeed = None,
    output: Output = Output(),
) -> None:
    """Evaluate toxicity and perplexity: the plain model, values turned on, and the baselines.

    Each file of --edits is one arm. Prompts may also be JSON lines as in RealToxicityPrompts.
    """
    numbers = [memory_edit(text, "--set") for text in set_ or []]
    import unembed
    from unembed import steering, toxicity
    from unembed.results import check_writable, make_folder, write_whole

    if save_texts is not None:
        check_writable(save_texts)
    if cache is not None:
        make_folder(cache)
    prompt_list = toxicity.read_prompts(prompts, challenging_only=challenging, limit=limit)
    judge = toxicity.open_scorer(scorer, offline=opening.offline, device=opening.device)
    banned = toxicity.read_words(words) if words is not None else None
    lm = opening.open(seed)
    arms = [toxicity.plain()]
    if numbers:
        chosen = [unembed.set_coefficient(*one) for one in numbers]
        arms.append(toxicity.with_values("values picked by hand", chosen))
    arms += [toxicity.with_values(path.stem, steering.load_edits(path, model=lm.name)) for path in edits or []]
    if banned is not None:
        arms.append(toxicity.with_word_filter(lm, banned))
    if self_debiasing:
        arms.append(toxicity.with_self_debiasing(lm))
    evaluation = toxicity.evaluate(
        lm,
        prompt_list,
        arms,
        judge,
        cache=cache,
        samples=samples,
        seed=seed,
        new_tokens=new_tokens,
        batch=batch,
        clean_text=steering.default_text() if clean_tokens else None,
        clean_tokens=clean_tokens,
        progress=_progress,
        **({"num_beams": beams} if beams > 1 else {}),
    )
    if save_texts is not None:
        write_whole(save_texts, "".join(_lines(evaluation, prompt_list)))
    output.deliver(evaluation.table)
    if output.for_terminal:
        print_explorer_link(opening, "labs/toxicity")


def _lines(evaluation: Evaluation, prompt_list: Sequence[Prompt]) -> list[str]:
    rows: list[str] = []
    for arm, texts in evaluation.continuations.items():
        for i, (prompt, own) in enumerate(zip(prompt_list, texts, strict=True)):
            for j, text in enumerate(own):
                scores = {name: float(values[i, j]) for name, values in evaluation.scores[arm].items()}
                rows.append(json.dumps({"arm": arm, "prompt": prompt.text, "text": text, **scores}) + "\n")
    return rows
