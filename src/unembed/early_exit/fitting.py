"""Fit an exit rule: its score is fitted on one part of the examples, and its thresholds are chosen on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from unembed.corpus import CorpusSource
from unembed.early_exit import thresholds as threshold_choice
from unembed.early_exit.baselines import CONFIDENCES, FEATURES, Classifier, Confidence
from unembed.early_exit.cost_of_decisions import decision_cost
from unembed.early_exit.example_prefixes import Examples, examples, exit_basis
from unembed.early_exit.protocols import Score
from unembed.early_exit.rule import ExitRule
from unembed.early_exit.sub_updates_rule import SubUpdates
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Basis
from unembed.steering.text_cost import default_text
from unembed.validation import one_of

METHODS = ("sub_updates", *FEATURES, *CONFIDENCES)
SEED = 38
"""The default seed: the first of the paper's five."""


def untrained(lm: Decoder, method: str = "margin", basis: Basis | None = None) -> ExitRule:
    """Return a rule that uses the confidence of the prediction after each layer, and needs no training.

    Its thresholds are infinite, so it never exits; use its method `at` to get a rule with another threshold.

    Args:
        method: "margin", "entropy" or "agreement".
        basis: "final" (the logit lens) or "jacobian"; by default "jacobian" if the model has a fitted lens.

    Raises:
        InvalidInput: the method needs training; or the basis is "jacobian", and the model has no lens.
    """
    if method not in CONFIDENCES:
        raise InvalidInput(
            f"method {method!r} without fitting",
            why=f"only {', '.join(CONFIDENCES)} work without it",
            instead="Use unembed.early_exit.fit",
        )
    thresholds = np.full(lm.n_layers - 1, np.inf)
    return ExitRule(lm, Confidence(method), thresholds, "no early exit", basis=exit_basis(lm, basis))


def fit(
    lm: Decoder,
    corpus: CorpusSource | Examples = None,
    method: str = "sub_updates",
    *,
    n: int = 10_000,
    seed: int = SEED,
    calibration_share: float = 0.1,
    threshold: str | float | None = None,
    disagreement: float | None = None,
    decision: float | Literal["measured"] | None = None,
    basis: Basis | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ExitRule:
    """Fit an exit rule.

    Args:
        corpus: `Examples`, or what `unembed.corpus.open_corpus` takes.
        method: "sub_updates"; "representation", "update" or "both" (classifiers); "margin", "entropy" or "agreement".
        n: number of examples to draw from a corpus.
        seed: the seed of the random choice of examples and of their split.
        calibration_share: share of the examples that are used for choosing thresholds, not for fitting.
        threshold: one number for all layers; or the criterion by which each layer's threshold is chosen, "precision"
            (0.75, as in the released code) or "f1" (as in the paper). Default: 0 for sub_updates, as in the paper;
            "precision" for classifiers; for confidence, one threshold by risk control with a disagreement of 0.05.
        disagreement: choose one threshold by risk control instead, so that the expected share of tokens that differ
            from the full model's is at most this number.
        decision: the time of one decision, as a fraction of a block's time, or "measured" to measure it. Decisions are
            then made only after layers where exits save more time than decisions take
            (`ExitRule.at_profitable_layers`).
        progress: called with the number of examples done and their total.
        options: options of the score: `clusters` and `similarity` for sub_updates; `sweep`, `penalties` and `folds` for
            classifiers.

    Raises:
        InvalidInput: an unknown method or threshold, or too few examples.
        ExtraMissing: a classifier is fitted without scikit-learn.
    """
    lm = require_decoder(lm)
    one_of("method", method, METHODS)
    if lm.n_layers < 2:
        raise InvalidInput(f"early exit of {lm.name}", why="it has a single layer", instead="Use a deeper model")
    found = (
        corpus if isinstance(corpus, Examples) else examples(lm, corpus, n, seed=seed, basis=basis, progress=progress)
    )
    train, calibration_set = split(found, seed, (1 - calibration_share, calibration_share))
    if len(calibration_set) < 2:
        raise InvalidInput(
            f"{len(found)} examples",
            why="they are too few to fit a rule and set its threshold",
            instead="Give more text",
        )
    score = fit_score(lm, train, method, options)
    facts = {"examples": len(found), "seed": seed, "corpus": found.corpus}
    rule = ExitRule(lm, score, np.zeros(lm.n_layers - 1), "threshold 0, the paper's rule", facts, found.basis)
    rule = _with_thresholds(rule, calibration_set, threshold, disagreement)
    if decision == "measured":
        decision = decision_cost(rule, " ".join(default_text().split()[:32]))
    return rule if decision is None else rule.at_profitable_layers(calibration_set, decision)


def _with_thresholds(
    rule: ExitRule, calibration_set: Examples, threshold: str | float | None, disagreement: float | None
) -> ExitRule:
    if disagreement is not None:
        return rule.with_risk_control(calibration_set, disagreement)
    if threshold is None:
        threshold = {"sub_updates": 0.0, **dict.fromkeys(FEATURES, "precision")}.get(rule.method)
    if threshold is None:
        return rule.with_risk_control(calibration_set, 0.05)
    if isinstance(threshold, str):
        if threshold not in ("precision", "f1"):
            raise InvalidInput(f"threshold {threshold!r}", why="it is not a number, 'precision' or 'f1'")
        choose = threshold_choice.by_precision if threshold == "precision" else threshold_choice.by_f1
        found_thresholds = choose(rule.score.scores(calibration_set), calibration_set.saturation.numpy())
        description = "precision 0.75 by layer" if threshold == "precision" else "largest F1 by layer"
        return replace(rule, thresholds=found_thresholds, calibration=description)
    return rule if threshold == 0 and rule.method == "sub_updates" else rule.at(threshold)


def split(found: Examples, seed: int, shares: Sequence[float]) -> list[Examples]:
    """Shuffle the examples and split them into parts of the given shares."""
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))
    bounds = [round(len(found) * sum(shares[:k])) for k in range(len(shares))] + [len(found)]
    return [found[order[a:b]] for a, b in pairwise(bounds)]


def fit_score(lm: Decoder, train: Examples, method: str, options: dict[str, Any]) -> Score:
    """Fit the score of a method to examples; confidence scores need no fitting."""
    if method == "sub_updates":
        return SubUpdates.fit(lm, train, **options)
    return Classifier.fit(train, method, **options) if method in FEATURES else Confidence(method)
