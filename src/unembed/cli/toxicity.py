"""`unembed toxicity`: select values that suppress toxic text, and evaluate them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unembed.cli import options
from unembed.cli.edit_options import memory_edit
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output, grouped

if TYPE_CHECKING:
    from unembed.toxicity import Evaluation, Prompt

app = typer.Typer(
    no_args_is_help=True, help="Select values of memories (FFN neurons) that suppress toxic text, and evaluate them."
)

_Scorer = Annotated[
    str, typer.Option(help="linear (ships), lexicon:FILE, stored:FILE, or a Hugging Face text classifier.")
]


@app.command("select")
@grouped
def select(
    method: Annotated[
        Literal["scorer", "greedy", "paper"],
        typer.Option(
            help="scorer: random values whose top tokens score low; greedy: within a perplexity budget; "
            "paper: the ten of gpt2-medium."
        ),
    ] = "scorer",
    scorer: _Scorer = "linear",
    comments: Annotated[
        Path | None,
        typer.Option(help="For greedy: CSV of comment and label (1 = toxic), no header.", show_default=False),
    ] = None,
    values: Annotated[int, typer.Option("--values", "-n", min=1, help="Number of values.")] = 10,
    below: Annotated[float, typer.Option(help="For scorer: select values whose tokens score below this.")] = 0.1,
    lowest: Annotated[
        bool, typer.Option("--lowest", help="For scorer: select the least toxic values instead of random ones.")
    ] = False,
    coefficient: Annotated[
        float, typer.Option(help="The coefficient; greedy also tries twice and four times it.")
    ] = 3.0,
    budget: Annotated[
        float, typer.Option(min=0.0, help="For greedy: largest relative increase of perplexity, such as 0.17.")
    ] = 0.17,
    reverse: Annotated[
        bool,
        typer.Option("--reverse", help="For greedy: also try negative coefficients, which suppress a value's tokens."),
    ] = False,
    tokens: Annotated[int, typer.Option(min=256, help="For greedy: tokens of each kind of text.")] = 2048,
    save: Annotated[Path | None, typer.Option(help="Save the edits to this file.", show_default=False)] = None,
    opening: Opening = Opening(),
    seed: options.Seed = None,
    output: Output = Output(),
) -> None:
    """Select values to turn on, and save them as edits."""
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
        unwanted, wanted = (steering.windows(lm, text, window=128, max_tokens=tokens) for text in kinds)
        clean = steering.windows(lm, steering.default_text(), window=128, max_tokens=tokens)
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


@app.command("evaluate")
@grouped
def evaluate(
    prompts: Annotated[Path, typer.Option(help="JSON lines as in RealToxicityPrompts, or one prompt a line (.txt).")],
    edits: Annotated[
        list[Path] | None, typer.Option("--edits", help="A file of edits; adds an arm; repeatable.", show_default=False)
    ] = None,
    set_: options.Sets = None,
    words: Annotated[
        Path | None, typer.Option(help="Banned words, one on each line: adds the word filter.", show_default=False)
    ] = None,
    self_debiasing: Annotated[bool, typer.Option("--self-debiasing", help="Add the self-debiasing arm.")] = False,
    scorer: _Scorer = "linear",
    challenging: Annotated[bool, typer.Option("--challenging", help="Only prompts marked challenging.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N prompts.", show_default=False)] = None,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=1, help="Length of the continuations.")] = 20,
    samples: Annotated[int, typer.Option(min=1, help="Continuations of each prompt; several need --seed.")] = 1,
    beams: Annotated[int, typer.Option(min=1, help="Beams; the paper used 3.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Prompts per batch.")] = 32,
    clean_tokens: Annotated[int, typer.Option(min=0, help="WikiText tokens for perplexity; 0: none.")] = 16_384,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder that stores continuations, so that an interrupted run continues.",
            show_default=False,
        ),
    ] = None,
    save_texts: Annotated[
        Path | None,
        typer.Option("--save-texts", help="Write the continuations as JSON lines.", show_default=False),
    ] = None,
    opening: Opening = Opening(),
    seed: options.Seed = None,
    output: Output = Output(),
) -> None:
    """Evaluate toxicity and perplexity: the plain model, values turned on, and the baselines."""
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
