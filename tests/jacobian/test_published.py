"""Published lens files: what they hold, how they read, and what is refused; TransformerLens itself in tests/parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import unembed
from tests.jacobian.test_fit import small_fit
from tests.sweeps.recorder import lettered
from unembed.errors import InvalidInput, PointMissing
from unembed.jacobian import open_lens
from unembed.jacobian.check import checked_on
from unembed.lens import logits_of

D, LAYERS = 48, 2


def matrices(seed: int = 0) -> dict[int, Tensor]:
    return {0: torch.eye(D) + torch.randn(D, D, generator=torch.Generator().manual_seed(seed))}


def written(path: Path, **content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("form", ["by layer", "stacked", "sums"])
def test_the_reading_is_the_norm_and_unembedding_of_j_times_the_stream(form: str, tmp_path: Path) -> None:
    lm, J = lettered("llama"), matrices()
    content: dict[str, Any] = {
        "by layer": {"J": J, "n_prompts": 7, "source_layers": [0], "d_model": D},
        "stacked": {"J": J[0][None], "n_prompts": 7, "source_layers": [0], "d_model": D},
        "sums": {"jacobian_sum": {0: 7 * J[0]}, "n_done": 7, "next_idx": 9, "target_layer": 1, "skip_first": 16},
    }[form]
    lens = open_lens(written(tmp_path / "a.pt", **content)).bound_to(lm)
    stream = lm.run(torch.tensor([5, 9, 17, 3]), ["resid_post"]).at("resid_post", 0)[0]
    torch.testing.assert_close(lens.read(stream, 0), logits_of(lm, stream @ J[0].T), rtol=1e-5, atol=1e-5)
    assert lens.contexts == 7 and not torch.allclose(lens.read(stream, 0), logits_of(lm, stream @ J[0]), atol=1e-2)
    moved = lens.direction(stream, 0)
    torch.testing.assert_close(lens.direction(2 * stream, 0), 2 * moved, rtol=1e-4, atol=1e-4)
    assert float(moved.abs().max()) > 0 and lens.scale > 0


def test_what_a_published_file_lacks_is_refused_by_name(tmp_path: Path) -> None:
    lens = open_lens(written(tmp_path / "a.pt", J=matrices(), n_prompts=1, d_model=D)).bound_to(lettered("llama"))
    with pytest.raises(PointMissing, match="resid_mid of layer 0: a published lens does not have it"):
        lens.jacobian(0, "resid_mid")
    with pytest.raises(PointMissing, match="the Jacobian of resid_pre of layer 0"):
        lens.jacobian(0, "resid_pre")
    assert torch.equal(lens.jacobian(1), torch.eye(D))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"K": 1}, "it has neither the field J nor the field jacobian_sum"),
        ({"J": {}, "n_prompts": 3}, "it contains no matrix of any layer"),
        (
            {"jacobian_sum": matrices(), "n_done": 0},
            "the fit that wrote it was stopped before its first prompt was finished",
        ),
        ({"J": {0: torch.zeros(2, 3)}, "n_prompts": 3}, "its matrices are not square"),
        (
            {"J": matrices(), "n_prompts": 3, "target_layer": 0},
            "it has matrices for layers .0., but they must be below its target layer, 0",
        ),
    ],
)
def test_files_without_a_lens_are_refused(content: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=why):
        open_lens(written(tmp_path / "a.pt", **content))


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"J": unembed.load}, tmp_path / "a.pt")
    with pytest.raises(InvalidInput, match="cannot read"):
        open_lens(tmp_path / "a.pt")


def test_a_lens_of_other_sizes_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pt", J={0: torch.eye(4), 1: torch.eye(4)}, n_prompts=1)
    with pytest.raises(InvalidInput, match=r"for a model of 3 layers and width 4, but .* has 2 and 48"):
        open_lens(path).bound_to(lettered("llama"))


def test_a_fitted_lens_is_written_in_the_published_format(tmp_path: Path) -> None:
    lens = small_fit()
    lens.save(tmp_path / "a.pt")
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert found["source_layers"] == [0] and found["d_model"] == D and found["n_prompts"] == 6
    torch.testing.assert_close(found["J"][0].float(), lens.jacobian(0).T, rtol=1e-3, atol=1e-3)
    again = open_lens(tmp_path / "a.pt").bound_to(lettered("llama"))
    assert again.estimator == lens.estimator == "same position" and again.contexts == 6
    torch.testing.assert_close(again.jacobian(0), lens.jacobian(0), rtol=1e-3, atol=1e-3)
    with pytest.raises(InvalidInput, match="it was fitted on other weights"):
        open_lens(tmp_path / "a.pt").bound_to(lettered("gpt2"))


def test_a_published_lens_is_checked_beside_the_logit_lens(tmp_path: Path) -> None:
    lm = unembed.load("attn-2l")
    identity = {0: torch.eye(lm.d_model)}
    lens = open_lens(written(tmp_path / "a.pt", J=identity, n_prompts=1)).bound_to(lm)
    check = checked_on(lens)
    assert check is not None
    torch.testing.assert_close(check.kl, check.logit_lens_kl, rtol=1e-4, atol=1e-4)
