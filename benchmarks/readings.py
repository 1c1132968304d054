"""How true readings are on a real model: values against what adding them does, and streams against the prediction.

    python benchmarks/readings.py           # smollm2 (`unembed models get smollm2`), read by its fitted lens
    python benchmarks/readings.py --tables  # also both tables of docs/explanation.md, of smollm2 and wren

A claim is the number asked for, divided by the measured one; the control is divided by its bound.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch

import unembed
from unembed.jacobian import reading_by
from unembed.memories import ReadingTruth, reading_truth

try:
    from benchmarks.measure import Claim, record
except ImportError:  # run as a script
    from measure import Claim, record

PAGE = Path(__file__).parents[1] / "docs" / "explanation.md"
PER_LAYER, PLACES = 24, 24
ASKED = {13: 0.50, 18: 0.70, 22: 0.85, 26: 0.93}
"""By layer of SmolLM2, the least median correlation."""
CONTROL, KL_SHARE, KL_LAYER = 0.15, 0.2, 24
SHOWN = {"smollm2": (3, 8, 13, 18, 22, 26, 29), "wren": tuple(range(8))}
"""Layers in the tables of the page."""


def opened(name: str) -> unembed.LanguageModel:
    """A model with the lens by which commands read it."""
    lm = unembed.load(name)
    lm.use_lens()
    return lm


def truth(lm: unembed.LanguageModel, layers: tuple[int, ...]) -> ReadingTruth:
    """The truth of random values of some layers."""
    return reading_truth(lm, per_layer=PER_LAYER, layers=layers, contexts=PLACES)


def of_values(lm: unembed.LanguageModel) -> list[Claim]:
    """Correlations of values' scores with what adding them does."""
    rows = {row["layer"]: row for row in truth(lm, tuple(ASKED)).by_layer().rows()}
    claims = [
        Claim(f"layer {n}: r {least:.2f}, to the median r", least / rows[n]["correlation"], 1.0, _numbers(rows[n]))
        for n, least in ASKED.items()
    ]
    largest = max(row["control"] for row in rows.values())
    return [*claims, Claim("the largest control (median), to r 0.15", largest / CONTROL, 1.0, f"r {largest:.2f}")]


def of_streams(lm: unembed.LanguageModel) -> list[Claim]:
    """The affine reading of streams against the model's own prediction."""
    assert lm.lens is not None and lm.lens.check is not None
    ours, theirs = (float(kl[KL_LAYER]) for kl in (lm.lens.check.kl, lm.lens.check.logit_lens_kl))
    stream = lm.run("The capital of France is", "resid_post").at("resid_post", KL_LAYER)[0, -1]
    rank = 1 + int((scores := lm.lens.read(stream, KL_LAYER)).gt(scores[lm.single_token(" Paris")]).sum())
    return [
        Claim(
            f"layer {KL_LAYER}: median KL to the prediction, to a fifth of the logit lens'", ours / theirs / KL_SHARE, 1.0,
            f"{ours:.2f} and {theirs:.2f} nats",
        ),
        Claim(f"layer {KL_LAYER} of 'The capital of France is': rank of ·Paris, to 1", rank, 1.0),
    ]  # fmt: skip


def _numbers(row: dict[str, float]) -> str:
    return f"r {row['correlation']:.2f}, overlap {100 * row['overlap']:.0f} %, control {row['control']:.2f}"


def table(name: str, lm: unembed.LanguageModel) -> str:
    """The table of the page: both lenses by layer."""
    by_lens = truth(lm, SHOWN[name])
    with reading_by(lm, None):
        plain = truth(lm, SHOWN[name])
    lines = [
        "| layer | logit lens: *r* / overlap | fitted lens: *r* / overlap | control: median / 99 % |",
        "|---|---|---|---|",
    ]
    for a, b in zip(plain.by_layer().rows(), by_lens.by_layer().rows(), strict=True):
        both = [f"{row['correlation']:.2f} / {100 * row['overlap']:.0f} %" for row in (a, b)]
        lines.append(f"| {b['layer']} | {both[0]} | {both[1]} | {b['control']:.2f} / {b['control_99']:.2f} |")
    return "\n".join(lines)


def write_table(name: str, text: str) -> None:
    """Replace a table of the page, which stands behind a comment with the name of its model."""
    page = PAGE.read_text(encoding="utf-8")
    marked = re.compile(rf"(<!-- readings of {name} -->\n\n)(?:\|.*\n)+")
    assert marked.search(page), f"no table of {name}"
    PAGE.write_text(marked.sub(lambda found: f"{found[1]}{text}\n", page), encoding="utf-8")


def main() -> None:
    """Measure the claims, and write the tables where that is wanted."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tables", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(1)
    lm = opened("smollm2")
    how = f"SmolLM2-135M-Instruct; {PER_LAYER} random memories a layer, {PLACES} passages that the lens was not fitted on."
    record("Readings of a real model", [*of_values(lm), *of_streams(lm)], how=how)
    if given.tables:
        write_table("smollm2", table("smollm2", lm))
        write_table("wren", table("wren", opened("wren")))


if __name__ == "__main__":
    main()
