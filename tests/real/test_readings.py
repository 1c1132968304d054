"""How true readings of SmolLM2 are by the lens that `unembed models get smollm2` fits: the claims of the benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest
from benchmarks.readings import of_streams, of_values

from unembed.jacobian import JacobianLens, reading_by
from unembed.jacobian.passes import cache_of
from unembed.language_model import LanguageModel
from unembed.memories.token_ranking import promoting, word_forms
from unembed.memories.truth_of_values import unread_windows, value_effects


@pytest.fixture
def by_lens(smollm2: LanguageModel, smollm2_lens: JacobianLens) -> Iterator[LanguageModel]:
    """The model, read by its lens."""
    with reading_by(smollm2, smollm2_lens.bound_to(smollm2)):
        yield smollm2


def test_the_stream_after_layer_24_reads_as_the_prediction(by_lens: LanguageModel) -> None:
    """·Paris is first, and the median KL divergence from the prediction is a fifth of the logit lens' at most."""
    assert [(claim.what, claim.ratio) for claim in of_streams(by_lens) if claim.verdict != "met"] == []


def test_values_do_what_they_are_read_as(by_lens: LanguageModel) -> None:
    """Median correlations of 0.50, 0.70, 0.85 and 0.93 at layers 13, 18, 22 and 26; other values' stay below 0.15."""
    claims = of_values(by_lens)
    assert len(claims) == 5
    assert [(claim.what, claim.ratio) for claim in claims if claim.verdict != "met"] == []


WORDS = ("war", "happy", "Paris", "January", "blue", "music")


def test_values_found_by_a_word_raise_it_and_more_than_those_that_the_logit_lens_finds(by_lens: LanguageModel) -> None:
    """What `steer --promote WORD` sets: most of these values raise the word among the hundred that rise most."""
    found = ranks_of_risen(by_lens)
    with reading_by(by_lens, None):
        plain = ranks_of_risen(by_lens)
    assert sum(rank <= 100 for rank in found) >= 0.8 * len(found), sorted(found)  # 21 of 24
    assert statistics.median(found) < statistics.median(plain), (sorted(found), sorted(plain))


def ranks_of_risen(lm: LanguageModel) -> list[int]:
    """For values that words find: the word's rank among the tokens that adding the value raises, from 1."""
    windows = unread_windows(lm, None, 4)
    caches = [cache_of(lm, window[:-1]) for window in windows]
    ranks: list[int] = []
    for one in promoting(lm, WORDS, 4):
        sign = -1 if one.pole == "negative" else 1
        value = sign * lm.weights.W_out[one.layer][one.index].float()
        risen = value_effects(lm, value[None], one.layer, windows, caches)[0]
        ranks.append(1 + int((risen > risen[word_forms(lm, one.word)].max()).sum()))
    return ranks
