"""Baselines for the sub-updates rule: classifiers on the stream, and the model's own confidence.

Each gives a score for every layer; a token exits at the first layer where the score is above a threshold. Source: Geva
et al. 2022, section 6.2 (logistic regression on the representation, the FFN's update, or their sum); Schuster et al.
2022 for the three measures of confidence.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unembed.early_exit.example_prefixes import Examples, confidence
from unembed.errors import ExtraMissing
from unembed.lens import logits_of
from unembed.models.decoder import Decoder

FEATURES = ("representation", "update", "both")
CONFIDENCES = ("margin", "entropy", "agreement")
PAPER_SWEEP = tuple(10.0**k for k in range(-3, 4))
PAPER_PROTOCOL: Mapping[str, Any] = {"sweep": PAPER_SWEEP, "penalties": ("l1", "l2"), "folds": 8}
"""How the paper fits its classifiers (App. A.5)."""
QUICK_SWEEP = (1e-3, 1e-2, 1e-1)


class Classifier:
    """A logistic regression for each layer: the probability that the prediction's saturation layer is this layer."""

    def __init__(self, name: str, weights: Float[np.ndarray, "layer d"], biases: Float[np.ndarray, " layer"]) -> None:
        """Store weights for unscaled features, with one row for each layer but the last."""
        self.name, self._weights, self._biases = name, weights, biases
        self._rows = torch.from_numpy(np.asarray(weights, dtype=np.float64)).unbind()

    @classmethod
    def fit(
        cls,
        found: Examples,
        name: str,
        *,
        sweep: Sequence[float] = QUICK_SWEEP,
        penalties: Sequence[str] = ("l2",),
        folds: int = 3,
    ) -> Classifier:
        """Fit one classifier for each layer.

        The paper's settings are `PAPER_PROTOCOL`; the default tries fewer of them and takes seconds. Classes are
        weighted by frequency and features standardised, as in the paper. The solver supports l1, unlike that of the
        paper's released code.

        Args:
            found: the examples to fit to.
            name: "representation", "update" or "both".
            sweep: values of scikit-learn's C to choose from.
            penalties: penalties to choose from.
            folds: number of folds of the cross-validation.

        Raises:
            ExtraMissing: scikit-learn is not installed.
        """
        try:
            from sklearn.exceptions import ConvergenceWarning
            from sklearn.linear_model import LogisticRegression
            from sklearn.model_selection import GridSearchCV
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "sklearn":
                raise  # scikit-learn is installed, but a package that it needs is not
            raise ExtraMissing(
                "scikit-learn is not installed", why="classifiers need it", instead="pip install 'unembed[nlp]'"
            ) from error
        weights, biases = [], []
        saturation = found.saturation.numpy()
        for layer in range(found.n_layers - 1):
            x = _features(found, name)[:, layer].double().numpy()
            y = saturation == layer
            mean, scale = x.mean(0), x.std(0)
            scale[scale == 0] = 1.0
            if min(int(y.sum()), int((~y).sum())) < folds:
                # One of the two classes (this is the saturation layer, or not) has too few examples to learn from, so
                # the classifier always predicts the other class, with a probability of 0 or 1.
                weights.append(np.zeros(x.shape[1]))
                biases.append(-np.inf if y.sum() < folds else np.inf)
                continue
            x = (x - mean) / scale
            settings: dict[str, Any] = {"class_weight": "balanced", "max_iter": 500, "random_state": 0}
            options = [
                {"C": list(sweep), "solver": ["lbfgs" if p == "l2" else "liblinear"], "l1_ratio": [float(p == "l1")]}
                for p in penalties
            ]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # 500 steps are enough for ranking
                if len(sweep) == 1 and len(penalties) == 1:
                    only: dict[str, Any] = {name: values[0] for name, values in options[0].items()}
                    model = LogisticRegression(**only, **settings).fit(x, y)
                else:
                    model = GridSearchCV(LogisticRegression(**settings), options, cv=folds).fit(x, y).best_estimator_
            own = model.coef_[0] / scale
            weights.append(own)
            biases.append(float(model.intercept_[0]) - float(own @ mean))
        return cls(name, np.array(weights), np.array(biases))

    def scores(self, found: Examples) -> Float[np.ndarray, "example layer"]:
        """Return the probability for every example at every layer but the last."""
        x = _features(found, self.name)[:, :-1].double().numpy()
        return _sigmoid(np.einsum("eld,ld->el", x, self._weights) + self._biases)

    @property
    def points(self) -> tuple[str, ...]:
        """Names of the activations of a layer that the classifier reads."""
        return {"representation": ("before",), "update": ("update",)}.get(self.name, ("before", "update"))

    def is_above(self, threshold: float, lm: Decoder, layer: int, seen: Mapping[str, Tensor]) -> bool:
        """Return whether the probability for the current token is above a threshold."""
        own = self._rows[layer].to(seen[self.points[0]].device)
        z = sum(float(seen[point].double() @ own) for point in self.points) + float(self._biases[layer])
        return bool(_sigmoid(z) > threshold)

    def state(self) -> dict[str, Any]:
        """Return the arrays to save."""
        return {"name": np.array(self.name), "weights": self._weights, "biases": self._biases}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Classifier:
        """Build the classifier that `state` described."""
        return cls(str(state["name"]), state["weights"], state["biases"])


