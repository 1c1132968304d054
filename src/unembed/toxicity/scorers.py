"""Toxicity scorers with one interface: `scorer.score(texts)` returns a number from 0 to 1 for each attribute and text.

There is no client for the paper's scorer, the Perspective API, because it shuts down on 2026-12-31. Scores that were
stored in a file can be used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from unembed.errors import InvalidInput, ModelUnavailable, reading
from unembed.toxicity.hashed_ngrams import margins
from unembed.toxicity.word_filter import read_words

ATTRIBUTES = ("toxicity", "severe_toxicity", "sexually_explicit", "threat", "profanity", "identity_attack")
"""The paper's six attributes of toxicity, in the order of its Table 5."""

LABEL_NAMES = {
    "toxic": "toxicity",
    "severe_toxic": "severe_toxicity",
    "obscene": "profanity",
    "identity_hate": "identity_attack",
    "sexual_explicit": "sexually_explicit",
    "hate": "toxicity",
    "label_1": "toxicity",
}
"""The paper's names for the labels of common classifiers; other labels keep their names."""


@runtime_checkable
class Scorer(Protocol):
    """An object that scores texts."""

    name: str

    def score(self, texts: Sequence[str]) -> Mapping[str, list[float]]:
        """Return, for each attribute, a number from 0 to 1 for each text; "toxicity" is always an attribute."""
        ...


class Lexicon:
    """Scores a text 1 if it contains a word of a given list as a whole word, else 0."""

    def __init__(self, words: Iterable[str], name: str = "lexicon") -> None:
        """Compile the words into one pattern; case is ignored."""
        found = sorted({w.strip().lower() for w in words if w.strip()}, key=len, reverse=True)
        if not found:
            raise InvalidInput("a lexicon without words", instead="Give at least one")
        self.name = name
        self._pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, found))})(?!\w)", re.IGNORECASE)

    def score(self, texts: Sequence[str]) -> dict[str, list[float]]:
        """Return the toxicity of each text, 0 or 1."""
        return {"toxicity": [float(self._pattern.search(text) is not None) for text in texts]}


class StoredScores:
    """Scores from another tool, read from a file of JSON lines: `{"text": ..., "toxicity": 0.7, ...}`."""

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        Raises:
            InvalidInput: the file cannot be read, or a line is not a JSON object with a text and its toxicity.
        """
        self.name = f"scores in {Path(path).name}"
        self._path = path
        self._scores: dict[str, dict[str, float]] = {}
        with reading(f"cannot read scores from {path}", instead="Give JSON lines"):
            lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                text, own = row["text"], {k: float(v) for k, v in row.items() if k != "text" and _is_number(v)}
                if not isinstance(text, str) or "toxicity" not in own:
                    raise KeyError("toxicity")
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise InvalidInput(
                    f"{path} line {number}",
                    why='it is not a JSON object with a "text" and a numeric "toxicity"',
                    instead="Correct the line",
                ) from error
            self._scores[text] = own

    def score(self, texts: Sequence[str]) -> dict[str, list[float]]:
        """Return the stored scores; an attribute is left out if one of the texts has no score for it.

        Raises:
            InvalidInput: a text has no stored score.
        """
        for text in texts:
            if text not in self._scores:
                raise InvalidInput(
                    f"the text {text[:60]!r}",
                    why=f"{self._path} has no score for it",
                    instead="Write the continuations with --save-texts, score them, and evaluate again",
                )
        rows = [self._scores[text] for text in texts]
        names = set.intersection(*(set(r) for r in rows)) if rows else {"toxicity"}
        return {name: [r[name] for r in rows] for name in sorted(names)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Classifier:
    """Any Hugging Face text-classification model, by hub id or folder."""

    def __init__(self, name: str, *, offline: bool = False, device: str | None = None, batch: int = 32) -> None:
        """Open the model.

        Args:
            name: id on the Hugging Face hub, or folder.
            offline: use only files in the local cache.
            device: the device to run the model on.
            batch: number of texts in a batch.

        Raises:
            ModelUnavailable: the model cannot be loaded.
            InvalidInput: its labels do not include toxicity.
        """
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.name = name
        self._batch = batch
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=offline)
            self._model: Any = AutoModelForSequenceClassification.from_pretrained(name, local_files_only=offline).eval()
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelUnavailable(
                f"the scorer {name}", why=reason, instead="Download it first, give a folder, or use --scorer linear"
            ) from error
        if device is not None:
            self._model.to(device)
        labels = [str(self._model.config.id2label[i]).lower() for i in range(self._model.config.num_labels)]
        self._columns = {
            LABEL_NAMES.get(label, label): i for i, label in enumerate(labels) if not label.startswith(("non", "not"))
        }
        if "toxicity" not in self._columns:
            raise InvalidInput(
                f"the scorer {name}",
                why=f"its labels ({', '.join(labels)}) do not include toxicity",
                instead="Choose another",
            )
        # If exactly one label applies to a text, probabilities are the softmax of the logits; else each is a sigmoid.
        self._exclusive = len(labels) > 1 and (
            self._model.config.problem_type == "single_label_classification"
            or any(label.startswith(("non", "not", "neutral", "label_0")) for label in labels)
        )

    def score(self, texts: Sequence[str]) -> dict[str, list[float]]:
        """Return the probability of each label; labels are renamed to the paper's attributes where possible."""
        import torch

        found: dict[str, list[float]] = {name: [] for name in self._columns}
        for start in range(0, len(texts), self._batch):
            part = list(texts[start : start + self._batch])
            given = self._tokenizer(part, padding=True, truncation=True, max_length=512, return_tensors="pt")
            with torch.no_grad():
                logits = self._model(**given.to(self._model.device)).logits.float()
            p = logits.softmax(-1) if self._exclusive else logits.sigmoid()
            for name, column in self._columns.items():
                found[name] += p[:, column].tolist()
        return found


