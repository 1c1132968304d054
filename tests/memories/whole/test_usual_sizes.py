"""What counts as firing in a gated layer, and coefficients in units of a memory's usual size; by hand in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import Result

import unembed as package
from tests.cli.conftest import PROMPT
from tests.index.conftest import corpus_of, save_model
from unembed.cli.edit_options import EditOptions
from unembed.errors import InvalidInput
from unembed.index import Index, IndexSettings
from unembed.index.build import FIRST_TOKENS
from unembed.language_model import LanguageModel
from unembed.memories import sized, usual_size
from unembed.memories.usual_coefficients import ALWAYS_ON, usual_coefficients
from unembed.names import read_memory_value
from unembed.sweeps import FIRES

Run = Callable[..., Result]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return package.load(save_model(tmp_path_factory.mktemp("models") / request.param, request.param))


@pytest.fixture(scope="module")
def index(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Index:
    place = tmp_path_factory.mktemp("index") / "built"
    return Index.build(model, corpus_of("windows"), place, top=4, settings=IndexSettings(top_tokens=6))


@pytest.fixture(scope="module")
def coefficients(model: LanguageModel) -> torch.Tensor:
    """(layer, place, key) over the counted places of the index's corpus."""
    rows = [
        model.run(one.tokens[None], ("coefficients",), logits=False)["coefficients"][:, 0, one.skip :]
        for one in corpus_of("windows").segments(model)
    ]
    return torch.cat(rows, dim=1).double()


def test_shares_count_what_reaches_half_of_the_usual_size(
    model: LanguageModel, index: Index, coefficients: torch.Tensor
) -> None:
    assert coefficients.shape[1] < FIRST_TOKENS  # the first batch is the whole corpus
    usual = coefficients.square().mean(dim=1, keepdim=True).sqrt()
    if model.is_signed(0):
        fires = {"positive": coefficients >= FIRES * usual, "negative": coefficients <= -FIRES * usual}
    else:
        fires = {"positive": coefficients > 0, "negative": torch.zeros_like(coefficients, dtype=torch.bool)}
    shares = index.firing_shares
    assert shares is not None
    for pole, found in fires.items():
        expected = found.double().mean(dim=1).flatten().numpy()
        np.testing.assert_allclose(shares[pole], expected, atol=1.01 / coefficients.shape[1])  # one token on the bound
    total = shares["positive"] + shares["negative"]
    np.testing.assert_allclose(index.statistics["active_fraction"], total, atol=1e-6)
    if model.is_signed(0):
        assert 0.3 < float(total.mean()) < 0.99, "not every token, though no coefficient is exactly 0"
    always = usual_coefficients(model, index).always_on
    assert always[1].tolist() == (total[model.d_mlp :] >= ALWAYS_ON).tolist()


def test_the_usual_size_is_the_root_mean_square(model: LanguageModel, index: Index, coefficients: torch.Tensor) -> None:
    column = coefficients[1, :, 3]
    squares = column.square()
    counted = 0 if model.is_signed(1) else int((column > 0).sum())
    expected = float((squares.sum() / (counted or len(column))).sqrt())
    assert index.usual_size(1, 3) == pytest.approx(expected, rel=1e-4)
    assert usual_size(model, 1, 3, index)[0] == pytest.approx(expected, rel=1e-4)
    assert float(usual_coefficients(model, index).usual[1][3]) == pytest.approx(expected, rel=1e-4)


def test_a_coefficient_may_be_in_units_of_the_usual_size(model: LanguageModel, index: Index) -> None:
    given = read_memory_value("-L1M3=x2.5")
    assert given == (1, 3, -2.5, True) and read_memory_value("L1M3=x2") == read_memory_value("L1M3=\u00d72")
    value, words = sized(model, given, index)
    assert value == pytest.approx(-2.5 * index.usual_size(1, 3))
    assert words.startswith("the usual size of L1M3 is ") and words.endswith("by the index's corpus")
    assert sized(model, read_memory_value("L1M3=2")) == (2.0, "")
    with pytest.raises(InvalidInput, match="not a memory and a value"):
        read_memory_value("L1M3=y3")


def test_without_an_index_a_sample_of_the_shipped_text_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = package.load(save_model(tmp_path / "llama", "llama"))
    size = float(usual_coefficients(lm, None).usual[1][3])
    (edit,) = EditOptions(set_=[read_memory_value("L1M3=x3")]).edits(lm)
    assert edit == package.set_coefficient(1, 3, 3 * size)
    assert "by a sample of the shipped text" in capsys.readouterr().err


def test_steering_by_words_takes_times_the_usual_size(tmp_path: Path) -> None:
    from unembed.steering.answer import steer_answer

    lm = package.load(save_model(tmp_path / "llama", "llama"))
    found = steer_answer(lm, PROMPT, promote="January", in_usual=True, coefficient=2.0, new_tokens=1, cost_tokens=0)
    assert found.data is not None
    for edit in found.data["edits"]:
        usual = float(usual_coefficients(lm, None).usual[edit["layer"]][edit["index"]])
        assert abs(edit["value"]) == pytest.approx(2 * usual, rel=1e-5)
