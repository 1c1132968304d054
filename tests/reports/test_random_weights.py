"""The control: another model of the same shape, whose judgements are stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from unembed.reports import random_weights
from unembed.reports.claims import Claim, Judgement
from unembed.reports.random_weights import control_judgements, with_random_weights
from unembed.reports.stages import Work


@pytest.mark.parametrize("name", ["wren", "attn-1l"])
def test_the_control_has_the_same_shape_and_other_weights(name: str) -> None:
    lm = unembed.load(name)
    random = with_random_weights(lm)
    assert (random.n_layers, random.d_model, random.d_vocab, random.dtype) == (
        lm.n_layers, lm.d_model, lm.d_vocab, lm.dtype,
    )  # fmt: skip
    assert torch.equal(random.unlearned, lm.unlearned)
    assert random.token_strings([5]) == lm.token_strings([5])
    assert not torch.equal(random.weights.W_U, lm.weights.W_U)
    again = with_random_weights(lm)
    assert torch.equal(random.weights.W_U, again.weights.W_U)


def test_judgements_are_stored_and_change_with_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    lm, runs = unembed.load(save_model(tmp_path / "tiny", "gpt2")), []
    (tmp_path / "w").mkdir()

    def claims(test: str) -> list[Claim[int]]:
        return [
            Claim("one", "s", "c", "s", "q", "p", test, lambda m: {"m": m}, lambda m: Judgement(f"{m}.", "agrees")),
            Claim("none", "s", "c", "s", "q", "p", test, lambda m: None, lambda: Judgement("", "agrees")),
        ]

    def measure(random: unembed.LanguageModel, work: Work) -> int:
        runs.append(random.name)
        return len(runs)

    def control(test: str, **settings: str) -> dict[str, Judgement]:
        return control_judgements("s", claims(test), lm, Work(tmp_path / "w", {}), settings, measure)

    assert control("above 1") == control("above 1") == {"one": Judgement("1.", "agrees")}
    assert len(runs) == 1 and "random weights" in runs[0]
    control("above 2")
    control("above 2", corpus="other")
    assert len(runs) == 3
    finding = claims("above 1")[0].finding(7, Judgement("1.", "agrees"))
    assert finding is not None and finding.control == "1. (agrees)" and not finding.informative
    assert random_weights.SEED
