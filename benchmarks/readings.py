"""How true readings are on a real model: values against what adding them does, and streams against the prediction.

    python benchmarks/readings.py           # smollm2 (`unembed models get smollm2`), read by its fitted lens
    python benchmarks/readings.py --tables  # also both tables of docs/explanation.md, of smollm2 and wren
    python benchmarks/readings.py --shared  # only docs/decisions/0008: lists without what all values share

A claim is the number asked for, divided by the measured one; the control is divided by its bound.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

import unembed
from unembed.corpus import open_corpus
from unembed.jacobian import reading_by
from unembed.jacobian.basis import in_basis
from unembed.jacobian.passes import cache_of
from unembed.lens import logits_of, top_k
from unembed.memories import ReadingTruth, reading_truth
from unembed.memories.truth_of_values import LISTED, unread_windows, value_effects
from unembed.names import Basis
from unembed.results import Table

try:
    from benchmarks.measure import Claim, into_results, record
except ImportError:  # run as a script
    from measure import Claim, into_results, record

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


Scores = Float[Tensor, "memory d_vocab"]
LIST, COMMON, GLUE = 30, 200, 5
"""A list of 30 tokens is glue if five of them are among the 200 tokens that stand in most lists."""
SHARED, IN_LISTS = (13, 22, 29), 170
"""Layers, and random memories of each, whose lists are compared."""


def shared(lm: unembed.LanguageModel) -> Table:
    """How many lists are glue, and how true readings are, with and without what the values of a layer share."""
    frequency = log_frequency(lm)
    windows = unread_windows(lm, None, PLACES)
    caches = [cache_of(lm, window[:-1]) for window in windows]
    lists: dict[str, list[Tensor]] = {}
    agreement: dict[str, list[tuple[Tensor, Tensor]]] = {}
    raised: list[Tensor] = []
    for layer in SHARED:
        values = lm.weights.W_out[layer].float()
        drawn = torch.randperm(len(values), generator=torch.Generator().manual_seed(layer))[:IN_LISTS]
        effects = value_effects(lm, values[drawn[:PER_LAYER]], layer, windows, caches)
        raised.append(listed(lm, effects))
        for name, scores in readings(lm, values, drawn, layer, frequency):
            lists.setdefault(name, []).append(listed(lm, scores))
            agreement.setdefault(name, []).append(agreements(scores[:PER_LAYER], effects))
    columns: dict[str, list[object]] = {
        "reading": [*lists, "(what adding the value raises)"],
        "glue": [*(glue(torch.cat(one)) for one in lists.values()), None],
        "glue, measured values": [
            *(glue(torch.cat([part[:PER_LAYER] for part in one])) for one in lists.values()),
            glue(torch.cat(raised)),
        ],
    }
    for at, layer in enumerate(SHARED):
        columns[f"r, layer {layer}"] = [*(float(one[at][0].median()) for one in agreement.values()), None]
        columns[f"overlap, layer {layer}"] = [*(float(one[at][1].mean()) for one in agreement.values()), None]
    return Table("Lists without what all values share", columns, lm.provenance(seed=0))


def log_frequency(lm: unembed.LanguageModel) -> Float[Tensor, " d_vocab"]:
    """The log of how often each token occurs in the shipped text, and once more; minus its mean, of length 1."""
    counts = torch.ones(lm.d_vocab)
    for document in open_corpus(None).documents():
        counts += torch.bincount(lm.encode(document.text)[0], minlength=lm.d_vocab)
    log = counts.log()
    return torch.nn.functional.normalize(log - log.mean(), dim=0)


@torch.no_grad()
def readings(
    lm: unembed.LanguageModel,
    values: Float[Tensor, "d_mlp d_model"],
    drawn: Int[Tensor, " memory"],
    layer: int,
    frequency: Float[Tensor, " d_vocab"],
) -> Iterator[tuple[str, Scores]]:
    """The scores of some values of a layer in every reading that is compared."""
    yield "logit lens", scored(lm, values[drawn], layer, "raw")
    every = scored(lm, values, layer, "jacobian")
    fitted = every[drawn]
    yield "fitted lens", fitted
    mean = torch.nn.functional.normalize(values.mean(dim=0), dim=0)
    without = scored(lm, without_direction(values[drawn], mean), layer, "jacobian")
    yield "fitted lens, without the mean value", without
    yield "fitted lens, without the log-frequency", without_direction(fitted, frequency)
    yield "fitted lens, without both", without_direction(without, frequency)
    yield "fitted lens, in standard deviations", (fitted - every.mean(dim=0)) / every.std(dim=0).clamp_min(1e-12)


def scored(lm: unembed.LanguageModel, vectors: Float[Tensor, "row d_model"], layer: int, basis: Basis) -> Scores:
    """The scores of vectors, minus their mean over the vocabulary."""
    scores = logits_of(lm, *in_basis(lm, vectors, layer, basis)).float()
    return scores - scores.mean(dim=1, keepdim=True)


def without_direction(rows: Float[Tensor, "row n"], direction: Float[Tensor, " n"]) -> Float[Tensor, "row n"]:
    """The rows without their components along a direction of length 1."""
    return rows - (rows @ direction)[:, None] * direction


def listed(lm: unembed.LanguageModel, scores: Scores) -> Int[Tensor, "memory list"]:
    """The tokens that lists show."""
    return top_k(scores.masked_fill(lm.unlisted, -torch.inf), LIST)[1]


def glue(lists: Int[Tensor, "memory list"]) -> float:
    """The share of lists that are glue."""
    common = lists.flatten().bincount().topk(COMMON).indices
    return float((torch.isin(lists, common).sum(dim=1) >= GLUE).float().mean())


def agreements(scores: Scores, effects: Scores) -> tuple[Float[Tensor, " memory"], Float[Tensor, " memory"]]:
    """By memory, r over the vocabulary and the overlap of the first tokens, with what adding the value does."""
    r = torch.cosine_similarity(scores - scores.mean(1, keepdim=True), effects - effects.mean(1, keepdim=True), dim=1)
    first, risen = (part.topk(LISTED, dim=1).indices for part in (scores, effects))
    return r, (first[:, :, None] == risen[:, None, :]).any(dim=2).float().mean(dim=1)


def main() -> None:
    """Measure the claims, and write the tables where that is wanted."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tables", action="store_true")
    options.add_argument("--shared", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(1)
    lm = opened("smollm2")
    if given.shared:
        into_results("Lists without what all values share", [shared(lm)])
        return
    how = f"SmolLM2-135M-Instruct; {PER_LAYER} random memories a layer, {PLACES} passages that the lens was not fitted on."
    record("Readings of a real model", [*of_values(lm), *of_streams(lm)], how=how)
    if given.tables:
        write_table("smollm2", table("smollm2", lm))
        write_table("wren", table("wren", opened("wren")))


if __name__ == "__main__":
    main()
