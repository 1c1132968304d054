"""`python -m tools.fit_linear DATA --out linear.npz`: the offline scorer again, with its card.

DATA is a folder with `jigsaw_balanced.csv` (comment, 0 or 1; no header). It is shuffled from a seed; 10,000 comments
train, the rest test. Where the folder also holds `surge_toxicity_en.csv`, `rtp_toxic_challenging.jsonl`,
`rtp_nontoxic.jsonl` or `davidson_labeled_data.csv`, the card says how the scorer does on these as well.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unembed.errors import ExtraMissing, UnembedError
from unembed.results import write_whole
from unembed.toxicity.comments import Labelled, read_comments
from unembed.toxicity.hashed_ngrams import features, margins

BITS, STRENGTH, TRAIN, SEED = 16, 16.0, 10_000, 0
"""Columns (2 ** 16), inverse strength of the L2 penalty, comments that train, seed of the shuffle."""

LICENCE = "data set CC0 (Jigsaw); comments from Wikipedia talk pages, CC BY-SA 3.0; weights as the package, Apache-2.0"


def others(folder: Path) -> dict[str, Labelled]:
    """The other labelled sets that the folder holds."""
    found: dict[str, Labelled] = {}
    if (path := folder / "surge_toxicity_en.csv").exists():
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        found["Surge AI social media comments"] = ([r["text"] for r in rows], [r["is_toxic"] == "Toxic" for r in rows])
    texts, labels = [], []
    for name in ("rtp_toxic_challenging.jsonl", "rtp_nontoxic.jsonl"):
        if (path := folder / name).exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                for part in ("prompt", "continuation"):
                    piece = json.loads(line)[part]
                    if piece.get("toxicity") is not None:
                        texts.append(piece["text"])
                        labels.append(piece["toxicity"] >= 0.5)
    if texts:
        found["RealToxicityPrompts pieces, Perspective toxicity of 0.5 or more"] = (texts, labels)
    if (path := folder / "davidson_labeled_data.csv").exists():
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        found["Davidson et al. tweets, hateful or offensive"] = (
            [r["tweet"] for r in rows],
            [r["class"] != "2" for r in rows],
        )
    return found


def fit(texts: Sequence[str], labels: Sequence[int]) -> tuple[np.ndarray, float]:
    """Weights (2 ** BITS) and bias of an L2 logistic regression on presence over the root of the number of n-grams.

    Raises:
        ExtraMissing: scikit-learn is not installed.
    """
    try:
        from scipy.sparse import csr_matrix
        from sklearn.linear_model import LogisticRegression
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            "fitting a scorer", why="scikit-learn is not installed", instead="pip install 'unembed[nlp]'"
        ) from error

    columns, bounds = features(texts, BITS)
    counts = np.diff(bounds)
    data = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
    matrix = csr_matrix((data, columns, bounds), shape=(len(texts), 1 << BITS))
    model = LogisticRegression(C=STRENGTH, solver="liblinear", random_state=SEED).fit(matrix, labels)
    return model.coef_[0], float(model.intercept_[0])


def measured(texts: Sequence[str], labels: Sequence[int], weights: np.ndarray, bias: float) -> dict[str, Any]:
    """Accuracy at 0.5 and area under the ROC curve."""
    z, y = margins(texts, weights, bias), np.asarray(labels, dtype=bool)
    order = z.argsort(kind="stable")
    ranks = np.empty(len(z))
    ranks[order] = np.arange(1, len(z) + 1)
    for value in np.unique(z[np.isin(z, z[order][1:][np.diff(z[order]) == 0])]):
        ranks[z == value] = ranks[z == value].mean()
    positive, negative = int(y.sum()), int((~y).sum())
    area = (ranks[y].sum() - positive * (positive + 1) / 2) / (positive * negative)
    share = positive / len(y)
    return {
        "texts": len(y),
        "share_toxic": round(share, 4),
        "accuracy": round(float(((z > 0) == y).mean()), 4),
        "accuracy_of_always_the_larger_class": round(max(share, 1 - share), 4),
        "auc": round(float(area), 4),
    }


def make(folder: Path, out: Path) -> dict[str, Any]:
    """Fit, write the weights and next to them the card, and return the card."""
    texts, labels = read_comments(folder / "jigsaw_balanced.csv")
    order = np.random.default_rng(SEED).permutation(len(texts))
    train, test = order[:TRAIN], order[TRAIN:]
    weights, bias = fit([texts[i] for i in train], [labels[i] for i in train])
    # Eight bits are enough: rounding moves a text's score by less than its own noise, which the card's numbers include.
    unit = float(np.abs(weights).max() / 127)
    small = np.round(weights / unit).astype(np.int8)
    scaled = small * unit
    buffer = io.BytesIO()
    np.savez_compressed(buffer, weights=small, unit=unit, bias=bias)
    card: dict[str, Any] = {
        "schema": "unembed.linear_scorer/1",
        "model": "logistic regression on hashed words, word pairs and letter n-grams; 2^16 weights of 8 bits",
        "trained_on": f"{len(train)} of {len(texts)} comments of the balanced Jigsaw set (seed {SEED})",
        "licence": LICENCE,
        "says": "how a comment is written, not what is meant: mentions, quotations and dialects are misjudged",
        "measured": {"Jigsaw, held out": measured([texts[i] for i in test], [labels[i] for i in test], scaled, bias)},
    }
    for name, (other, truth) in others(folder).items():
        card["measured"][name] = measured(other, truth, scaled, bias)
    write_whole(out, buffer.getvalue())
    write_whole(out.with_suffix(".json"), json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    return card


def main(arguments: list[str] | None = None) -> int:
    """Fit the scorer and print its card."""
    parser = argparse.ArgumentParser(prog="python -m tools.fit_linear", description=main.__doc__)
    parser.add_argument("data", type=Path, help="folder with jigsaw_balanced.csv")
    parser.add_argument("--out", type=Path, default=Path("linear.npz"), help="weights; the card goes next to them")
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(make(given.data, given.out), indent=2, ensure_ascii=False))
    except UnembedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
