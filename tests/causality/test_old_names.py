"""Names of the last release give what the new ones give, and say what they are called now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conftest import tiny

import unembed

A, B = torch.tensor([5, 17, 23, 42]), torch.tensor([5, 60, 23, 42])
METRIC = unembed.logit_difference(7, 9)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            lambda lm: lm.patch_pairs([A], [B], metric=METRIC).recovered,
            lambda lm: lm.patch([A], [B], "z", METRIC).recovered,
        ),
        (
            lambda lm: lm.patch_paths(A, B, "L0H1", "logits", METRIC).values,
            lambda lm: lm.patch(A, B, "L0H1", METRIC, through="logits").values,
        ),
        (
            lambda lm: lm.ablate_prompts([A, B], heads=[(0, 1)]).effects,
            lambda lm: lm.ablate([A, B], heads=[(0, 1)]).effects,
        ),
        (
            lambda lm: unembed.screen(lm, A, METRIC, top=1).heads,
            lambda lm: lm.attribution_patching(A, METRIC, top=1).heads,
        ),
        (
            lambda lm: unembed.screen(lm, A, METRIC, top=1).heads,
            lambda lm: lm.ablate(A, metric=METRIC, how="attribution_patching", top=1).heads,
        ),
    ],
)
def test_an_old_name_gives_what_the_new_one_gives(old: Callable[[Any], Any], new: Callable[[Any], Any]) -> None:
    lm = tiny("gpt2-relu")
    with pytest.warns(DeprecationWarning, match="is now"):
        found = old(lm)
    torch.testing.assert_close(found, new(lm), rtol=0, atol=0, equal_nan=True)


def test_an_old_name_takes_a_corpus_as_it_did() -> None:
    lm, texts = unembed.load(), ["The cat sat.", "It rained."]
    with pytest.warns(DeprecationWarning, match="open_corpus"):
        found = lm.ablate_over_corpus(texts, [(0, 1)])
    assert torch.equal(found.changes, lm.ablate(unembed.open_corpus(texts), heads=[(0, 1)]).changes)


def test_old_metrics_and_edits_have_new_names() -> None:
    with pytest.warns(DeprecationWarning, match="kl_divergence"):
        assert unembed.kl() == unembed.kl_divergence()
    with pytest.warns(DeprecationWarning, match="feature_edit"):
        assert unembed.FeatureEdit(0, 3, 0.5, "add") == unembed.Edit("feature", "add", 0, 3, 0.5)
