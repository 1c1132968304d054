"""Which lens commands read a model by: that of the cache folder, else the one that ships."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unembed
from unembed.cli.model_loading import use_lens
from unembed.errors import InvalidInput
from unembed.jacobian import cached_lens, lens_file, lens_identity, lens_path, stored_identity
from unembed.jacobian.check import checked_on
from unembed.jacobian.lens_cache import why_passed_over
from unembed.models.fingerprint import sampled_fingerprint
from unembed.models.shipped_models import shipped_lens


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))


def test_the_lens_of_the_cache_folder_comes_before_the_shipped_one() -> None:
    lm = unembed.load("wren")
    fingerprint = sampled_fingerprint(lm)
    shipped = shipped_lens(fingerprint)
    assert shipped is not None and lens_file(fingerprint) == shipped
    lens = lm.use_lens()
    assert lens.lm is lm and lm.lens is lens and lens_identity(lm) == stored_identity(shipped)
    own = unembed.open_lens(shipped)
    own.before *= 0.5
    lens_path(fingerprint).parent.mkdir()
    own.save(lens_path(fingerprint))
    assert lens_file(fingerprint) == lens_path(fingerprint)
    assert torch.equal(lm.use_lens().before, own.before)
    assert lens_identity(lm) == stored_identity(lens_path(fingerprint)) != stored_identity(shipped)


def test_a_copy_with_one_changed_memory_is_not_read_by_the_shipped_lens(tmp_path: Path) -> None:
    lm = unembed.load("wren")
    with torch.no_grad():
        lm.hf.transformer.h[5].mlp.c_proj.weight[484] = 0.0
    lm.hf.save_pretrained(tmp_path / "changed")
    copy = unembed.load(tmp_path / "changed")
    assert shipped_lens(sampled_fingerprint(copy)) is not None  # the samples miss the change
    assert cached_lens(copy) is None and cached_lens(unembed.load("wren")) is not None


def test_a_copy_reads_no_weights_where_no_lens_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = unembed.load("attn-2l").hf
    copy.save_pretrained(tmp_path / "mine")
    lm = unembed.load(tmp_path / "mine")

    def refused(_: object) -> str:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("unembed.models.fingerprint.sampled_fingerprint", refused)
    assert cached_lens(lm) is None


def test_a_copy_reads_no_weights_where_the_stored_lenses_are_of_other_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = shipped_lens(sampled_fingerprint(unembed.load("wren")))
    assert shipped is not None
    lens_path("x").parent.mkdir()
    unembed.open_lens(shipped).save(lens_path("0" * 16))
    test_a_copy_reads_no_weights_where_no_lens_is_stored(tmp_path, monkeypatch)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_in_half_precision_are_read_by_the_lens_of_their_float32(dtype: str) -> None:
    lm, whole = unembed.load("wren", dtype=dtype), unembed.load("wren")
    lens, whole_lens = lm.use_lens(), whole.use_lens()
    assert lens.provenance.dtype == "float32"
    assert lens_identity(lm) == lens_identity(whole)
    here, there = checked_on(lens), whole_lens.check
    assert here is not None and there is not None
    torch.testing.assert_close(here.kl, there.kl, rtol=0, atol=0.05)  # nats; measured: 0.026 in bfloat16
    assert bool((here.kl <= here.logit_lens_kl + 0.005).all())
    with torch.no_grad():
        lm.hf.get_parameter("transformer.h.5.mlp.c_proj.weight").mul_(0.5)
    assert cached_lens(lm) is None  # other weights


def test_a_lens_without_fingerprints_of_other_dtypes_is_refused_there_by_name() -> None:
    whole, half = unembed.load("wren"), unembed.load("wren", dtype="bfloat16")
    path = shipped_lens(sampled_fingerprint(whole))
    assert path is not None
    older = unembed.open_lens(path)
    older.converted = {}
    lens_path("old").parent.mkdir()
    older.save(lens_path("old"))
    assert whole.use_lens(unembed.open_lens(lens_path("old"))) is whole.lens
    with pytest.raises(InvalidInput, match=r"fitted on float32 weights.*these bfloat16 weights.*fit the lens again"):
        half.use_lens(unembed.open_lens(lens_path("old")))
    assert half.lens is None


def test_a_stored_lens_that_is_not_used_is_named_with_the_reason_and_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = unembed.load("wren", dtype="bfloat16")
    monkeypatch.setattr("unembed.jacobian.lens_cache.shipped_lenses", lambda _: ())
    path = shipped_lens(sampled_fingerprint(unembed.load("wren")))
    assert path is not None
    lens = unembed.open_lens(path)
    assert why_passed_over(half) is None
    lens.provenance = replace(lens.provenance, model=half.name)
    lens_path("x").parent.mkdir()
    lens.fingerprint = "0" * 16
    lens.converted = {"bfloat16": "1" * 16}
    lens.save(lens_path("x"))
    assert cached_lens(half) is None
    assert "it was fitted on other weights; fit one" in str(why_passed_over(half))
    lens.converted = {}
    lens.save(lens_path("x"))
    use_lens(half, None)
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and str(lens_path("x")) in line
    assert "fitted in float32, and lacks the fingerprint of the bfloat16 weights; fit one" in line
    assert "unembed fit-lens" in line
    lens.provenance = replace(lens.provenance, model="another")
    lens.save(lens_path("x"))
    assert why_passed_over(half) is None  # of another model: nothing to report


def test_a_model_reads_by_the_logit_lens_until_a_lens_is_set() -> None:
    lm = unembed.load("wren")
    assert lm.lens is None and lm.values.readings(1).provenance.basis == "raw"
    lm.use_lens()
    assert lm.values.readings(1).provenance.basis == "jacobian"


def test_a_model_without_a_lens_is_refused_with_what_to_do() -> None:
    lm = unembed.load("attn-2l")
    assert cached_lens(lm) is None and lens_identity(lm) is None
    with pytest.raises(InvalidInput, match=r"none was fitted on this machine.*unembed fit-lens"):
        lm.use_lens()


def test_a_file_that_is_no_lens_has_no_identity(tmp_path: Path) -> None:
    (tmp_path / "x.lens").write_text("x")
    assert stored_identity(tmp_path / "x.lens") is None and stored_identity(tmp_path / "none") is None