def _features(found: Examples, name: str) -> Float[Tensor, "example layer d_model"]:
    # As in the paper, "both" is the sum of the two features. The released code uses "representation" alone for "both",
    # which is a mistake.
    return {"representation": found.before, "update": found.update}.get(name, found.before + found.update)


def _sigmoid(z: Any) -> Any:
    # During generation z is a single float, for which `math.exp` is faster than NumPy.
    if isinstance(z, float):
        return 1 / (1 + math.exp(-z)) if z > -700 else 0.0
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-z))


class Confidence:
    """Scores that need no training, computed from the logit lens after each layer."""

    points = ("resid_post",)

    def __init__(self, name: str) -> None:
        """Store the name of the score.

        Args:
            name: "margin" (probability of the top token minus that of the second), "entropy" (the negative entropy) or
                "agreement" (number of consecutive layers, up to this one, with the same top token).
        """
        self.name = name
        self._last: tuple[int, int] = (-1, 0)

    def scores(self, found: Examples) -> Float[np.ndarray, "example layer"]:
        """Return scores of every example at every layer but the last."""
        if self.name == "margin":
            return found.margin[:, :-1].double().numpy()
        if self.name == "entropy":
            return -found.entropy[:, :-1].double().numpy()
        runs = torch.zeros_like(found.top)
        for layer in range(1, found.n_layers):
            same = found.top[:, layer] == found.top[:, layer - 1]
            runs[:, layer] = torch.where(same, runs[:, layer - 1] + 1, 0)
        return runs[:, :-1].double().numpy()

    def is_above(self, threshold: float, lm: Decoder, layer: int, seen: Mapping[str, Tensor]) -> bool:
        """Return whether the score of the current token is above a threshold; this computes the logits."""
        logits = logits_of(lm, seen["resid_post"])
        if self.name == "margin":
            best = (logits.topk(2).values.float() - logits.float().logsumexp(-1)).exp()
            return float(best[0] - best[1]) > threshold
        if self.name == "entropy":
            return -float(confidence(logits)[2]) > threshold
        top = int(logits.argmax())
        last, run = self._last if layer else (-1, 0)
        run = run + 1 if layer and top == last else 0
        self._last = (top, run)
        return run > threshold

    def state(self) -> dict[str, Any]:
        """Return the arrays to save."""
        return {"name": np.array(self.name)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Confidence:
        """Build the rule that `state` described."""
        return cls(str(state["name"]))
