"""The sign of a gated memory is a convention: no number or verdict of a report depends on it.

A memory writes act(gate . x) (up . x) v. Negating `up` and `v` of half of the memories changes the weights and leaves
the function bit by bit as it is. Only the names of memories change: a memory at its negative pole is then the same
memory at its positive one.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import unembed
from tests.families import build
from tests.sweeps.recorder import lettered, texts
from unembed.language_model import LanguageModel
from unembed.reports import Report
from unembed.stream.run import run

SMALL: dict[str, dict[str, Any]] = {
    "geva2021": {
        "examples": 60, "top": 6, "shown": 6, "pattern_keys": 6, "perturbed_keys": 4, "predictive": 20,
        "compositions": 20, "tokens_per_batch": 300,
    },
    "geva2022": {"examples": 60, "per_layer": 6, "clusters": 9, "norm_values": 8, "exit_examples": 40},
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
    for section in report.sections:
        stated[f"text of {section.title}"] = section.text
        for finding in section.findings:
            stated[f"finding {finding.claim}"] = vars(finding) if hasattr(finding, "__dict__") else finding
    for name, exhibit in report.exhibits.items():
        for column in exhibit.table.column_names:
            stated[f"{name}.{column}"] = without_signs([row[column] for row in exhibit.table.rows()])
    return stated


@pytest.mark.parametrize("family", list(MODULES))
@pytest.mark.parametrize("study", list(SMALL))
def test_negated_memories_move_no_number_and_no_verdict(study: str, family: str, tmp_path: Path) -> None:
    models = lettered(family), half_negated(family)
    example = torch.arange(3, 20)[None]
    assert torch.equal(run(models[0], example).logits, run(models[1], example).logits)
    assert not torch.equal(models[0].weights.W_out[0], models[1].weights.W_out[0])
    own, other = (
        compared(unembed.report(study, lm, texts(12), tmp_path / str(i), control=False, **SMALL[study]))
        for i, lm in enumerate(models)
    )
    assert own.keys() == other.keys()
    moved = [name for name in own if own[name] != other[name]]
    assert not moved, "\n".join(f"{name}: {own[name]} | {other[name]}" for name in moved)
