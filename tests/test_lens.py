"""Readings against the model's own logits and against plain selections."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import tiny
from tests.families import EXPERTS, FAMILIES
from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel
from unembed.lens import final_scale, logit_direction, logits_of, read, read_ends, top_k
from unembed.stream.run import run


def test_the_final_basis_on_the_last_stream_is_the_model(any_lm: LanguageModel, tokens: torch.Tensor) -> None:
    done = run(any_lm, tokens, ["resid_post"])
    with torch.no_grad():
        expected = logits_of(any_lm, done["resid_post"][-1])
    torch.testing.assert_close(expected, done.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_frozen_readings_of_parts_add_up(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name, torch.float32 if name in EXPERTS else torch.float64)
    last = run(lm, tokens, ["resid_post"])["resid_post"][-1]
    scale = final_scale(lm, last)
    parts = [last * 0.25 + 1, last * 0.75 - 1]
    with torch.no_grad():
        summed = sum(logits_of(lm, p, "frozen", scale) for p in parts)
        whole = logits_of(lm, last, "frozen", scale)
    torch.testing.assert_close(summed, whole, rtol=1e-4, atol=1e-4)
    u = logit_direction(lm, 5) / scale
    torch.testing.assert_close((last * u).sum(-1), whole[..., 5], rtol=1e-4, atol=1e-4)


def test_the_raw_basis_is_the_unembedding_alone(any_lm: LanguageModel, tokens: torch.Tensor) -> None:
    x = run(any_lm, tokens, ["resid_pre"])["resid_pre"][0]
    weight = any_lm.hf.get_output_embeddings().weight
    torch.testing.assert_close(logits_of(any_lm, x, "raw"), x @ weight.T)


@given(st.integers(1, 40), st.integers(1, 3000), st.integers(0, 10_000))
def test_top_k_equals_a_full_sort(k: int, n: int, seed: int) -> None:
    scores = torch.randn(3, n, generator=torch.Generator().manual_seed(seed))
    values, ids = top_k(scores, k)
    expected = scores.sort(dim=-1, descending=True).values[:, : min(k, n)]
    assert torch.equal(values, expected) and torch.equal(scores.gather(1, ids), expected)


def test_ranks_count_larger_logits_and_a_tie_shares_the_better() -> None:
    lm = tiny("gpt2")
    x = torch.randn(50, lm.d_model, generator=torch.Generator().manual_seed(3))
    every = torch.arange(lm.d_vocab).expand(50, -1)
    reading = read(lm, x, 3, track=every)
    logits = logits_of(lm, x)
    assert torch.equal(reading.tracked_ranks, (logits[:, None, :] > logits[:, :, None]).sum(-1) + 1)


def test_reading_by_chunks_equals_reading_at_once(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    x = torch.randn(300, lm.d_model, generator=torch.Generator().manual_seed(0))
    track = torch.randint(0, lm.d_vocab, (300, 2), generator=torch.Generator().manual_seed(1))
    reading = read(lm, x, 7, track=track)
    with torch.no_grad():
        logits = logits_of(lm, x)
    probabilities = logits.softmax(-1)
    torch.testing.assert_close(reading.probabilities, probabilities.gather(1, reading.ids))
    assert torch.equal(reading.ids[:, 0], logits.argmax(-1))
    torch.testing.assert_close(reading.tracked_probabilities, probabilities.gather(1, track))
    above = (logits[:, None, :] > logits.gather(1, track)[:, :, None]).sum(-1) + 1
    assert torch.equal(reading.tracked_ranks, above)


@pytest.mark.parametrize("basis", ["raw", "final", "frozen"])
def test_going_through_the_vocabulary_in_columns_changes_nothing(basis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gptj", "gemma2", "cohere"):  # head bias, soft cap, logit scale
        lm = tiny(name)
        x = torch.randn(30, lm.d_model, generator=torch.Generator().manual_seed(0))
        scale = torch.rand(30, 1, generator=torch.Generator().manual_seed(1)) + 0.5
        track = torch.randint(0, lm.d_vocab, (30, 2), generator=torch.Generator().manual_seed(2))
        hidden = torch.rand(lm.d_vocab, generator=torch.Generator().manual_seed(3)) < 0.2
        whole = read(lm, x, 5, basis=basis, scale=scale, track=track, hidden=hidden)
        monkeypatch.setattr("unembed.lens.COLUMNS", 7)
        monkeypatch.setattr("unembed.lens.ROWS", 11)
        parts = read(lm, x, 5, basis=basis, scale=scale, track=track, hidden=hidden)
        monkeypatch.undo()
        assert torch.equal(whole.ids, parts.ids) and torch.equal(whole.tracked_ranks, parts.tracked_ranks)
        torch.testing.assert_close(whole.log_total, parts.log_total)
        torch.testing.assert_close(whole.logits, parts.logits)


def test_ranks_count_hidden_tokens() -> None:
    lm = tiny("llama")
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(6, lm.d_model, generator=generator)
    hidden = torch.rand(lm.d_vocab, generator=generator) < 0.3
    track = torch.randint(lm.d_vocab, (6, 4), generator=generator)
    track[:, 0] = read(lm, x, 1, hidden=hidden).ids[:, 0]
    with_hidden, all_listed = read(lm, x, 5, track=track, hidden=hidden), read(lm, x, 5, track=track)
    assert torch.equal(with_hidden.tracked_ranks, all_listed.tracked_ranks)
    logits = logits_of(lm, x, "final")
    expected = (logits[:, None] > logits.gather(1, track)[..., None]).sum(-1) + 1
    assert torch.equal(with_hidden.tracked_ranks, expected)
    torch.testing.assert_close(with_hidden.highest_hidden, logits[:, hidden].amax(1))
    assert bool(all_listed.highest_hidden.isneginf().all())


def test_hidden_tokens_leave_lists_but_not_the_total() -> None:
    lm = tiny("gpt2")
    x = torch.randn(4, lm.d_model, generator=torch.Generator().manual_seed(0))
    plain = read(lm, x, 3)
    hidden = torch.zeros(lm.d_vocab, dtype=torch.bool)
    hidden[plain.ids[:, 0]] = True
    left = read(lm, x, 3, hidden=hidden)
    assert not hidden[left.ids].any()
    torch.testing.assert_close(left.log_total, plain.log_total)


def test_both_ends_are_the_lists_of_the_vectors_and_of_their_opposites(
    any_lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = any_lm
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(9, lm.d_model, generator=generator, dtype=lm.dtype)
    hidden = torch.rand(lm.d_vocab, generator=generator) < 0.2
    for rows, columns in ((1024, 4096), (4, 7)):
        monkeypatch.setattr("unembed.lens.ROWS", rows)
        monkeypatch.setattr("unembed.lens.COLUMNS", columns)
        for left_out in (None, hidden):
            scores = (x @ lm.weights.W_U).detach()
            found = read_ends(lm, x, 5, hidden=left_out)
            for (end, of_end), sign in zip(found, (1, -1), strict=True):
                torch.testing.assert_close(of_end, scores.gather(1, end))
                own = sign * scores
                if left_out is not None:
                    own = own.masked_fill(left_out, -torch.inf)
                    assert not left_out[end].any()
                assert torch.equal(own.gather(1, end), own.sort(dim=1, descending=True).values[:, :5])


def test_frozen_without_a_scale_is_refused() -> None:
    lm = tiny("gpt2")
    with pytest.raises(InvalidInput, match="scale that the final norm had"):
        logits_of(lm, torch.zeros(1, lm.d_model), "frozen")
    with pytest.raises(InvalidInput, match="not one of raw, final, frozen"):
        logits_of(lm, torch.zeros(1, lm.d_model), "folded")
