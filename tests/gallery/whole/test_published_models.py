"""Trace, index and gallery of two small models that others trained and published (tests/data/models)."""

from __future__ import annotations

from pathlib import Path

import pytest

import unembed
from unembed.index import Index

MODELS = Path(__file__).parents[2] / "data" / "models"
STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
STORIES = [
    STORY,
    "One day, Tom and his mom went to the store. Tom saw a big red ball and he was very happy.",
    "The dog ran to the tree. He wanted to play with the cat, but the cat was scared and ran away.",
    'Lily said, "I want to go home." Her mom smiled and said, "Yes, we can go home now."',
    "There was a bird who lived in a tall tree. Every day, the bird sang a song for all the animals.",
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["stories260k", "babyllama-tok105"])
def test_trace_index_and_gallery_work(name: str, dtype: str, tmp_path: Path) -> None:
    lm = unembed.load(MODELS / name, dtype=dtype, offline=True)
    trace = lm.trace(STORY[:60])
    attribution = trace.attribution(int(trace.prediction[-1]))
    assert abs(attribution.error) < (1e-3 if dtype == "float32" else 0.1) * max(1.0, abs(attribution.logit))
    index = Index.build(lm, STORIES * 2, tmp_path / "index", top=10)
    assert index.poles == ("positive", "negative"), "gated: coefficients are signed"
    assert len(index.triggers(1, 3, 5)) == 5
    gallery = index.memories(20)
    assert len(gallery) == 20 and {row.pole for row in gallery} <= {"positive", "negative"}
    for row in gallery:
        assert row.evidence["triggers"] is not None and row.evidence["effect"] is not None
        assert row.description and len(row.top_tokens) == 10
