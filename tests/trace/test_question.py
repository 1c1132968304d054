"""The question: which token is explained, and which it is compared with."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from unembed.errors import InvalidInput
from unembed.trace.question import Question


def test_the_question_is_the_prediction_against_the_most_likely_other_token(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    trace = lm.trace(tokens[0], show_unlearned=True)
    first, second, third = trace.logits(4).topk(3).indices.tolist()
    assert trace.question(position=4) == Question(first, second)
    assert trace.question(second, position=4) == Question(second, first)
    assert trace.question(position=4, against=third) == Question(first, third)
    assert trace.question(position=4, alone=True) == Question(first, None)
    with pytest.raises(InvalidInput, match="against itself"):
        trace.question(third, third)
    with pytest.raises(InvalidInput, match="against itself"):
        trace.attribution(third, against=third)
