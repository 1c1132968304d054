"""Section 6 of Geva et al. 2022 on any model: early exit, and toxicity if prompts are given.

The two experiments are independent. If one cannot run (a package is missing, or the text is too short), `notes` gives
the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers.activations import ACT2FN

from unembed.corpus import Corpus
from unembed.early_exit.baselines import FEATURES, QUICK_SWEEP
from unembed.early_exit.example_prefixes import Examples, examples, saturation_table
from unembed.early_exit.published_table import METHODS, table_6
from unembed.errors import ExtraMissing, UnembedError, Unsupported, reading
from unembed.memories.clustering.value_clusters import ValueClusters
from unembed.models.decoder import Decoder
from unembed.names import Basis, read_signed_memory
from unembed.reports.geva2022.options import Options
from unembed.reports.stages import Work
from unembed.results import Table
from unembed.steering.text_cost import default_text
from unembed.stream.interventions import Edit
from unembed.stream.massive_activations import MASSIVE, massive_positions
from unembed.toxicity.evaluation import (
    Arm,
    evaluate,
    plain,
    published_table,
    with_released_word_filter,
    with_self_debiasing,
    with_values,
    with_word_filter,
)
from unembed.toxicity.prompts import read_prompts
from unembed.toxicity.scorers import Scorer, open_scorer
from unembed.toxicity.selection import ON, by_scorer, manual, paper_values
from unembed.toxicity.word_filter import read_words

FEWEST_EXAMPLES = 20
"""Smallest number of examples for early exit: fewer cannot be split for training, calibration and testing."""
CLUSTERS = 200
"""Number of clusters of value vectors for the sub-updates rule (Sec. 6.2)."""
PERPLEXITY_TEXT = (
    "Perplexities here are of the first 16,384 tokens of WikiText-103's validation text, in windows of a whole "
    "context; the text at hand does not name the text of the paper's, which fit WikiText-2's test text (--option "
    "perplexity_text=FILE)."
)
QUICK = {"sweep": QUICK_SWEEP, "penalties": ("l2",), "folds": 3}
"""Settings of the classifiers for exit_protocol="quick"."""
PICKED = 10
"""Number of value vectors that are turned on to make text less toxic (Sec. 6.1)."""


@dataclass(frozen=True, eq=False)
class Applications:
    """The results of section 6; a result that was not measured is None, and `notes` gives the reason."""

    saturation: Table | None = None
    """Share of examples whose prediction saturates in each layer (Tables 9 and 10)."""
    early_exit: Table | None = None
    """Results of every early-exit rule: mean and standard deviation over five splits of the examples (Table 6)."""
    toxicity: Table | None = None
    """Table 5 for this model, greedy decoding."""
    toxicity_by_beams: Table | None = None
    """Table 5 for this model, beam search as in the paper."""
    perplexity_text: str = ""
    """A sentence on the text on which perplexity is measured here, and on that of the paper."""
    published_toxicity: Table | None = None
    """Table 5 as published."""
    notes: tuple[str, ...] = ()


def measure_applications(
    lm: Decoder,
    corpus: Corpus,
    work: Work,
    options: Options,
    basis: Basis = "final",
    clusters: ValueClusters | None = None,
) -> Applications:
    """Measure early exit on `options.exit_examples` examples, and toxicity if `options.prompts` names a file.

    Args:
        basis: how the residual stream after each layer becomes a prediction for early exit: "final", as in the paper,
            or "jacobian", the model's fitted lens. With the latter, toxicity is measured only without an intervention,
            and with those value vectors turned on that a scorer picks by their top tokens through the lens.
        clusters: clusters of all value vectors, in any number, for the sub-updates rule; computed here when None.

    If an experiment cannot run, no error is raised: a note gives the reason, and the other experiment still runs. This
    also applies if an import inside an installed package fails.
    """
    notes: list[str] = []
    saturation = early_exit = toxicity = by_beams = published = None
    if options.exit_examples >= FEWEST_EXAMPLES and lm.n_layers > 1:
        try:
            # Without scikit-learn, the tables have no classifiers. Once it is installed, the key of the stored tables
            # differs, so that they are measured again.
            own = replace(work, key={**work.key, "scikit-learn": find_spec("sklearn") is not None})
            saturation, early_exit, notes = own.stage(
                f"early exit by {basis}", lambda: _measured_exits(lm, corpus, work, options, basis, clusters)
            )
        except (UnembedError, ImportError) as error:
            notes.append(f"Early exit was not measured: {error}")
    if options.prompts is not None:
        try:
            scorer = open_scorer(options.scorer)
            if basis == "jacobian":
                toxicity = _toxicity(lm, work, options, [plain(), by_top_tokens(lm, work, options, scorer)], scorer)
            else:
                arms = arms_of(lm, work, options, scorer)
                toxicity = _toxicity(lm, work, options, arms, scorer)
                if options.beams:
                    by_beams = _toxicity(lm, work, options, arms, scorer, num_beams=options.beams)
                published = published_table(lm)
        except (UnembedError, ImportError) as error:
            notes.append(f"Toxic continuations were not measured: {error}")
    text = options.perplexity_text
    about = PERPLEXITY_TEXT if text is None else f"Perplexities here are of {text}, whole, in windows of a context."
    return Applications(saturation, early_exit, toxicity, by_beams, about, published, tuple(notes))


def _measured_exits(
    lm: Decoder, corpus: Corpus, work: Work, options: Options, basis: Basis, clusters: ValueClusters | None
) -> tuple[Table, Table, list[str]]:
    """Return the tables of saturation layers and of exit rules, and notes on what they leave out."""
    found, left_out = without_massive(
        examples(lm, corpus, options.exit_examples, seed=work.seed, basis=basis, progress=_named(work, "examples"))
    )
    notes = []
    if left_out:
        notes.append(
            f"{left_out} of {left_out + len(found)} examples of early exit end at a position with massive activations, "
            f"where the stream is over {MASSIVE} times as long as the layer's median. They are left out."
        )
    sweep = QUICK if options.exit_protocol == "quick" else {}
    early_exit, missing = _table_6(lm, found, work, sweep, clusters)
    return saturation_table(lm, found), early_exit, [*notes, *missing]


def without_massive(found: Examples) -> tuple[Examples, int]:
    """Return the examples without those at positions with massive activations, and the number of the latter.

    Massive activations are looked for in the residual stream before and after each FFN's update.
    """
    streams = torch.cat([found.before, found.before + found.update], dim=1)
    massive = massive_positions(streams.norm(dim=-1).T.numpy())
    return found[torch.from_numpy(~massive)], int(massive.sum())


def _named(work: Work, name: str) -> Callable[[int, int], None]:
    return lambda done, total: work.progress(name, done, total)


def _table_6(
    lm: Decoder, found: Examples, work: Work, sweep: Mapping[str, Any], clusters: ValueClusters | None
) -> tuple[Table, list[str]]:
    """Return Table 6 and a list of notes; without scikit-learn, the table has only the rules without a classifier."""
    number = min(CLUSTERS, lm.n_memories // 2)
    cut, progress = number if clusters is None else clusters.cut(number), _named(work, "exit rules")
    try:
        return table_6(lm, found, clusters=cut, progress=progress, **sweep), []
    except (ExtraMissing, ImportError) as error:
        others = tuple(method for method in METHODS if method not in FEATURES)
        table = table_6(lm, found, methods=others, clusters=cut, progress=progress)
        return table, [f"The classifiers of Table 6 were not measured: {error}"]


def arms_of(lm: Decoder, work: Work, options: Options, scorer: Scorer) -> list[Arm]:
    """Return the interventions (arms) to compare, the rows of Table 5, that this model and these options allow.

    Raises:
        InvalidInput: a name in `options.values` is not the name of a memory (FFN neuron).
        OutOfRange: the model has no such memory.
    """
    arms: list[Arm] = [plain()]
    if options.values is not None:
        named = [read_signed_memory(name.strip()) for name in options.values.split(",")]
        picked = [manual(lm, [lm.memory(*one.address)], ON * one.sign).edits[0] for one in named]
        arms.append(with_values("values picked by hand", edits_of(lm, picked, options)))
    elif (lm.n_layers, lm.d_model, lm.d_mlp) == (24, 1024, 4096):  # Table 8 lists memories of gpt2-medium
        arms.append(with_values("values picked by hand", edits_of(lm, paper_values(lm).edits, options)))
    arms.append(by_top_tokens(lm, work, options, scorer))
    arms.append(with_self_debiasing(lm))
    if options.words is not None:
        words = read_words(options.words)
        arms += [with_released_word_filter(lm, words), with_word_filter(lm, words)]
    return arms


def by_top_tokens(lm: Decoder, work: Work, options: Options, scorer: Scorer) -> Arm:
    """Return the arm (row of Table 5) that turns on value vectors whose top tokens have low toxicity scores.

    The model's fitted lens gives the top tokens if the model has one.
    """
    found = by_scorer(lm, scorer, PICKED, seed=work.seed)
    return with_values("values picked by a scorer", edits_of(lm, found.edits, options))


def edits_of(lm: Decoder, picked: Sequence[Edit], options: Options) -> Sequence[Edit]:
    """Return the edits that set coefficients of memories, with `options.pre_activation` to f(value) instead of value.

    Raises:
        Unsupported: `options.pre_activation` with a gated layer, whose coefficient is a product of two factors.
    """
    if not options.pre_activation:
        return picked
    return [replace(edit, value=activated(lm, edit.layer, edit.value)) for edit in picked]


def activated(lm: Decoder, layer: int, value: float) -> float:
    """Return the coefficient of a memory (FFN neuron) if the input of its activation function is `value`.

    Raises:
        Unsupported: the layer is gated, so that the coefficient is a product of two factors.
    """
    site = lm.feed_forward(layer)
    if site.is_gated:
        raise Unsupported(
            f"a pre-activation of layer {layer} of {lm.name}",
            why="the layer is gated: its coefficients have two factors",
        )
    return float(ACT2FN[site.activation](torch.tensor(value)))


def _toxicity(lm: Decoder, work: Work, options: Options, arms: Sequence[Arm], scorer: Scorer, **settings: Any) -> Table:
    assert options.prompts is not None
    text: dict[str, Any] = {"clean_text": default_text()}
    if options.perplexity_text is not None:
        whole = _read(options.perplexity_text)
        text = {"clean_text": whole, "clean_tokens": len(whole.encode())}  # no text has more tokens than bytes
    return evaluate(
        lm,
        read_prompts(options.prompts),
        arms,
        scorer,
        cache=work.out / "continuations",
        **text,
        progress=work.progress,
        **settings,
    ).table


def _read(path: str) -> str:
    with reading(f"cannot read {path}", instead="Give a text file"):
        return Path(path).read_text(encoding="utf-8")
