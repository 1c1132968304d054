"""Reruns of the last position alone give the logits of reruns of the whole prompt."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from tests.conftest import tiny

from unembed import add_vector, scale_coefficient, scale_head
from unembed.causality.last_position import LastPosition
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun
from unembed.language_model import LanguageModel
from unembed.names import SUM_TOLERANCE
from unembed.stream.attention_keys import Attended, keep_keys

NAMES = ["gpt2", "llama", "gemma2", "qwen2_moe", "gpt_neox", "phi3"]
"""With and without gates, grouped queries and rotations; with windows and norms on both sides; with experts."""


def _rerun(lm: LanguageModel, ids: torch.Tensor, edits: Any = ()) -> tuple[Rerun, dict[int, Attended]]:
    with ExitStack() as stack:
        kept = keep_keys(stack, lm)
        return Rerun(lm, ids, (), edits), kept


def _rows(n_pos: int, lm: LanguageModel) -> list[list[Replacement]]:
    here, zero = torch.tensor([n_pos - 1]), torch.tensor(0.0)
    of = lm.structure.blocks[0].attention
    return [
        [Replacement("z", 0, here, 1, zero)],
        [Replacement("z", 1, here, 0, torch.ones(1, of.d_head))],
        [Replacement("coefficients", 0, here, torch.tensor([3]), zero)],
        [Replacement("coefficients", 1, here, torch.tensor([5]), torch.tensor(7.0))],
        [Replacement("attn_out", 1, here, None, zero)],
        [Replacement("mlp_out", 0, here, None, zero)],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_reruns_of_the_whole_prompt(name: str, dtype: torch.dtype, tokens: torch.Tensor) -> None:
    lm = tiny(name, dtype)
    rerun, kept = _rerun(lm, tokens[:1])
    rows = _rows(rerun.n_pos, lm)
    expected = rerun.logits(rows).double()
    found = LastPosition(rerun, kept).logits(rows)
    assert found is not None
    unchanged, changed = found
    tolerance = (1e-5 if dtype == torch.float32 else SUM_TOLERANCE[lm.dtype_name]) * float(expected.abs().max())
    torch.testing.assert_close(unchanged.double(), rerun.reference.double(), rtol=0, atol=tolerance)
    torch.testing.assert_close(changed.double(), expected, rtol=0, atol=tolerance)
    moved = (expected - rerun.reference.double()).abs().amax(1)
    if dtype == torch.float32:
        assert int((moved > 10 * tolerance).sum()) >= 4  # a memory of an expert that was not chosen does nothing


def test_batches_of_few_rows_give_the_same(tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny("llama")
    rerun, kept = _rerun(lm, tokens[:1])
    rows = _rows(rerun.n_pos, lm)
    whole = LastPosition(rerun, kept).logits(rows)
    monkeypatch.setattr("unembed.causality.last_position.KEYS_AT_ONCE", 1)
    parts = LastPosition(rerun, kept).logits(rows)
    assert whole is not None and parts is not None
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-5, atol=1e-5)


def test_edits_hold_at_the_position_alone(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    n = tokens.shape[1]
    edits = [
        scale_head(1, 2, 0.0, "last"),
        scale_coefficient(0, 4, 3.0, [n - 1]),
        add_vector(0, [0.3] * lm.d_model, positions=[1]),
        scale_coefficient(1, 6, 2.0),
    ]
    rerun, kept = _rerun(lm, tokens[:1], edits)
    rows = _rows(rerun.n_pos, lm)
    found = LastPosition(rerun, kept).logits(rows)
    assert found is not None
    torch.testing.assert_close(found[1], rerun.logits(rows), rtol=1e-5, atol=1e-5)


def test_keys_of_another_prompt_are_noticed(tokens: torch.Tensor) -> None:
    lm = tiny("llama")
    rerun, _ = _rerun(lm, tokens[:1])
    _, others = _rerun(lm, (tokens[:1] + 1) % lm.d_vocab)
    assert LastPosition(rerun, others).logits(_rows(rerun.n_pos, lm)) is None
    assert LastPosition(rerun, {}).logits(_rows(rerun.n_pos, lm)) is None
