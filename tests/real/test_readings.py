"""How true readings of SmolLM2 are by the lens that `unembed models get smollm2` fits: the claims of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.readings import of_streams, of_values

from unembed.jacobian import JacobianLens, reading_by
from unembed.language_model import LanguageModel


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
