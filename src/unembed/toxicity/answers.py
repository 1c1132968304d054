"""The commands `unembed toxicity select` and `unembed toxicity evaluate`, also for the explorer."""

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
    str,
    Option(
        "Scorer of toxicity: linear (shipped), lexicon:FILE (words), stored:FILE (JSON lines with scores), or a "
        "Hugging Face text classifier."
    ),
]
_LAB = Screen("labs/toxicity")


def select_answer(
    lm: Decoder,
    *,
    method: Annotated[
        Literal["scorer", "greedy", "paper"],
        Option("Method to use; the command's description explains each."),
    ] = "scorer",
    scorer: ScorerName = "linear",
    comments: Annotated[
        Path | None,
        Option(
            "With --method greedy: CSV file with a comment and a label (1: toxic, 0: not) in each row, without a "
            "header."
        ),
    ] = None,
    values: Annotated[int, Option("Number of value vectors to select.", "n", low=1)] = 10,
    below: Annotated[
        float, Option("With --method scorer: select value vectors whose top tokens have a toxicity score below this.")
    ] = 0.1,
    lowest: Annotated[
        bool,
        Option("With --method scorer: select the value vectors with the lowest scores, not random ones below --below."),
    ] = False,
    coefficient: Coefficient = 3.0,
    budget: Annotated[
        float,
        Option("With --method greedy: let perplexity rise by at most this share; 0.17 allows 17 %.", low=0.0),
    ] = 0.17,
    reverse: Annotated[
        bool,
        Option("With --method greedy: also try negative coefficients, which suppress a value vector's top tokens."),
    ] = False,
    max_tokens: MaxTokens = 2048,
    save: SaveEdits = None,
    seed: Seed = 0,
    offline: Offline = False,
    device: Device = None,
    progress: Progress = None,
) -> Answer:
    """Select memories (FFN neurons) whose value vectors, when turned on, may make generated text less toxic.

    To turn one on is to set its coefficient to --coefficient at every token; --save writes these edits to a file.
    Methods: scorer selects random memories whose top tokens have low toxicity scores; greedy selects, with --comments,
    those that make toxic comments least probable within a limit on perplexity, and also tries two and four times the
    coefficient; paper selects the ten memories of gpt2-medium that the paper lists.

    Caution: A scorer reproduces the judgements in its training data, with which not every person would agree.
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
    """Select value vectors greedily, with labelled comments in random order as toxic and harmless text."""
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
    prompts: Annotated[Path, Option("File with one prompt on each line.")],
    edits_files: EditFiles = None,
    set_: MemoryValues = None,
    banned: Annotated[
        Path | None,
        Option("Also measure a filter that bans the words in this file, one on each line.", name="words"),
    ] = None,
    self_debiasing: Annotated[bool, Option("Also measure self-debiasing (Schick et al. 2021).")] = False,
    scorer: ScorerName = "linear",
    challenging: Annotated[bool, Option("Use only the prompts that the file marks as challenging.")] = False,
    limit: Annotated[int | None, Option("Number of prompts to use, from the start of the file.", low=1)] = None,
    new_tokens: NewTokens = 20,
    samples: Samples = 1,
    beams: Annotated[int, Option("Number of beams in generation; the paper used 3.", low=1)] = 1,
    batch: Annotated[int, Option("Number of prompts in a batch.", low=1)] = 32,
    clean_tokens: Annotated[
        int, Option("Number of WikiText tokens on which to measure perplexity; 0: do not measure it.", low=0)
    ] = 16_384,
    cache: Annotated[
        Path | None,
        Option("Folder to store continuations in, so that an interrupted run can be resumed.", metavar="DIR"),
    ] = None,
    save_texts: Annotated[Path | None, Option("Write the continuations to this file, as JSON lines.")] = None,
    seed: AnySeed = None,
    offline: Offline = False,
    device: Device = None,
    progress: Progress = None,
) -> Answer:
    """Compare the toxicity of generated text and the perplexity of the plain model, edited models and baselines.

    Each file of --edits is measured as a separate method. Prompts may also be JSON lines as in RealToxicityPrompts.

    Caution: A scorer reproduces the judgements in its training data, with which not every person would agree.
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
