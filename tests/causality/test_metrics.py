"""Metrics against their definitions."""

from __future__ import annotations

import torch
from tests.conftest import tiny

import unembed
from unembed.causality.metrics import bound


def test_metrics_equal_their_definitions() -> None:
    lm = tiny("gpt2-relu")
    logits = torch.randn(3, lm.d_vocab, generator=torch.Generator().manual_seed(0))
    p = logits.double().softmax(-1)
    bind = lambda m: m.bind(lm, logits[0])(logits)  # noqa: E731
    torch.testing.assert_close(bind(unembed.probability(4)), p[:, 4])
    torch.testing.assert_close(bind(unembed.log_probability(4)), p[:, 4].log())
    torch.testing.assert_close(bind(unembed.logit_difference(4, 5)), (logits[:, 4] - logits[:, 5]).double())
    torch.testing.assert_close(bind(unembed.kl_divergence()), (p[0] * (p[0] / p).log()).sum(-1))


def test_the_default_metric_compares_the_two_predictions_and_otherwise_the_runner_up() -> None:
    lm = tiny("gpt2-relu")
    clean, corrupted = torch.zeros(2, lm.d_vocab)
    clean[3], clean[7], corrupted[9] = 2.0, 1.0, 4.0
    logits = torch.randn(2, lm.d_vocab, generator=torch.Generator().manual_seed(0)).double()
    for other, against in ((corrupted, 9), (clean, 7), (None, 7)):
        function, label = bound(lm, None, clean, other)
        torch.testing.assert_close(function(logits), logits[:, 3] - logits[:, against])
        assert label == unembed.logit_difference(3, against).label(lm)
