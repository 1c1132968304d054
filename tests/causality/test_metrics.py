"""Metrics against their definitions."""

from __future__ import annotations

import torch
from tests.conftest import tiny

import unembed


def test_metrics_equal_their_definitions() -> None:
    lm = tiny("gpt2-relu")
    logits = torch.randn(3, lm.d_vocab, generator=torch.Generator().manual_seed(0))
    p = logits.double().softmax(-1)
    bind = lambda m: m.bind(lm, logits[0])(logits)  # noqa: E731
    torch.testing.assert_close(bind(unembed.probability(4)), p[:, 4])
    torch.testing.assert_close(bind(unembed.log_probability(4)), p[:, 4].log())
    torch.testing.assert_close(bind(unembed.logit_difference(4, 5)), (logits[:, 4] - logits[:, 5]).double())
    torch.testing.assert_close(bind(unembed.kl()), (p[0] * (p[0] / p).log()).sum(-1))
