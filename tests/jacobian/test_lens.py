"""What a fitted lens reads: exact at the end of the model, linear in parts, and right on the shipped model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unembed
from unembed.corpus.windows import windows_of
from unembed.errors import InvalidInput, OutOfRange, PointMissing
from unembed.jacobian import JacobianLens, fit_lens, open_lens
from unembed.jacobian.check import SKIPPED
from unembed.lens import logits_of


@pytest.fixture(scope="module")
def lm() -> unembed.LanguageModel:
    return unembed.load()


@pytest.fixture(scope="module")
def lens(lm: unembed.LanguageModel) -> JacobianLens:
    return fit_lens(lm, contexts=6, length=24)


def test_the_last_stream_is_read_as_the_model_reads_it(lm: unembed.LanguageModel, lens: JacobianLens) -> None:
    run = lm.run("The war lasted from 1861", capture=("resid_post",))
    read = lens.read(run.at("resid_post", lm.n_layers - 1)[0], lm.n_layers - 1)
    torch.testing.assert_close(read, run.logits[0], rtol=1e-4, atol=1e-3)


def test_the_mean_stream_is_read_as_the_mean_of_the_last_stream(lm: unembed.LanguageModel, lens: JacobianLens) -> None:
    for layer in (0, 3):
        read = lens.read(lens.mean(layer), layer)
        torch.testing.assert_close(read, logits_of(lm, lens.mean_final), rtol=1e-4, atol=1e-3)


def test_a_direction_is_read_linearly_and_centred(lm: unembed.LanguageModel, lens: JacobianLens) -> None:
    made = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, lm.d_model, generator=made)
    whole = lens.direction(2 * a - b, 4)
    torch.testing.assert_close(whole, 2 * lens.direction(a, 4) - lens.direction(b, 4), rtol=1e-3, atol=1e-4)
    assert float(whole.mean().abs()) < 1e-5


def test_a_stream_behind_one_layer_is_the_stream_before_the_next(lens: JacobianLens) -> None:
    assert torch.equal(lens.jacobian(2, "resid_post"), lens.jacobian(3, "resid_pre"))
    assert torch.equal(lens.mean(2, "resid_post"), lens.mean(3, "resid_pre"))
    assert torch.equal(lens.jacobian(-1), torch.eye(len(lens.mean_final)))


def test_a_value_does_what_its_reading_says(lm: unembed.LanguageModel, lens: JacobianLens) -> None:
    """Adding a value on other text moves the logits along its reading, more than along another value's."""
    layer, prompt = 3, "The ship sailed from the harbour and the"
    plain = lm.run(prompt, capture=("resid_post",))
    size = 0.1 * plain.at("resid_post", layer)[0, -1].norm()
    own, other = [], []
    for index in range(0, 400, 50):
        value = lm.weights.W_out[layer][index]
        vector = size * value / value.norm()
        edit = unembed.add_vector(layer, vector, positions="last")
        moved = lm.run(prompt, edits=[edit]).logits[0, -1] - plain.logits[0, -1]
        readings = [lens.direction(lm.weights.W_out[layer][i], layer) for i in (index, index + 25)]
        for kept, reading in zip((own, other), readings, strict=True):
            kept.append(float(torch.corrcoef(torch.stack([reading, moved]))[0, 1]))
    assert sorted(own)[len(own) // 2] > 0.6
    assert abs(sorted(other)[len(other) // 2]) < 0.3


def test_a_saved_lens_reads_the_same(lm: unembed.LanguageModel, lens: JacobianLens, tmp_path: Path) -> None:
    lens.save(tmp_path / "w.lens")
    opened = open_lens(tmp_path / "w.lens")
    with pytest.raises(InvalidInput, match=r"Use lm\.use_lens"):
        opened.read(lens.mean_final, 2)
    opened.bound_to(lm)
    assert torch.equal(opened.direction(lens.mean_final, 2), lens.direction(lens.mean_final, 2))
    assert opened.provenance == lens.provenance and opened.contexts == 6


def test_a_lens_of_other_weights_is_refused(lens: JacobianLens) -> None:
    with pytest.raises(InvalidInput, match="fitted on other weights"):
        lens.bound_to(unembed.load("attn-2l"))


def test_the_check_on_held_out_text_is_that_of_a_plain_loop(lm: unembed.LanguageModel, lens: JacobianLens) -> None:
    windows = [segment.tokens for segment in windows_of(None, 24, overlap=0).segments(lm) if len(segment) == 24][6:10]
    kl, same = [], []
    for window in windows:
        run = lm.run(window, capture=("resid_post",))
        for position in range(SKIPPED, 24):
            own = run.logits[0, position].double().log_softmax(0)
            stream = run.at("resid_post", 5)[0, position].double() - lens.mean(5).double()
            carried = lens.mean_final.double() + stream @ lens.jacobian(5).double()
            read = logits_of(lm, carried.float()).double().log_softmax(0)
            kl.append(float((own.exp() * (own - read)).sum()))
            same.append(float(own.argmax() == read.argmax()))
    assert lens.check is not None and lens.check.positions == len(kl)
    assert float(lens.check.kl[5]) == pytest.approx(float(torch.tensor(kl).median()), rel=1e-3)
    assert float(lens.check.agreement[5]) == pytest.approx(sum(same) / len(same), abs=0.02)
    assert float(lens.check.kl[-1]) < 1e-4 and float(lens.check.agreement[-1]) == 1.0
    assert lens.to_table()["logit_lens_kl"][-1] < 1e-4


def test_what_is_not_there_is_refused(lens: JacobianLens, tmp_path: Path) -> None:
    with pytest.raises(OutOfRange):
        lens.read(lens.mean_final, 8)
    with pytest.raises(InvalidInput, match="point"):
        lens.jacobian(0, "z")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="cannot read"):
        open_lens(tmp_path / "none.lens")
    without = JacobianLens(**{**vars(lens), "middle": None})
    with pytest.raises(PointMissing, match="resid_mid of layer 0"):
        without.jacobian(0, "resid_mid")
