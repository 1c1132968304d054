"""Positions with massive activations: found by the stream's length in a model that has them, and in none without."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import unembed
from tests.sweeps.recorder import lettered
from unembed.language_model import LanguageModel
from unembed.memories.event_sample import EventRecorder, record_events
from unembed.memories.prefix_sampling import draw_examples
from unembed.stream.massive_activations import MASSIVE, massive_positions, massive_ratios, stream_lengths
from unembed.trace import emergence


def with_massive_token(family: str, letter: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """The embedding of one letter is a hundred times as long as it was."""
    own = lettered(family, dtype)
    lm = unembed.load(copy.deepcopy(own.hf), tokenizer=own.tokenizer)
    with torch.no_grad():
        lm.hf.get_input_embeddings().weight[lm.single_token(letter)] *= 100
    return lm


def test_a_position_is_massive_where_it_is_ten_times_the_median_of_any_layer() -> None:
    lengths = np.array([[1.0, 1, 1, 1, 10], [2.0, 2, 30, 2, 2], [5.0, 51, 5, 5, 5]])
    assert massive_positions(lengths).tolist() == [False, True, True, False, False]
    assert not massive_positions(np.array([[3.0]])).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_examples_that_end_in_a_massive_token_are_found_and_the_others_are_kept(
    family: str, dtype: torch.dtype
) -> None:
    lm = with_massive_token(family, "q", dtype)
    texts = [f"{a} b c {b} d" for a, b in zip("aqefgqhijk", "lmqnoprstu", strict=True)]
    prefixes = [lm.encode(text[:length])[0].numpy() for text in texts for length in (1, 5, 7)]
    found = massive_positions(stream_lengths(lm, prefixes))
    q = lm.single_token("q")
    assert found.tolist() == [prefix[-1] == q for prefix in prefixes] and 2 <= found.sum() < 5
    assert not massive_positions(stream_lengths(lettered(family, dtype), prefixes)).any(), "the control"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_trace_says_where_the_stream_is_massive(family: str, dtype: torch.dtype) -> None:
    text = "a b q c d"
    trace = with_massive_token(family, "q", dtype).trace(text)
    at = trace.token_strings.index("q")
    lengths = trace.stream("resid_post").double().norm(dim=-1)
    ratios = lengths / lengths.quantile(0.5, dim=1, keepdim=True, interpolation="lower")
    massive = ratios > MASSIVE
    assert massive.any() and not massive[:, torch.arange(len(trace)) != at].any(), "the premise"
    torch.testing.assert_close(trace.massive().double(), ratios.where(massive, 0.0), rtol=1e-5, atol=0)
    layers = [layer for layer in range(trace.lm.n_layers) if massive[layer, at]]
    assert emergence(trace.lm, trace, text).massive == {at: layers}
    control = lettered(family, dtype)
    assert emergence(control, control.trace(text), text).massive == {}
    assert not with_massive_token(family, "q", dtype).trace("q").massive().any(), "one position has nothing to compare"


def test_of_two_positions_one_can_be_massive() -> None:
    stream = torch.tensor([[[3.0, 4.0], [30.0, 40.1]], [[1.0, 0.0], [2.0, 0.0]]])
    torch.testing.assert_close(massive_ratios(stream), torch.tensor([[0.0, 10.016], [0.0, 0.0]]), rtol=1e-4, atol=0)


def test_a_sample_of_events_without_some_examples_is_that_of_the_others() -> None:
    lm = with_massive_token("llama", "q")
    examples = draw_examples(lm, [f"{a} q {b} c q d" for a, b in zip("abcdefgh", "ijklmnop", strict=True)], 8)

    def sampled(chosen: list) -> dict[str, Any]:
        recorder = EventRecorder()
        recorder.start(lm)
        return vars(record_events(lm, chosen, recorder, 1000))

    recorder = EventRecorder()
    recorder.start(lm)
    every = record_events(lm, examples, recorder, 1000)
    massive = massive_positions(every.stream_length)
    assert 0 < massive.sum() < len(examples)
    assert (every.stream_length / np.median(every.stream_length, axis=1)[:, None] > MASSIVE).any(axis=0).tolist() == (
        massive.tolist()
    )
    left = vars(every.only(~massive))
    again = sampled([e for e, out in zip(examples, massive, strict=True) if not out])
    for name, array in again.items():
        if isinstance(array, np.ndarray) and not name.startswith("random"):
            np.testing.assert_allclose(left[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
