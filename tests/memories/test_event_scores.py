"""Scores of events against those picked by hand from a sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.conftest import tiny
from tests.memories.test_event_sample import hand_made, prefixes
from unembed.errors import InvalidInput
from unembed.memories.event_sample import EventRecorder, record_events
from unembed.memories.event_scores import (
    candidate_scores,
    event_scores,
    extreme_sub_updates,
    scores_in_logits,
)
from unembed.stream.decomposition import branch_of_run


def test_scores_of_events_are_those_of_their_layer_and_token():
    sample = hand_made()
    assert (event_scores(sample, "saturation") == sample.scores[0, 2, :, 0, 0][None]).all()
    assert (event_scores(sample, "elimination", basis="frozen")[0] == sample.scores[1, 0, :, 1, 1]).all()
    assert (event_scores(sample, "elimination", random=True)[1] == -sample.scores[0, 1, :, 1, 0]).all()
    assert (candidate_scores(sample) == sample.scores[..., 1, 0]).all()
    extreme = extreme_sub_updates(sample, 300.0)
    assert (extreme.score > 300).all()
    assert len(extreme) == int((sample.scores[..., 1, 0] > 300).sum())
    assert len(extreme_sub_updates(sample, share=0.1)) == 9
    with pytest.raises(InvalidInput, match="basis"):
        event_scores(sample, "saturation", basis="final")


def test_scores_in_logits_are_the_frozen_ones_at_the_scale_of_the_stream_before_the_ffn():
    sample = hand_made()
    scale = (sample.last_norm_scale / sample.norm_scale)[:, :, None, None]
    assert (scores_in_logits(sample) == sample.scores[..., 1] * scale).all()
    assert (scores_in_logits(sample, random=True) == -scores_in_logits(sample)).all()
    with pytest.raises(InvalidInput, match="basis"):
        scores_in_logits(sample, basis="adaptive")


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gptj"])
def test_scores_in_logits_are_the_derivative_of_the_logit_but_for_the_norms_scale(family: str):
    """Without the change of the norm's divisor, the logit through the norm changes by the score: here it is fixed."""
    lm = tiny(family, torch.float64)
    recorder = EventRecorder()
    recorder.start(lm)
    sample = record_events(lm, prefixes(), recorder, 12)
    norm = lm.structure.final_norm
    assert norm is not None
    for i, segment in enumerate(prefixes()):
        points = ["resid_pre" if block.parallel else "resid_mid" for block in lm.structure.blocks]
        run = lm.run(segment.tokens[None], (*dict.fromkeys(points), "coefficients"))
        for n in range(lm.n_layers):
            x = run.at(points[n], n)[0, -1].double()
            index = torch.from_numpy(sample.dominant[n, i])
            part = run.at("coefficients", n)[0, -1][index, None] * lm.weights.W_out[n][index]
            part = branch_of_run(lm, run, n, -1).written(part)
            centred = x - x.mean() if norm.centred else x
            part = part - part.mean(dim=-1, keepdim=True) if norm.centred else part
            direction = lm.weights.W_U[:, int(sample.candidates[n, i])] * norm.gain
            expected = part @ direction / (centred.square().mean() + norm.eps).sqrt()
            found = scores_in_logits(sample)[n, i, :, 1]
            np.testing.assert_allclose(found, expected.numpy(force=True), rtol=1e-4, atol=1e-7)
