"""Find patterns in the triggers of sampled keys, by rules and by a judge; the rules also search random prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unembed.annotation.judge import judge_patterns, require_judge
from unembed.annotation.rules import RULES
from unembed.concepts.value_concepts import model_classes
from unembed.corpus.token_stream import TokenStream
from unembed.models.decoder import Decoder
from unembed.reports.geva2021 import patterns
from unembed.reports.geva2021.annotator_agreement import kappas, labels_of, rule_labels
from unembed.reports.geva2021.options import Options
from unembed.reports.geva2021.triggers import KeyTriggers
from unembed.reports.stages import Work

Arrays = dict[str, np.ndarray]

COLUMNS = (
    *("layer", "index", "prefixes", "n_shallow", "n_semantic"),
    *("shallow", "both", "semantic", "none", "described"),
)


def finder(lm: Decoder, text: TokenStream, excluded: np.ndarray, seed: int, options: Options) -> patterns.Finder:
    """Return a `Finder` of patterns that compares prefixes with random prefixes of the corpus.

    Args:
        excluded: positions at which no random prefix ends, because of massive activations.
    """
    kinds = ("semantic", "names", *(("embedding",) if options.semantic == "both" else ()))
    everything = np.setdiff1d(text.prefix_positions(), excluded)
    random = np.random.default_rng([seed, 3])
    drawn = random.choice(everything, min(patterns.REFERENCE, len(everything)), replace=False)
    classes = model_classes(lm, options.semantic == "both")
    return patterns.Finder.of([_body(text, p) for p in drawn.tolist()], classes, kinds)


def by_rule(
    lm: Decoder, text: TokenStream, triggers: KeyTriggers, excluded: np.ndarray, work: Work, options: Options
) -> Arrays:
    """Return the share of prefixes with each kind of pattern, as columns of a table.

    The rows are the sampled keys, and as many sets of random prefixes (their layer is -1), none of which ends at the
    `excluded` positions.
    """

    def compute() -> Arrays:
        work.progress("looking for patterns", 0, 1)
        random = np.random.default_rng([work.seed, 2])
        everything = np.setdiff1d(text.prefix_positions(), excluded)
        rules = finder(lm, text, excluded, work.seed, options)
        keys = _sampled(triggers, work, options)
        sets = [(key, triggers.positions[triggers.row(*key)][: options.shown]) for key in keys]
        # Sets of random prefixes (layer -1) are searched too, to show how many patterns the rules find by chance.
        sets += [((-1, i), random.choice(everything, min(options.shown, len(everything)))) for i in range(len(keys))]
        rows = []
        for done, (key, places) in enumerate(sets):
            prefixes = [_body(text, p) for p in places.tolist() if p >= 0]
            found = rules.patterns(prefixes)
            described = [f"{patterns.described(p, rules.classes, lm.token_strings)} ({len(p.members)})" for p in found]
            rows.append(_row(key, len(prefixes), found, described))
            work.progress("looking for patterns", done + 1, len(sets))
        return _columns(rows)

    return work.stage("patterns", compute)


def by_judge(
    lm: Decoder, text: TokenStream, triggers: KeyTriggers, excluded: np.ndarray, work: Work, options: Options
) -> dict[str, Any]:
    """Return the patterns that the judge finds for the same keys, and Cohen's kappa between the judge and the rules."""
    judge = require_judge(options.judge)

    def compute() -> dict[str, Any]:
        keys = _sampled(triggers, work, options)
        shown = min(options.shown, RULES["key"].shown)
        rows, labels = [], []
        for done, (layer, key) in enumerate(keys):
            work.progress(f"patterns by {judge.annotator}", done, len(keys))
            places = triggers.positions[triggers.row(layer, key)][:shown].tolist()
            prefixes = [lm.decode(_body(text, p).tolist()) for p in places if p >= 0]
            answer = judge_patterns(judge, "key", prefixes, f"key {layer}.{key}")
            found = [patterns.Pattern(p.kind, p.description, (), frozenset(p.tokens), float("nan")) for p in answer]
            rows.append(_row((layer, key), len(prefixes), found, [f"{p.what} ({len(p.members)})" for p in found]))
            labels += labels_of(judge.annotator, layer, key, found)
        rules = rule_labels(finder(lm, text, excluded, work.seed, options), text, triggers, keys)
        return {**_columns(rows), **kappas([*labels, *rules])}

    return work.stage("judge", compute)


def _sampled(triggers: KeyTriggers, work: Work, options: Options) -> list[tuple[int, int]]:
    return triggers.sampled(options.pattern_keys, patterns.FEWEST, work.seed, "patterns")


def _row(key: tuple[int, int], n: int, found: Sequence[patterns.Pattern], described: Sequence[str]) -> tuple[Any, ...]:
    numbers = (sum(p.kind == kind for p in found) for kind in ("shallow", "semantic"))
    return (*key, n, *numbers, *dict(patterns.shares(found, n)).values(), " · ".join(described[:4]))


def _columns(rows: Sequence[tuple[Any, ...]]) -> Arrays:
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(COLUMNS)}


def _body(text: TokenStream, position: int) -> np.ndarray:
    """Return the tokens of the prefix that ends at `position`, without leading special tokens."""
    return text.prefix(position, special=False)
