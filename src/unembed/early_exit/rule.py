"""An exit rule: a score and a threshold for each layer of a model; it can be saved to a file."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from unembed.corpus import CorpusSource
from unembed.early_exit import thresholds as threshold_choice
from unembed.early_exit.baselines import Classifier, Confidence
from unembed.early_exit.conformal import generation_threshold
from unembed.early_exit.cost_of_decisions import profitable_thresholds
from unembed.early_exit.example_prefixes import Examples, examples
from unembed.early_exit.generation import Generated, generate
from unembed.early_exit.protocols import Score
from unembed.early_exit.sub_updates_rule import SubUpdates
from unembed.errors import InvalidInput
from unembed.jacobian import lens_identity
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.names import Basis
from unembed.results import Table, format_number, format_setting, write_whole
from unembed.validation import positive_int
from unembed.version import __version__

SCHEMA = "unembed.exit_rule/3"
_WITHOUT_BASIS = "unembed.exit_rule/2"
"""The schema of files of earlier versions, which state no basis: their rules all use the logit lens."""


@dataclass(frozen=True, eq=False)
class ExitRule:
    """Decides after which layer a token exits; made by `fit` or `load`."""

    lm: Decoder
    score: Score
    thresholds: np.ndarray
    """The threshold of each layer but the last."""
    calibration: str
    """How the thresholds were chosen."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """How the rule was fitted: corpus, number of examples, seed, and the level of risk control."""
    basis: Basis = "final"
    """How a layer's stream becomes a prediction: "final" (the logit lens) or "jacobian" (the fitted lens)."""

    def __repr__(self) -> str:
        shown = ", ".join(format_number(threshold) for threshold in self.thresholds)
        return f"ExitRule({self.method} on {self.lm.name}, thresholds by layer: {shown}; {self.calibration})"

    @property
    def method(self) -> str:
        """The name of the exit method."""
        return self.score.name

    def at(self, threshold: float) -> ExitRule:
        """Return the same rule with one threshold for all layers; a higher one exits later."""
        flat = np.full(self.lm.n_layers - 1, float(threshold))
        return replace(self, thresholds=flat, calibration=f"one threshold, {format_setting(threshold)}")

    def with_risk_control(self, found: Examples, disagreement: float) -> ExitRule:
        """Return the rule with the lowest threshold at which the expected share of changed tokens is within a bound.

        Args:
            found: examples that were not used for fitting.
            disagreement: largest expected share of tokens that differ from the full model's.

        Raises:
            InvalidInput: the share is not between 0 and 1.
        """
        threshold = threshold_choice.risk_controlled_threshold(self._scores(found), found.top.numpy(), disagreement)
        return self._controlled(threshold, disagreement, f"{len(found)} examples")

    def _controlled(self, threshold: float, disagreement: float, on: str) -> ExitRule:
        calibration = f"at most {format_setting(disagreement)} disagreement, by risk control on {on}"
        return replace(self.at(threshold), calibration=calibration, facts={**self.facts, "disagreement": disagreement})

    def with_generation_risk_control(
        self, prompts: Sequence[str], found: Examples, disagreement: float, *, steps: int = 10, max_new_tokens: int = 40
    ) -> ExitRule:
        """Return the rule with a threshold that is chosen by risk control on text generated with the rule.

        Args:
            prompts: texts like those to be continued; at least 1 / disagreement of them.
            found: examples; quantiles of their scores are the thresholds to try.
            disagreement: largest expected share of new tokens that the full model would not have chosen.
            steps: number of thresholds to try.
            max_new_tokens: number of tokens to generate for each prompt.

        Raises:
            InvalidInput: too few prompts for this bound.
        """
        if not 0 < disagreement < 1 or len(prompts) + 1 < 1 / disagreement:
            raise InvalidInput(
                f"a disagreement of {format_setting(disagreement)} with {len(prompts)} prompts",
                why="risk control needs at least 1 / disagreement prompts",
                instead="Give more prompts, or allow a larger disagreement",
            )
        thresholds = threshold_choice.candidate_thresholds(self._scores(found), steps)[1:]
        threshold = generation_threshold(
            self, prompts, disagreement, thresholds.tolist(), max_new_tokens=max_new_tokens
        )
        return self._controlled(threshold, disagreement, f"{len(prompts)} generations")

    def at_profitable_layers(self, found: Examples, decision: float) -> ExitRule:
        """Return a rule that decides only after layers where exits save more time than the decisions take.

        Args:
            found: examples that were not used for fitting.
            decision: the time of one decision, as a fraction of a block's time; `decision_cost` measures it.

        Raises:
            InvalidInput: the time is negative.
        """
        if not decision >= 0:
            raise InvalidInput(
                f"an exit decision of {format_setting(decision)} times a block's time", why="it must not be negative"
            )
        thresholds = profitable_thresholds(self._scores(found), self.thresholds, decision)
        layers = ", ".join(str(n) for n in np.flatnonzero(thresholds < np.inf)) or "none"
        return replace(self, thresholds=thresholds, calibration=f"{self.calibration}; decisions after layers {layers}")

    def exit_layers(self, found: Examples) -> Int[np.ndarray, " example"]:
        """Return the layer after which each example exits.

        Raises:
            InvalidInput: the examples were made in another basis.
        """
        return threshold_choice.exit_layers(self._scores(found), self.thresholds)

    def _scores(self, found: Examples) -> np.ndarray:
        if found.basis != self.basis:
            raise InvalidInput(
                f"examples in basis {found.basis!r}",
                why=f"the rule uses {self.basis!r}",
                instead=f"Make them with basis={self.basis!r}",
            )
        return self.score.scores(found)

    def evaluate(self, corpus: CorpusSource | Examples = None, n: int = 1000, *, seed: int = 1) -> Table:
        """Measure accuracy and saved layers on examples that were not used for fitting, and where they exit.

        Args:
            corpus: `Examples`, or what `unembed.corpus.open_corpus` takes.
            n: number of examples to draw from a corpus.
            seed: the seed of the random choice of examples.

        Returns:
            One row: accuracy (per cent of examples whose top token at the exit layer is the full model's), mean saved
            layers over all examples (as in the released code) and over the correct ones (as in the paper), and the
            number of examples that exit at each layer.
        """
        found = corpus if isinstance(corpus, Examples) else examples(self.lm, corpus, n, seed=seed, basis=self.basis)
        row = accuracy_and_savings(found, self.exit_layers(found))
        columns: dict[str, list[Any]] = {
            "method": [self.method],
            "calibration": [self.calibration],
            "examples": [len(found)],
        }
        columns |= {name: [value] for name, value in row.items()}
        notes = {"fitted": {k: v for k, v in self.facts.items() if k != "seed"}}
        about = self.lm.provenance(corpus=found.corpus, seed=seed, basis=self.basis, notes=notes)
        return Table(f"Early exit of {self.lm.name}", columns, about)

    def tradeoff(self, found: Examples, steps: int = 20) -> Table:
        """Return a table of disagreement and saved layers for thresholds from "never exit" to "always exit".

        Args:
            found: examples that were not used for fitting.
            steps: largest number of rows.
        """
        scores = self._scores(found)
        thresholds = threshold_choice.candidate_thresholds(scores, positive_int("steps", steps, 3) - 2)
        rows = [
            accuracy_and_savings(found, threshold_choice.exit_layers(scores, np.full(scores.shape[1], t)))
            for t in thresholds
        ]
        columns = {
            "threshold": [float(t) for t in thresholds],
            "disagreement": [100 - row["accuracy"] for row in rows],
            "saved_layers": [row["saved_layers"] for row in rows],
            "share_saved": [row["share_saved"] for row in rows],
        }
        title = f"{self.method}: disagreement against layers saved"
        about = self.lm.provenance(corpus=found.corpus, basis=self.basis, notes={"examples": len(found)})
        return Table(title, columns, about)

    def generate(self, prompt: str, **options: Any) -> Generated:
        """Generate text with early exit; see `unembed.early_exit.generation.generate`."""
        return generate(self, prompt, **options)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save the rule to a file that `load` can read with the same model."""
        about = {
            "schema": SCHEMA,
            "version": __version__,
            "model": self.lm.name,
            "fingerprint": sampled_fingerprint(self.lm),
            "kind": next(kind for kind, score in _KINDS.items() if isinstance(self.score, score)),
            "calibration": self.calibration,
            "facts": dict(self.facts),
            "basis": self.basis,
            "lens": lens_identity(self.lm) if self.basis == "jacobian" else None,
        }
        buffer = io.BytesIO()
        state = {f"state_{name}": array for name, array in self.score.state().items()}
        np.savez_compressed(buffer, about=np.array(json.dumps(about)), thresholds=self.thresholds, **state)
        return write_whole(path, buffer.getvalue())


_KINDS: dict[str, type[SubUpdates | Classifier | Confidence]] = {
    "sub_updates": SubUpdates,
    "classifier": Classifier,
    "confidence": Confidence,
}


def load(path: str | os.PathLike[str], lm: Decoder) -> ExitRule:
    """Read the rule that `ExitRule.save` wrote.

    Raises:
        InvalidInput: the file cannot be read; the rule was fitted on another model; or it uses a fitted lens that is
            not the model's current one.
    """
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            about = json.loads(str(stored["about"]))
            thresholds = stored["thresholds"]
            state = {name[6:]: stored[name] for name in stored.files if name.startswith("state_")}
        if about["schema"] not in (SCHEMA, _WITHOUT_BASIS):
            raise ValueError(f"the file's schema is {about['schema']}, not {SCHEMA}")
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        # NumPy's own message is not shown: if the file is not an archive, it advises loading the file as a pickle,
        # which is unsafe.
        why = getattr(error, "strerror", None) or "it is not a saved rule, or it is damaged"
        raise InvalidInput(f"cannot read an exit rule from {path}", why=why, instead="Fit one and save it") from error
    if about["fingerprint"] != sampled_fingerprint(lm):
        raise InvalidInput(
            f"the exit rule in {path}",
            why=f"it was fitted on {about['model']}, whose weights are not those of {lm.name}",
            instead="Fit it on this model",
        )
    basis: Basis = about.get("basis", "final")
    if basis == "jacobian" and about["lens"] != lens_identity(lm):
        why = "it was fitted with a Jacobian lens, and the model is used "
        raise InvalidInput(
            f"the exit rule in {path}",
            why=why + ("without one" if lens_identity(lm) is None else "with another one"),
            instead="Use that lens (lm.use_lens, --lens FILE), or fit the rule again",
        )
    score = _KINDS[about["kind"]].from_state(state)
    return ExitRule(lm, score, thresholds, about["calibration"], about["facts"], basis)


def accuracy_and_savings(found: Examples, layer: np.ndarray) -> dict[str, Any]:
    """Return the accuracy and the saved layers of examples, given the layer after which each example exits."""
    last = found.n_layers - 1
    right = threshold_choice.agrees(found.top.numpy(), layer)
    saved = last - layer
    return {
        "accuracy": 100 * float(right.mean()),
        "saved_layers": float(saved.mean()),
        "saved_layers_of_right": float(saved[right].mean()) if right.any() else 0.0,
        "share_saved": 100 * float(saved.mean()) / found.n_layers,
        "left_early": 100 * float((saved > 0).mean()),
        "exits_by_layer": np.bincount(layer, minlength=found.n_layers).tolist(),
    }
