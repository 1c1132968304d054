"""A list of prompts gives their traces in order, which print as one table."""

from __future__ import annotations

import pytest

from tests.conftest import tiny
from unembed import load
from unembed.errors import InvalidInput
from unembed.results import Records
from unembed.trace import Trace


def test_traces_of_a_list_are_those_of_its_prompts() -> None:
    lm = tiny("gpt2")
    prompts = [[5, 6, 7, 8], [9, 10]]
    found = lm.trace(prompts)
    assert isinstance(found, Records) and len(found) == 2
    for trace, prompt in zip(found, prompts, strict=True):
        assert trace.tokens.tolist() == prompt
        assert trace.prediction.tolist() == lm.trace(prompt).prediction.tolist()
    assert isinstance(lm.trace([5, 6, 7, 8]), Trace)
    assert found.to_table().columns["text"] == [None, None]  # this model has no tokenizer


def test_the_table_has_a_row_for_each_prompt_with_its_two_likeliest_tokens() -> None:
    lm = load()
    prompts = ["The first month of the year is", "The king of France"]
    rows = list(lm.trace(prompts).to_table().rows())
    for row, prompt in zip(rows, prompts, strict=True):
        readings = lm.trace(prompt).readings(top=2)
        assert [row["prediction"], row["runner_up"]] == readings.tokens[-1][-1]
        best = readings.probabilities[-1, -1].tolist()
        assert [row["probability"], row["runner_up_probability"]] == pytest.approx(best, abs=1e-5)
        assert row["text"] == prompt and row["tokens"] == len(lm.encode(prompt)[0])
    assert [row["prompt"] for row in rows] == [0, 1]


def test_edits_hold_in_every_trace_and_no_prompts_are_refused() -> None:
    lm = tiny("gpt2")
    with pytest.raises(InvalidInput, match="empty list of prompts"):
        lm.trace([])
    from unembed import scale_ffn

    edited = lm.trace([[5, 6], [7, 8]], edits=scale_ffn(0, by=0.0))
    assert all(len(trace.edits) == 1 for trace in edited)
