"""A model without layers: it opens, its logits are those of each token, and what needs layers is refused by name."""

from __future__ import annotations

import pytest
import torch

import unembed
from unembed.attention.weights.folded_weights import embedding, unembedding
from unembed.errors import OutOfRange, Unsupported

TEXT = "The first month of the year"


@pytest.fixture(scope="module")
def lm() -> unembed.LanguageModel:
    return unembed.load("attn-0l")


def test_its_logits_are_embedding_times_unembedding(lm) -> None:
    ids = lm.encode(TEXT)
    assert lm.n_layers == 0 and lm.d_mlp == 0 and lm.n_heads == 0
    torch.testing.assert_close(lm.run(TEXT).logits[0], embedding(lm, ids=ids[0]) @ unembedding(lm))
    with torch.no_grad():
        torch.testing.assert_close(lm.run(TEXT).logits, lm.hf(ids).logits)
    assert lm.generate(TEXT, max_new_tokens=2)[0].startswith(TEXT)


@pytest.mark.parametrize(
    "ask",
    [
        lambda lm: lm.trace(TEXT),
        lambda lm: unembed.rank_memories(lm),
        lambda lm: unembed.circuits(lm).copying(),
        lambda lm: unembed.circuits(lm).matching(),
        lambda lm: unembed.circuits(lm).compositions(),
        lambda lm: unembed.circuits(lm).head_scores(),
        lambda lm: unembed.circuits(lm).expand(TEXT),
        lambda lm: unembed.circuits(lm).term_importance(max_tokens=100),
        lambda lm: unembed.circuits(lm).memory_management(),
        lambda lm: unembed.Index.estimate(lm, ["a b c"]),
    ],
)
def test_what_needs_layers_is_refused_by_name(lm, ask) -> None:
    with pytest.raises(Unsupported, match=r"it has no (layers|feed-forward)"):
        ask(lm)


def test_there_is_no_layer_to_name(lm) -> None:
    with pytest.raises(OutOfRange, match="attn-0l has none"):
        unembed.circuits(lm).ov(0, 0)


def test_the_report_on_circuits_is_that_of_its_direct_path(lm, tmp_path) -> None:
    report = unembed.report("elhage2021", lm, out=tmp_path, control=False)
    assert [section.title for section in report.sections] == ["Zero layers: bigrams"]
    assert [finding.claim[:15] for finding in report.findings] == ["Token embedding"]
    for study in ("geva2021", "geva2022"):
        with pytest.raises(Unsupported, match="it has no layers"):
            unembed.report(study, lm, "shipped", tmp_path / study)
