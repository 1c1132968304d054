"""The tables of section 6 of Geva et al. 2022 for any model: early exit always, toxicity where prompts are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unembed.control.early_exit.examples import examples, saturation_table
from unembed.control.early_exit.table_6 import SEEDS, table_6
from unembed.control.perplexity import default_text
from unembed.control.toxicity.evaluation import (
    Arm,
    evaluate,
    plain,
    published_table,
    with_self_debiasing,
    with_values,
    with_word_filter,
)
from unembed.control.toxicity.prompts import read_prompts
from unembed.control.toxicity.scorers import Linear, Scorer
from unembed.control.toxicity.selection import by_scorer
from unembed.control.toxicity.word_filter import read_words
from unembed.models.decoder import Decoder
from unembed.results import Table
from unembed.stream.interventions import Edit


@dataclass(frozen=True, eq=False)
class Section6:
    """What section 6 reports, beside what was published."""

    saturation: Table
    """Layer at which the prediction settles (Tables 9 and 10)."""
    early_exit: Table
    """Every rule over five seeds (Table 6)."""
    published_toxicity: Table
    """Table 5 as it was published."""
    toxicity: Table | None
    """Table 5 for this model; None where no prompts were given."""


def section_6(
    lm: Decoder,
    corpus: Any = None,
    *,
    n: int = 2000,
    seed: int = 0,
    seeds: Sequence[int] = SEEDS,
    clusters: int = 200,
    prompts: str | Path | None = None,
    words: str | Path | None = None,
    edits: Sequence[Edit] = (),
    scorer: Scorer | None = None,
    cache: str | Path | None = None,
    limit: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Section6:
    """The tables of section 6.

    Args:
        lm: the model.
        corpus: what `unembed.corpus.open_corpus` takes; for early exit.
        n: examples for early exit; the paper took 10,000.
        seed: of the examples and of values picked by a scorer.
        seeds: of the five splits.
        clusters: of the values.
        prompts: a file as `toxicity.read_prompts` takes it; without it toxicity is not measured.
        words: banned words, for the word filter; without it that arm is left out.
        edits: values picked by hand; without them that arm is left out.
        scorer: says how toxic a text is; the offline linear one by default.
        cache: folder for continuations.
        limit: the first so many prompts.
        progress: called with what is being done, steps done and steps in all.
    """

    def told(what: str) -> Callable[[int, int], None] | None:
        tell = progress
        return None if tell is None else lambda done, total: tell(what, done, total)

    clusters = min(clusters, lm.n_layers * lm.d_mlp // 2)
    found = examples(lm, corpus, n, seed=seed, progress=told("examples"))
    exits = table_6(lm, found, seeds=seeds, clusters=clusters, progress=told("exit rules"))
    measured = None
    if prompts is not None:
        judge = scorer or Linear()
        arms: list[Arm] = [plain()]
        arms += [with_values("values picked by hand", edits)] if edits else []
        arms.append(with_values("values picked by a scorer", by_scorer(lm, judge, 10, seed=seed).edits))
        arms.append(with_self_debiasing(lm))
        arms += [with_word_filter(lm, read_words(words))] if words is not None else []
        asked = read_prompts(prompts, limit=limit)
        measured = evaluate(lm, asked, arms, judge, cache=cache, clean_text=default_text(), progress=progress).table
    return Section6(saturation_table(lm, found), exits, published_table(lm), measured)
