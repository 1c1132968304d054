"""The sign of a gated memory is a convention: no number or verdict of a report depends on it.

A memory writes act(gate . x) (up . x) v. Negating `up` and `v` of half of the memories changes the weights and leaves
the function bit by bit as it is. Only the names of memories change: a memory at its negative pole is then the same
memory at its positive one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import unembed
from tests.families import build
from tests.sweeps.recorder import lettered, texts
from unembed.annotation.files import Pattern
from unembed.jacobian import fit_lens
from unembed.language_model import LanguageModel
from unembed.reports import Report
from unembed.reports.random_weights import with_random_weights
from unembed.stream.run import run

SMALL: dict[str, dict[str, Any]] = {
    "geva2021": {
        "examples": 60, "top": 6, "shown": 6, "pattern_keys": 6, "perturbed_keys": 4, "predictive": 20,
        "compositions": 20, "tokens_per_batch": 300,
    },
    "geva2022": {
        "examples": 60, "per_layer": 6, "clusters": 9, "norm_values": 8, "exit_examples": 40, "exit_protocol": "quick",
    },
    "elhage2021": {"sequences": 3, "tokens": 300, "windows": 2},
}  # fmt: skip
MODULES = {
    "llama": ("up_proj", "down_proj"),
    "gemma2": ("up_proj", "down_proj"),
}


def half_negated(family: str) -> LanguageModel:
    """The same function with every second memory negated."""
    hf = build(family)
    up, down = MODULES[family]
    changed = 0
    with torch.no_grad():
        for name, weight in hf.named_parameters():
            if name.endswith(f"{up}.weight"):
                weight[::2] *= -1
                changed += 1
            elif name.endswith(f"{down}.weight"):
                weight[:, ::2] *= -1
                changed += 1
    assert changed == 2 * hf.config.num_hidden_layers
    return unembed.load(hf, tokenizer=lettered(family).tokenizer)


def without_signs(cell: object) -> object:
    """A cell without the minus sign of names of memories, and without NaN."""
    if isinstance(cell, str):
        return re.sub(r"-(?=L\d+M\d+)", "", cell)
    if isinstance(cell, float) and math.isnan(cell):
        return None
    if isinstance(cell, (list, tuple)):
        return [without_signs(one) for one in cell]
    return cell


def compared(report: Report) -> dict[str, object]:
    """Everything that a report states, by place: findings, facts, tables and text."""
    stated: dict[str, object] = {f"fact {name}": value for name, value in report.facts.items()}
    stated |= {name: getattr(report, name) for name in ("name", "title", "subtitle", "source")}
    for section in report.sections:
        stated[f"text of {section.title}"] = section.text
        stated |= {f"finding {finding.claim}": asdict(finding) for finding in section.findings}
        stated |= {f"figure {figure.name}": asdict(figure) for figure in section.figures}
    for name, exhibit in report.exhibits.items():
        stated[f"words of {name}"] = without_signs([exhibit.table.title, exhibit.note])
        for column in exhibit.table.column_names:
            stated[f"{name}.{column}"] = without_signs([row[column] for row in exhibit.table.rows()])
    return stated


class Longest:
    """A judge that finds one pattern, in the longest items."""

    annotator = "longest"

    def patterns(self, items: Sequence[str], instruction: str) -> list[Pattern]:
        longest = sorted(range(len(items)), key=lambda i: (-len(items[i]), i))
        return [Pattern("long", "semantic", tuple(longest[:4]))]


def all_parts(study: str, folder: Path) -> dict[str, Any]:
    """Options with which no section is left out."""
    if study == "elhage2021":
        return SMALL[study]
    if study == "geva2021":
        return {**SMALL[study], "judge": Longest(), "semantic": "both"}
    (folder / "prompts.txt").write_text("the dog\na zebra\n", encoding="utf-8")
    (folder / "words.txt").write_text("of\n", encoding="utf-8")
    files = {"prompts": str(folder / "prompts.txt"), "words": str(folder / "words.txt")}
    return {**SMALL[study], **files, "judge": Longest(), "beams": 2}


@pytest.mark.parametrize(("family", "whole"), [("llama", True), ("gemma2", False)])
@pytest.mark.parametrize("study", list(SMALL))
def test_negated_memories_move_no_number_and_no_verdict(
    study: str, family: str, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a report states; `whole`: with the parts that need files, a judge or a fitted lens."""
    models = lettered(family), half_negated(family)
    example = torch.arange(3, 20)[None]
    assert torch.equal(run(models[0], example).logits, run(models[1], example).logits)
    assert not torch.equal(models[0].weights.W_out[0], models[1].weights.W_out[0])
    random = [with_random_weights(lm).weights.W_out[0] for lm in models]
    assert torch.equal(*random), "the control is the same"
    options = all_parts(study, tmp_path) if whole else SMALL[study]
    if whole:
        for lm in models:
            lm.use_lens(fit_lens(lm, texts(20), 2, 12))
    own, other = (
        compared(unembed.report(study, lm, texts(12), tmp_path / str(i), control=False, **options))
        for i, lm in enumerate(models)
    )
    assert own.keys() == other.keys()
    assert ("text of Readings by the fitted lens" in own) == whole
    moved = [name for name in own if own[name] != other[name]]
    assert not moved, "\n".join(f"{name}: {own[name]} | {other[name]}" for name in moved)
