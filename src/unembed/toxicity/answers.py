"""Less toxic text as questions for the command line and the explorer: select values, and evaluate them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Screen
from unembed.errors import InvalidInput
from unembed.index import cached_index
from unembed.memories import sized
from unembed.models.decoder import Decoder
from unembed.options import (
    AnySeed,
    Coefficient,
    Device,
    EditFiles,
    MaxTokens,
    MemoryValues,
    NewTokens,
    Offline,
    Option,
    Progress,
    Samples,
    SaveEdits,
    Seed,
)
from unembed.results import check_writable, make_folder, write_whole
from unembed.steering import default_text, load_edits, save_edits, windows
from unembed.stream.interventions import set_coefficient
from unembed.toxicity.comments import read_comments
from unembed.toxicity.evaluation import Evaluation, evaluate, plain, with_self_debiasing, with_values, with_word_filter
from unembed.toxicity.prompts import Prompt, read_prompts
from unembed.toxicity.scorers import open_scorer
from unembed.toxicity.selection import Selection, by_scorer, greedy, paper_values
from unembed.toxicity.word_filter import read_words

ScorerName = Annotated[
    str, Option("linear (shipped with unembed), lexicon:FILE, stored:FILE, or a Hugging Face text classifier.")
]
_LAB = Screen("labs/toxicity")


def select_answer(
    lm: Decoder,
    *,
    method: Annotated[Literal["scorer", "greedy", "paper"], Option("The method; each is described above.")] = "scorer",
    scorer: ScorerName = "linear",
    comments: Annotated[Path | None, Option("For greedy: CSV of comment and label (1 = toxic), no header.")] = None,
    values: Annotated[int, Option("Number of value vectors to select.", "n", low=1)] = 10,
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
    save: SaveEdits = None,
    seed: Seed = 0,
    offline: Offline = False,
    device: Device = None,
    progress: Progress = None,
) -> Answer:
    """Select values to turn on, and save them as edits.

    Methods: scorer, random values whose top tokens score low; greedy, within a perplexity budget, which also tries
    twice and four times the coefficient and needs --comments; paper, the ten of gpt2-medium.

    Caution: A scorer judges as the texts that it was fitted on were judged, which is not how every person would.
    """
    if method != "greedy" and comments is not None:
        raise InvalidInput(f"comments with method {method}", why="only greedy reads them", instead="Leave them out")
    if save is not None:
        check_writable(save)
    if method == "scorer":
        judge = open_scorer(scorer, offline=offline, device=device)
        chosen = by_scorer(lm, judge, values, below=below, lowest=lowest, seed=seed, to=coefficient)
    elif method == "paper":
        chosen = paper_values(lm, coefficient)
    else:
        strengths = tuple(sign * times * coefficient for sign in ((1, -1) if reverse else (1,)) for times in (1, 2, 4))
        chosen = _greedy(lm, comments, values, budget, strengths, max_tokens, seed, progress)
    if save is not None:
        save_edits(chosen.edits, save, model=lm.name)
    return Answer.of_table(chosen.table, screen=_LAB)


def _greedy(
    lm: Decoder,
    comments: Path | None,
    values: int,
    budget: float,
    strengths: tuple[float, ...],
    max_tokens: int,
    seed: int,
    progress: Progress,
) -> Selection:
    """Select values greedily, on labelled comments in random order.

    Raises:
        InvalidInput: there are no comments, or all have one label.
    """
    if comments is None:
        raise InvalidInput("method greedy", why="it needs labelled text", instead="Give --comments FILE")
    texts, labels = read_comments(comments)
    if len(set(labels)) < 2:
        raise InvalidInput(f"the comments in {comments}", why="all have the same label, and greedy needs both labels")
    order = random.Random(seed).sample(range(len(texts)), len(texts))
    kinds = ["\n".join(texts[i] for i in order if labels[i] == kind) for kind in (1, 0)]
    unwanted, wanted = (windows(lm, text, window=128, max_tokens=max_tokens) for text in kinds)
    clean = windows(lm, default_text(), window=128, max_tokens=max_tokens)
    note = None if progress is None else lambda done, total: progress("values", done, total)
    return greedy(lm, unwanted, clean, wanted=wanted, n=values, budget=budget, strengths=strengths, progress=note)


def evaluate_answer(
    lm: Decoder,
    *,
    prompts: Annotated[Path, Option("A file with a prompt on each line.")],
    edits_files: EditFiles = None,
    set_: MemoryValues = None,
    banned: Annotated[
        Path | None,
        Option("File of banned words, one on each line; a filter of these words is measured too.", name="words"),
    ] = None,
    self_debiasing: Annotated[bool, Option("Also measure self-debiasing.")] = False,
    scorer: ScorerName = "linear",
    challenging: Annotated[bool, Option("Only prompts marked challenging.")] = False,
    limit: Annotated[int | None, Option("Only the first N prompts.", low=1)] = None,
    new_tokens: NewTokens = 20,
    samples: Samples = 1,
    beams: Annotated[int, Option("Beams; the paper used 3.", low=1)] = 1,
    batch: Annotated[int, Option("Prompts per batch.", low=1)] = 32,
    clean_tokens: Annotated[int, Option("WikiText tokens for perplexity; 0: none.", low=0)] = 16_384,
    cache: Annotated[
        Path | None,
        Option("Folder that stores continuations, so that an interrupted run can be resumed.", metavar="DIR"),
    ] = None,
    save_texts: Annotated[Path | None, Option("Write the continuations as JSON lines.")] = None,
    seed: AnySeed = None,
    offline: Offline = False,
    device: Device = None,
    progress: Progress = None,
) -> Answer:
    """Evaluate toxicity and perplexity: the plain model, values turned on, and the baselines.

    Each file of --edits is one arm. Prompts may also be JSON lines as in RealToxicityPrompts.

    Caution: A scorer judges as the texts that it was fitted on were judged, which is not how every person would.
    """
    if save_texts is not None:
        check_writable(save_texts)
    if cache is not None:
        make_folder(cache)
    prompt_list = read_prompts(prompts, challenging_only=challenging, limit=limit)
    judge = open_scorer(scorer, offline=offline, device=device)
    filtered = read_words(banned) if banned is not None else None
    arms = [plain()]
    if set_:
        index = cached_index(lm) if any(one.in_usual for one in set_) else None
        picked = [set_coefficient(one.layer, one.index, sized(lm, one, index)[0]) for one in set_]
        arms.append(with_values("values picked by hand", picked))
    arms += [with_values(path.stem, load_edits(path, model=lm.name)) for path in edits_files or []]
    if filtered is not None:
        arms.append(with_word_filter(lm, filtered))
    if self_debiasing:
        arms.append(with_self_debiasing(lm))
    evaluation = evaluate(
        lm,
        prompt_list,
        arms,
        judge,
        cache=cache,
        samples=samples,
        seed=seed,
        new_tokens=new_tokens,
        batch=batch,
        clean_text=default_text() if clean_tokens else None,
        clean_tokens=clean_tokens,
        progress=progress,
        **({"num_beams": beams} if beams > 1 else {}),
    )
    if save_texts is not None:
        write_whole(save_texts, "".join(_lines(evaluation, prompt_list)))
    return Answer.of_table(evaluation.table, screen=_LAB)


def _lines(evaluation: Evaluation, prompt_list: Sequence[Prompt]) -> list[str]:
    rows: list[str] = []
    for arm, texts in evaluation.continuations.items():
        for i, (prompt, own) in enumerate(zip(prompt_list, texts, strict=True)):
            for j, text in enumerate(own):
                scores = {name: float(values[i, j]) for name, values in evaluation.scores[arm].items()}
                rows.append(json.dumps({"arm": arm, "prompt": prompt.text, "text": text, **scores}) + "\n")
    return rows


ANALYSES = (
    Analysis(
        "toxicity select", select_answer, Needs.MODEL, Cost.MINUTES,
        "unembed toxicity select --values 10 --seed 0 --save values.json",
    ),
    Analysis(
        "toxicity evaluate", evaluate_answer, Needs.MODEL, Cost.MINUTES,
        "unembed toxicity evaluate --prompts prompts.jsonl --edits values.json --cache runs",
    ),
)  # fmt: skip
