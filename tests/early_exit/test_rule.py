"""Exit rules: decisions, files, evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unembed import early_exit
from unembed.early_exit.example_prefixes import examples_of_prefixes
from unembed.errors import InvalidInput
from unembed.models.fingerprint import sampled_fingerprint


@pytest.mark.parametrize("method", early_exit.METHODS)
def test_a_rule_decides_by_token_as_over_examples(deep, found, method, tmp_path):
    options = {"clusters": 12} if method == "sub_updates" else {"sweep": (0.1,)} if method in ("update", "both") else {}
    rule = early_exit.fit(deep, found, method, disagreement=0.3, **options)
    scores = rule.score.scores(found)
    rule = rule.at(float(np.median(scores[np.isfinite(scores)])))
    again = early_exit.load(rule.save(tmp_path / "rule.npz"), deep)
    assert again.exit_layers(found).tolist() == rule.exit_layers(found).tolist()
    layers = set()
    for start in range(3, 13):
        ids = torch.tensor([[start, 40, 41 + start]])
        with early_exit.skip_layers(again) as exits:
            new = deep.hf.generate(ids, max_new_tokens=2, min_new_tokens=2, do_sample=False, pad_token_id=0)
        # Two new tokens: the first comes from the full prompt, so only the second can exit.
        assert len(exits) == 1
        assert exits[0] == int(rule.exit_layers(examples_of_prefixes(deep, [new[0, :4]]))[0])
        layers.add(exits[0])
    assert len(layers) > 1 or method in ("representation", "update", "both", "sub_updates")


def test_a_rule_of_another_model_is_refused(deep, found, wren, tmp_path):
    path = early_exit.fit(deep, found, "margin").save(tmp_path / "rule.npz")
    with pytest.raises(InvalidInput, match="weights are not those of wren"):
        early_exit.load(path, wren)
    assert sampled_fingerprint(deep) != sampled_fingerprint(wren)
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="cannot read"):
        early_exit.load(path, deep)
    with pytest.raises(InvalidInput, match="not one of"):
        early_exit.fit(deep, found, "magic")


def test_evaluation_and_table_6_count_by_hand(deep, found):
    rule = early_exit.fit(deep, found, "margin", disagreement=0.2)
    assert repr(rule).startswith(f"ExitRule(margin on {deep.name}, thresholds by layer: {rule.thresholds[0]:.3g}, ")
    evaluation = found[:50]
    row = next(iter(rule.evaluate(evaluation).rows()))
    exits = rule.exit_layers(evaluation)
    right = [int(evaluation.top[i, n]) == int(evaluation.top[i, -1]) for i, n in enumerate(exits)]
    assert row["accuracy"] == pytest.approx(100 * np.mean(right))
    assert row["saved_layers"] == pytest.approx(np.mean(4 - exits))
    table = early_exit.table_6(deep, found, seeds=(38, 39), clusters=12, sweep=(0.1,), penalties=("l2",))
    rows = {r["method"]: r for r in table.rows()}
    assert rows["oracle"]["accuracy"] == 100 and rows["last layer"]["saved_layers"] == 0
    assert rows["sub_updates, set"]["published_accuracy"] == 94.1 and rows["sub_updates"]["published_accuracy"] is None
    assert rows["oracle"]["saved_layers"] >= rows["margin"]["saved_layers"] * rows["margin"]["accuracy"] / 100 - 1e-9
    shares = early_exit.saturation_table(deep, found)
    assert sum(r["share"] for r in shares.rows()) == pytest.approx(100)


def test_the_tradeoff_runs_from_never_to_always(deep, found):
    rule = early_exit.fit(deep, found, "margin")
    rows = list(rule.tradeoff(found[:80], 10).rows())
    assert len(rows) <= 10 and rows[0]["saved_layers"] == 0 and rows[0]["disagreement"] == 0
    assert rows[-1]["saved_layers"] == 4
    for row in rows:
        exits = rule.at(row["threshold"]).exit_layers(found[:80])
        assert row["saved_layers"] == pytest.approx(float((4 - exits).mean()))
    saved = [row["saved_layers"] for row in rows]
    assert saved == sorted(saved)


def test_a_rule_keeps_its_basis_and_lens(fitted, tmp_path):
    texts = [f"The old king of {place} was happy." for place in ("Spain", "France", "Rome", "Greece", "Kent")]
    found, paper = (early_exit.examples(fitted, texts * 8, 40, basis=basis) for basis in (None, "final"))
    rule = early_exit.fit(fitted, found, "margin", disagreement=0.3)
    path = rule.save(tmp_path / "rule.npz")
    again = early_exit.load(path, fitted)
    assert rule.basis == again.basis == "jacobian"
    assert again.exit_layers(found).tolist() == rule.exit_layers(found).tolist()
    assert again.evaluate(texts, 5).provenance.basis == again.tradeoff(found).provenance.basis == "jacobian"
    with pytest.raises(InvalidInput, match="the rule uses 'jacobian'"):
        rule.evaluate(paper)
    own = fitted.lens
    try:
        fitted.lens = None
        with pytest.raises(InvalidInput, match="the model is used without one"):
            early_exit.load(path, fitted)
        fitted.use_lens(fitted.fit_lens(contexts=4, length=16))
        with pytest.raises(InvalidInput, match="with another one"):
            early_exit.load(path, fitted)
        plain = early_exit.fit(fitted, paper, "margin", disagreement=0.3).save(tmp_path / "plain.npz")
        fitted.lens = None
        assert early_exit.load(plain, fitted).basis == "final"
    finally:
        fitted.lens = own
