"""The control: another model of the same shape, whose judgements are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from unembed.attention.text.bigrams import Bigrams
from unembed.models.decoder import Decoder
from unembed.reports import elhage2021, geva2021, geva2022
from unembed.reports.quantities import Judgement, Numbers, Quantity, judged
from unembed.reports.random_weights import SEED, control_judgements, with_random_weights
from unembed.reports.stages import Work

FEW: dict[str, tuple[Any, Any, Mapping[str, Any]]] = {
    "geva2021": (
        geva2021, geva2021.measure,
        {"examples": 120, "top": 10, "shown": 10, "pattern_keys": 2, "perturbed_keys": 2, "compositions": 40},
    ),
    "geva2022": (
        geva2022, geva2022.measure,
        {"examples": 80, "per_layer": 5, "clusters": 300, "norm_values": 20, "exit_examples": 0},
    ),
    "elhage2021": (elhage2021, elhage2021.Measurements, {"sequences": 4, "tokens": 500, "windows": 6}),
}  # fmt: skip
"""A study's claims, what measures them, and a small sample."""


@pytest.mark.parametrize(
    ("study", "model", "informative"),
    [("geva2021", "wren", 15), ("geva2022", "wren", 15), ("elhage2021", "attn-2l", 15)],
)
def test_other_random_weights_pass_at_most_one_finding_that_is_called_informative(
    study: str, model: str, informative: int, tmp_path: Path
) -> None:
    """The control marks what it passes, so another draw shows whether what is left unmarked is a matter of luck."""
    module, measure, options = FEW[study]
    lm = unembed.load(model)
    corpus = replace(unembed.open_corpus(), max_documents=6, detokenize=True)
    passed, judged = [], []
    for seed in (SEED, SEED + 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        given = (with_random_weights(lm, seed), corpus, Work(folder, {"seed": seed}), module.Options(**options))
        m = measure(*given)
        found = {row.name: row.judgement(m) for row in module.QUANTITIES}
        judged.append({name for name, judgement in found.items() if judgement is not None})
        passed.append({name for name, judgement in found.items() if judgement and judgement.verdict == "agrees"})
    assert len(passed[1] - passed[0]) <= 1, passed
    assert len(judged[0] - passed[0]) >= informative, (judged, passed)


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

    def quantities(test: str) -> list[Quantity[int]]:
        same: dict[str, Any] = {"where": "s", "what": "q", "published": "p", "test": test}
        return [
            Quantity("one", "c", **same, measure=lambda m: Numbers(m=m), judge=lambda n: judged(f"{n.m}.", True)),
            Quantity("none", "c", **same, measure=lambda _: None, judge=lambda _: judged("", True)),
        ]

    def measure(random: Decoder, work: Work) -> int:
        runs.append(random.name)
        return len(runs)

    def control(test: str, **settings: str) -> dict[str, Judgement]:
        return control_judgements("s", quantities(test), lm, Work(tmp_path / "w", {}), settings, measure)

    assert control("above 1") == control("above 1") == {"one": Judgement("1.", "agrees")}
    assert len(runs) == 1 and "random weights" in runs[0]
    control("above 2")
    control("above 2", corpus="other")
    assert len(runs) == 3
    finding = quantities("above 1")[0].finding(7, Judgement("1.", "agrees"))
    assert finding is not None and finding.control == "1. (agrees)" and not finding.informative


def test_the_control_counts_no_bigrams_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    counted: list[int] = []
    plain = Bigrams.of

    def of(tokens: list[torch.Tensor], d_vocab: int) -> Bigrams:
        counted.append(sum(map(len, tokens)))
        return plain(tokens, d_vocab)

    monkeypatch.setattr(Bigrams, "of", of)
    small = {"sequences": 2, "tokens": 60, "windows": 1}
    text = ["One text with a few words in it, and then some more of them. " * 8] * 3
    unembed.report("elhage2021", unembed.load("attn-1l"), text, tmp_path / "alone", control=False, **small)
    alone = len(counted)
    unembed.report("elhage2021", unembed.load("attn-1l"), text, tmp_path / "both", **small)
    assert alone > 1 and len(counted) == 2 * alone  # the second run counted as often as the first, with its control
