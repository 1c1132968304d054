"""Scores of events against those picked by hand from a sample."""

from __future__ import annotations

import pytest

from tests.memories.test_event_sample import hand_made
from unembed.errors import InvalidInput
from unembed.memories.event_scores import (
    candidate_scores,
    event_scores,
    extreme_sub_updates,
)


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
