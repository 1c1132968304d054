"""The logit lens over many prompts is what each prompt's own readings are."""

from __future__ import annotations

import pytest
import torch

import unembed
from tests.stream.test_massive_activations import with_massive_token
from unembed.errors import InvalidInput, OutOfRange
from unembed.trace import logit_lens
from unembed.trace.lens_table import lens

PROMPTS = ["The first month of the year is", "He was born"]


@pytest.fixture(scope="module")
def lm() -> unembed.LanguageModel:
    return unembed.load()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_last_row_of_a_prompt_is_the_models_own_prediction(dtype: str) -> None:
    lm = unembed.load(dtype=dtype)
    rows = list(logit_lens(lm, PROMPTS, layer=lm.n_layers - 1, show_unlearned=True).rows())
    assert [row["prompt"] for row in rows] == [0, 1]
    for row, prompt in zip(rows, PROMPTS, strict=True):
        with torch.no_grad():
            logits = lm.hf(lm.encode(prompt)).logits[0, -1].float()
        assert row["id"] == int(logits.argmax())
        assert row["probability"] == pytest.approx(
            float(logits.softmax(-1).max()), rel=1e-2 if dtype != "float32" else 1e-5
        )
        assert row["input"] == lm.token_strings(lm.encode(prompt)[0])[-1]


def test_every_position_and_rank_has_a_row(lm: unembed.LanguageModel) -> None:
    table = logit_lens(lm, PROMPTS, position=None, top=3, point="resid_mid")
    lengths = [lm.encode(prompt).shape[1] for prompt in PROMPTS]
    assert len(table) == lm.n_layers * sum(lengths) * 3
    own = lm.trace(PROMPTS[1]).readings("resid_mid", 3).to_table()
    rows = [row for row in table.rows() if row["prompt"] == 1]
    for name in ("layer", "position", "rank", "id", "probability", "logit"):
        assert [row[name] for row in rows] == own.columns[name]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_where_the_stream_is_massive_a_note_and_a_remark_say_so(family: str) -> None:
    lm, texts = with_massive_token(family, "q"), ["a b q c d", "a b c d e", "q a b c d", "q b", "a q b"]
    table = logit_lens(lm, texts, position=None)
    expected = [
        f"position {at} of prompt {n}"
        for n, text in enumerate(texts)
        for at in range(len(lm.encode(text)[0]))
        if lm.trace(text).massive()[:, at].any()
    ]
    places = f"{', '.join(expected[:3])} and 1 more"
    assert len(expected) == 4 and table.provenance.notes["massive_activations"] == places
    (remark,) = lens(lm, texts, all_positions=True).remarks
    assert f"at {places} is over 10 times" in remark
    assert lens(lm, texts[1:2], all_positions=True).remarks == ()
    last = logit_lens(lm, texts)
    assert "massive_activations" not in last.provenance.notes, "only positions that are shown count"


def test_what_is_not_there_is_refused(lm: unembed.LanguageModel) -> None:
    with pytest.raises(InvalidInput, match="empty list of prompts"):
        logit_lens(lm, [])
    with pytest.raises(OutOfRange, match="position 6"):
        logit_lens(lm, PROMPTS, position=6)
