"""Learning when a token may leave: examples parted, a score fitted to some, its thresholds set on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from unembed.control.early_exit import thresholds as threshold_choice
from unembed.control.early_exit.baselines import CONFIDENCES, FEATURES, Classifier, Confidence
from unembed.control.early_exit.decision_cost import decision_cost
from unembed.control.early_exit.examples import Examples, examples
from unembed.control.early_exit.protocols import Score
from unembed.control.early_exit.rule import ExitRule
from unembed.control.early_exit.sub_updates_rule import SubUpdates
from unembed.control.steering import default_text
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder, require_decoder

METHODS = ("sub_updates", *FEATURES, *CONFIDENCES)
SEED = 38
"""The first of the paper's five."""


def untrained(lm: Decoder, method: str = "margin") -> ExitRule:
    """A rule by confidence alone, which needs no training: it never leaves until a threshold is chosen with `at`.

    Args:
        lm: the model.
        method: "margin", "entropy" or "agreement".

    Raises:
        InvalidInput: the method needs training.
    """
    if method not in CONFIDENCES:
        raise InvalidInput(f"method {method!r} untrained", why=f"only {', '.join(CONFIDENCES)} are", instead="Use fit")
    return ExitRule(lm, Confidence(method), np.full(lm.n_layers - 1, np.inf), "never leaves")


def fit(
    lm: Decoder,
    corpus: Any = None,
    method: str = "sub_updates",
    *,
    n: int = 10_000,
    seed: int = SEED,
    calibration_share: float = 0.1,
    threshold: str | float | None = None,
    disagreement: float | None = None,
    decision: float | Literal["measured"] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ExitRule:
    """Learn when a token may leave.

    Args:
        lm: the model.
        corpus: `Examples`, or what `unembed.corpus.open_corpus` takes.
        method: "sub_updates"; "representation", "update" or "both" (classifiers); "margin", "entropy" or "agreement".
        n: how many examples to draw from a corpus.
        seed: of the draw and of the split.
        calibration_share: share of the examples kept for setting thresholds.
        threshold: a number; "precision" (0.75, as released) or "f1" (as the paper says), by layer. By default zero for
            sub_updates (the rule as it is), "precision" for classifiers, and for the others a promise of 5 per cent.
        disagreement: set one threshold so that at most this share of tokens is expected to differ instead.
        decision: what asking once costs, in blocks; then only the layers where it pays are asked
            (`ExitRule.at_profitable_layers`). "measured": as measured now, on a line of text.
        progress: called with examples done and examples in all.
        options: for the score: `clusters`, `similarity`; `sweep`, `penalties`, `folds`.

    Raises:
        InvalidInput: no such method or threshold, or too few examples.
        ExtraMissing: a classifier without scikit-learn.
    """
    lm = require_decoder(lm)
    if method not in METHODS:
        raise InvalidInput(f"method {method!r}", why=f"it is none of {', '.join(METHODS)}")
    if lm.n_layers < 2:
        raise InvalidInput(f"early exit of {lm.name}", why="it has one layer", instead="Use a deeper model")
    found = corpus if isinstance(corpus, Examples) else examples(lm, corpus, n, seed=seed, progress=progress)
    train, held = split(found, seed, (1 - calibration_share, calibration_share))
    if len(held) < 2:
        raise InvalidInput(
            f"{len(found)} examples", why="too few to fit and to set a threshold", instead="Give more text"
        )
    score = fit_score(lm, train, method, options)
    facts = {"examples": len(found), "seed": seed, "corpus": found.corpus}
    rule = ExitRule(lm, score, np.zeros(lm.n_layers - 1), "threshold 0, the rule as it is", facts)
    rule = _calibrated(rule, held, threshold, disagreement)
    if decision == "measured":
        decision = decision_cost(rule, " ".join(default_text().split()[:32]))
    return rule if decision is None else rule.at_profitable_layers(held, decision)


def _calibrated(rule: ExitRule, held: Examples, threshold: str | float | None, disagreement: float | None) -> ExitRule:
    """The rule with its thresholds, as `fit` describes them."""
    if disagreement is not None:
        return rule.with_risk_control(held, disagreement)
    if threshold is None:
        threshold = {"sub_updates": 0.0, **dict.fromkeys(FEATURES, "precision")}.get(rule.method)
    if threshold is None:
        return rule.with_risk_control(held, 0.05)
    if isinstance(threshold, str):
        if threshold not in ("precision", "f1"):
            raise InvalidInput(f"threshold {threshold!r}", why="it is neither a number nor 'precision' nor 'f1'")
        choose = threshold_choice.by_precision if threshold == "precision" else threshold_choice.by_f1
        found_thresholds = choose(rule.score.scores(held), held.saturation.numpy())
        said = "precision 0.75 by layer" if threshold == "precision" else "largest F1 by layer"
        return replace(rule, thresholds=found_thresholds, calibration=said)
    return rule if threshold == 0 and rule.method == "sub_updates" else rule.at(threshold)


def split(found: Examples, seed: int, shares: Sequence[float]) -> list[Examples]:
    """The examples in a random order, in parts of these shares."""
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))
    bounds = [round(len(found) * sum(shares[:k])) for k in range(len(shares))] + [len(found)]
    return [found[order[a:b]] for a, b in pairwise(bounds)]


def fit_score(lm: Decoder, train: Examples, method: str, options: dict[str, Any]) -> Score:
    """The score of a method, fitted to these examples; confidences need none."""
    if method == "sub_updates":
        return SubUpdates.fit(lm, train, **options)
    return Classifier.fit(train, method, **options) if method in FEATURES else Confidence(method)
