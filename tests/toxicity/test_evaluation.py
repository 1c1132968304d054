"""The evaluation: counts by hand, and a killed run that continues."""

from __future__ import annotations

import json

import numpy as np
import pytest

import unembed
from tests.toxicity.conftest import Vowels
from unembed import toxicity
from unembed.errors import InvalidInput
from unembed.toxicity import evaluation

PROMPTS = [toxicity.Prompt(text, i) for i, text in enumerate(["The first", "The month of", "The", "The year is"])]


def arms(lm):
    return [
        toxicity.plain(),
        toxicity.with_values("values picked by hand", [unembed.set_coefficient(1, 3, 30.0)]),
        toxicity.with_word_filter(lm, ["year", "of"]),
        toxicity.with_self_debiasing(lm, prefixes=["The year is", " first"]),
    ]


def test_the_table_counts_the_scorers_labels(lm):
    found = toxicity.evaluate(
        lm,
        PROMPTS,
        arms(lm),
        Vowels(),
        samples=2,
        seed=1,
        new_tokens=4,
        batch=3,
        clean_text="The first month of the year is January " * 9,
    )
    rows = {row["arm"]: row for row in found.table.rows()}
    for name, texts in found.continuations.items():
        flat = [t for row in texts for t in row]
        assert len(texts) == 4 and all(len(row) == 2 for row in texts)
        share = np.mean([s >= 0.5 for s in Vowels().score(flat)["toxicity"]])
        assert rows[name]["toxicity"] == pytest.approx(100 * share)
        assert rows[name]["threat"] == 100.0
        assert rows[name]["toxicity_low"] <= rows[name]["toxicity"] <= rows[name]["toxicity_high"]
    assert rows["word filter"]["perplexity"] is None
    assert rows["plain"]["perplexity"] != rows["values picked by hand"]["perplexity"]
    assert rows["plain"]["published_toxicity"] == 58.5


def test_greedy_continuations_are_the_models_own(lm):
    found = toxicity.evaluate(lm, PROMPTS, [toxicity.plain()], Vowels(), new_tokens=4)
    for prompt, texts in zip(PROMPTS, found.continuations["plain"], strict=True):
        alone = lm.generate(prompt.text, max_new_tokens=4, min_new_tokens=4)[0][len(prompt.text) :]
        assert texts == (alone,)


def test_a_killed_evaluation_resumes_where_it_was(lm, tmp_path, monkeypatch):
    settings = dict(samples=2, seed=5, new_tokens=3, batch=2)
    whole = toxicity.evaluate(lm, PROMPTS, arms(lm)[:2], Vowels(), **settings)
    calls = []
    real = evaluation._generate

    def counted(*args):
        calls.append(args[2].name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(evaluation, "_generate", counted)
    with pytest.raises(KeyboardInterrupt):
        toxicity.evaluate(lm, PROMPTS, arms(lm)[:2], Vowels(), cache=tmp_path, **settings)
    # A line cut off in the middle of writing is done again.
    (stored,) = tmp_path.iterdir()
    stored.write_text(stored.read_text()[:-5])
    resumed = toxicity.evaluate(lm, PROMPTS, arms(lm)[:2], Vowels(), cache=tmp_path, **settings)
    assert resumed.continuations == whole.continuations
    # What is added never lands on the line that was cut off.
    assert all(json.loads(row)["texts"] for path in tmp_path.iterdir() for row in path.read_text().splitlines())
    before = len(calls)
    again = toxicity.evaluate(lm, PROMPTS, arms(lm)[:2], Vowels(), cache=tmp_path, **settings)
    assert len(calls) == before and again.continuations == whole.continuations
    # Other edits are another cache.
    changed = [toxicity.with_values("values picked by hand", [unembed.set_coefficient(1, 3, 31.0)])]
    toxicity.evaluate(lm, PROMPTS, changed, Vowels(), cache=tmp_path, **settings)
    assert len(calls) > before


def test_what_cannot_be_evaluated_is_refused(lm):
    with pytest.raises(InvalidInput, match="an empty evaluation"):
        toxicity.evaluate(lm, [], [toxicity.plain()], Vowels())
    with pytest.raises(InvalidInput, match="the same name"):
        toxicity.evaluate(lm, PROMPTS, [toxicity.plain()] * 2, Vowels())
    with pytest.raises(InvalidInput, match="without a seed"):
        toxicity.evaluate(lm, PROMPTS, [toxicity.plain()], Vowels(), samples=2)


def test_changes_pair_the_prompts_of_two_arms(lm):
    table = toxicity.evaluate(lm, PROMPTS[:1], [toxicity.plain()], Vowels(), new_tokens=1).table
    rng = np.random.default_rng(3)
    plain = (rng.random((300, 1)) < 0.5).astype(float)
    # In the second arm every tenth prompt is no longer toxic; the third is independent of the first.
    fewer = np.where(np.arange(300)[:, None] % 10 == 0, 0.0, plain)
    unrelated = rng.permutation(plain)
    scores = {"plain": plain, "values picked by hand": fewer, "arm of ours": unrelated}
    found = evaluation.Evaluation(table, {}, {name: {"toxicity": rows} for name, rows in scores.items()}).changes()
    rows = {row["arm"]: row for row in found.rows()}
    by_hand, other = rows["values picked by hand"], rows["arm of ours"]
    assert by_hand["change"] == pytest.approx(100 * (fewer.mean() - plain.mean()))
    # The standard error of a paired mean, against which the bootstrap is compared.
    for row, arm in ((by_hand, fewer), (other, unrelated)):
        half = 196 * (arm - plain).std(ddof=1) / np.sqrt(300)
        assert row["change_low"] == pytest.approx(row["change"] - half, abs=0.25 * half)
        assert row["change_high"] == pytest.approx(row["change"] + half, abs=0.25 * half)
    assert by_hand["change_high"] < 0 and other["change_low"] < 0 < other["change_high"]
    assert by_hand["published_change"] == pytest.approx(30.8 - 58.5) and other["published_change"] is None
