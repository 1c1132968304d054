"""How true readings of values are: against edited runs of the whole model in float64, with other values as control."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from unembed.errors import InvalidInput, OutOfRange
from unembed.jacobian import fit_lens
from unembed.language_model import LanguageModel
from unembed.memories import reading_truth
from unembed.memories.truth_of_values import LENGTH, OTHERS, SIZE, unread_windows
from unembed.memories.values import written_values

WORDS = ["The", "first", "month", "of", "the", "year", "is", "January", *"abcdefgh", ".", "w70", "w75", "w81", "w90"]


@pytest.fixture(scope="module")
def text() -> list[str]:
    drawn = np.random.default_rng(0).choice(WORDS, 12_000).tolist()
    return [" ".join(drawn)]


def brute_force(lm: LanguageModel, text: list[str], layer: int, index: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """The raw scores of a value, and the mean change of the logits when it is added after its layer."""
    value = sign * written_values(lm, layer, slice(index, index + 1))[0]
    changes = []
    for window in unread_windows(lm, text, 3):
        plain = lm.run(window[None], ["resid_post"])
        stream = plain.at("resid_post", layer)[0, -1]
        edit = unembed.add_vector(layer, value / value.norm(), SIZE * float(stream.norm()), positions="last")
        changes.append((lm.run(window[None], (), edit).logits[0, -1] - plain.logits[0, -1]).double().numpy())
    return (value @ lm.weights.W_U).detach().double().numpy(), np.mean(changes, axis=0)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_it_is_the_correlation_with_the_effect_of_an_edit(family: str, text: list[str], tmp_path: Path) -> None:
    lm = unembed.load(save_model(tmp_path / "tiny", family), dtype="float64")
    found = reading_truth(lm, ["L1M3", "-L0M2", (1, 7)], basis="raw", corpus=text, contexts=3)
    assert found.names == ("L1M3", "-L0M2", "L1M7")
    for n, (layer, index, sign) in enumerate([(1, 3, 1), (0, 2, -1), (1, 7, 1)]):
        scores, effect = brute_force(lm, text, layer, index, sign)
        assert float(found.correlation[n]) == pytest.approx(np.corrcoef(scores, effect)[0, 1], abs=1e-5)
        first = [set(np.argsort(-part)[:20].tolist()) for part in (scores, effect)]
        assert float(found.overlap[n]) == pytest.approx(len(first[0] & first[1]) / 20)
    assert len(found.control[1]) == OTHERS * (OTHERS - 1)
    scores, effect = brute_force(lm, text, 1, 3, 1)[0], brute_force(lm, text, 1, 7, 1)[1]
    mismatched = np.corrcoef(scores, effect)[0, 1]
    assert float((found.control[1] - mismatched).abs().min()) < 1e-5


def test_the_lens_reads_more_truly_than_the_unembedding() -> None:
    lm = unembed.load()
    lm.use_lens(fit_lens(lm, contexts=12, length=32))
    by_layer = {}
    for basis in ("raw", "jacobian"):
        rows = list(reading_truth(lm, layers=[1, 3, 7], per_layer=8, contexts=6, basis=basis).by_layer().rows())
        by_layer[basis] = {row["layer"]: row for row in rows}
    for layer in (1, 3):
        assert by_layer["jacobian"][layer]["correlation"] > by_layer["raw"][layer]["correlation"]
    for row in by_layer["jacobian"].values():
        assert row["control"] < 0.15 < 0.5 < row["correlation"]
    found = reading_truth(lm, ["L7M985"], contexts=6)
    assert found.basis == found.provenance.basis == "jacobian"
    assert found.borne_out == [True]
    assert found.in_words().startswith("adding it raises what it is said to promote: r 1.00 ")


def test_a_reading_of_something_else_is_not_borne_out() -> None:
    """A value's effect against the reading of another one."""
    lm = unembed.load()
    found = reading_truth(lm, layers=[3], per_layer=8, contexts=4)
    swapped = found.control[3][:1]
    kept = {"correlation": swapped, "overlap": swapped, "memories": found.memories[:1], "names": ("x",)}
    other = type(found)(**{**vars(found), **kept})
    assert abs(float(swapped)) < found.bound(3) and other.borne_out == [False]
    assert other.in_words().startswith("its reading is not borne out")


def test_a_reading_with_no_listed_token_among_those_that_rise_most_names_others(
    text: list[str], tmp_path: Path
) -> None:
    found = reading_truth(unembed.load(save_model(tmp_path / "tiny", "gpt2")), ["L1M3"], corpus=text, contexts=3)
    given = {"correlation": torch.tensor([0.9]), "control": {1: torch.tensor([0.1, 0.2])}}
    none, some = (
        type(found)(**{**vars(found), **given, "overlap": torch.tensor([share])}).in_words() for share in (0.0, 0.4)
    )
    assert none.startswith("adding it raises other tokens more than those listed: r 0.90 over the vocabulary, none of")
    assert some.startswith("adding it raises what it is said to promote: r 0.90 over the vocabulary, 8 of the 20 ")


def test_what_cannot_be_measured_is_refused(text: list[str]) -> None:
    lm = unembed.load()
    with pytest.raises(InvalidInput, match="passages of the text"):
        reading_truth(lm, ["L1M3"], corpus=["A few words."])
    with pytest.raises(OutOfRange):
        reading_truth(lm, ["L99M3"])
    with pytest.raises(InvalidInput, match="basis"):
        reading_truth(lm, ["L1M3"], basis="frozen")
    assert all(len(window) == LENGTH for window in unread_windows(lm, None, 2))
