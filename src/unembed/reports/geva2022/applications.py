"""Section 6 of Geva et al. 2022 on any model: early exit, and toxicity where prompts are given.

Each part stands alone: one that cannot run (a package is not installed, too little text) leaves a line that says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unembed.control.early_exit.baselines import FEATURES
from unembed.control.early_exit.examples import Examples, examples, saturation_table
from unembed.control.early_exit.table_6 import METHODS, table_6
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
from unembed.control.toxicity.scorers import Linear
from unembed.control.toxicity.selection import by_scorer, paper_values
from unembed.control.toxicity.word_filter import read_words
from unembed.corpus import Corpus
from unembed.errors import ExtraMissing, UnembedError
from unembed.models.decoder import Decoder
from unembed.reports.geva2022.options import Options
from unembed.reports.stages import Work
from unembed.results import Table

FEWEST_EXAMPLES = 20
"""Examples from which on early exit is measured: fewer leave nothing to train, calibrate and test on."""
CLUSTERS = 200
"""Of the values, for the sub-updates rule (Sec. 6.2)."""
PICKED = 10
"""Values turned on against toxic text (Sec. 6.1)."""


@dataclass(frozen=True, eq=False)
class Applications:
    """What section 6 reports; a part that was not measured is None, with a line in `notes` that says why."""

    saturation: Table | None = None
    """Layer at which the prediction settles (Tables 9 and 10)."""
    early_exit: Table | None = None
    """Every rule over five splits (Table 6)."""
    toxicity: Table | None = None
    """Table 5 for this model."""
    published_toxicity: Table | None = None
    """Table 5 as it was published."""
    notes: tuple[str, ...] = ()


def measure_applications(lm: Decoder, corpus: Corpus, work: Work, options: Options) -> Applications:
    """Early exit on `options.exit_examples` examples; toxicity where `options.prompts` names a file.

    Never raises for what a part lacks: the report keeps what the other parts gave.
    """
    notes: list[str] = []
    saturation = early_exit = toxicity = published = None
    if options.exit_examples >= FEWEST_EXAMPLES and lm.n_layers > 1:
        try:
            found = examples(lm, corpus, options.exit_examples, seed=work.seed, progress=_named(work, "examples"))
            saturation = saturation_table(lm, found)
            early_exit, missing = _table_6(lm, found, work)
            notes += missing
        except UnembedError as error:
            notes.append(f"Early exit was not measured: {error}")
    if options.prompts is not None:
        try:
            toxicity = _toxicity(lm, work, options)
            published = published_table(lm)
        except UnembedError as error:
            notes.append(f"Toxic continuations were not measured: {error}")
    return Applications(saturation, early_exit, toxicity, published, tuple(notes))


def _named(work: Work, name: str) -> Callable[[int, int], None]:
    return lambda done, total: work.progress(name, done, total)


def _table_6(lm: Decoder, found: Examples, work: Work) -> tuple[Table, list[str]]:
    """Table 6; without scikit-learn the rules that need no classifier, and a line about the others."""
    clusters = min(CLUSTERS, lm.n_layers * lm.d_mlp // 2)
    progress = _named(work, "exit rules")
    try:
        return table_6(lm, found, clusters=clusters, progress=progress), []
    except ExtraMissing as error:
        others = tuple(method for method in METHODS if method not in FEATURES)
        table = table_6(lm, found, methods=others, clusters=clusters, progress=progress)
        return table, [f"The classifiers of Table 6 were not measured: {error}"]


def _toxicity(lm: Decoder, work: Work, options: Options) -> Table:
    assert options.prompts is not None
    judge = Linear()
    arms: list[Arm] = [plain()]
    if lm.n_layers == 24 and lm.d_mlp == 4096:  # the ten values of Table 8 are rows of gpt2-medium
        arms.append(with_values("values picked by hand", paper_values(lm).edits))
    arms.append(with_values("values picked by a scorer", by_scorer(lm, judge, PICKED, seed=work.seed).edits))
    arms.append(with_self_debiasing(lm))
    if options.words is not None:
        arms.append(with_word_filter(lm, read_words(options.words)))
    return evaluate(
        lm,
        read_prompts(options.prompts),
        arms,
        judge,
        cache=work.out / "continuations",
        clean_text=default_text(),
        progress=work.progress,
    ).table