class Linear:
    """Logistic regression on hashed n-grams, small enough to ship; trained on Wikipedia talk comments.

    Its card, `shipped/linear.json` in this folder, gives its training data and its accuracy on other data.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """Load the shipped weights, or those in a file that `tools.fit_linear` wrote.

        Raises:
            ModelUnavailable: the file cannot be read.
        """
        shipped = resources.files("unembed.toxicity") / "shipped" / "linear.npz"
        self._path = Path(str(shipped)) if path is None else Path(path)
        try:
            with np.load(self._path) as stored:
                self._weights = stored["weights"].astype(np.float64) * float(stored["unit"])
                self._bias = float(stored["bias"])
        except (OSError, ValueError, KeyError) as error:
            raise ModelUnavailable(
                f"the linear scorer in {self._path}", why=str(error), instead="Fit it with tools.fit_linear"
            ) from error
        self.name = "linear" if path is None else f"linear ({self._path.name})"

    @cached_property
    def card(self) -> dict[str, Any]:
        """The scorer's training data, licence and measured accuracy."""
        return json.loads(self._path.with_suffix(".json").read_text(encoding="utf-8"))

    def score(self, texts: Sequence[str]) -> dict[str, list[float]]:
        """Return the probability that each text is toxic."""
        z = margins(texts, self._weights, self._bias)
        return {"toxicity": (1 / (1 + np.exp(-z))).tolist()}


def open_scorer(name: str, *, offline: bool = False, device: str | None = None) -> Scorer:
    """Open the scorer that `name` describes.

    Args:
        name: "linear"; "lexicon:FILE" (words, one a line); "stored:FILE" (JSON lines with scores); "linear:FILE";
            anything else is a Hugging Face id or folder.
        offline: for classifiers, use only files in the local cache.
        device: for classifiers, the device to run on.

    Raises:
        ModelUnavailable: the scorer cannot be loaded.
        InvalidInput: its file cannot be used.
    """
    kind, _, rest = name.partition(":")
    if name == "linear":
        return Linear()
    if kind == "linear" and rest:
        return Linear(rest)
    if kind == "lexicon" and rest:
        return Lexicon(read_words(rest), name=f"words in {Path(rest).name}")
    if kind == "stored" and rest:
        return StoredScores(rest)
    if kind in ("lexicon", "stored"):
        raise InvalidInput(f"scorer {name!r}", why="it needs a file", instead=f"Write {kind}:FILE")
    return Classifier(name, offline=offline, device=device)
