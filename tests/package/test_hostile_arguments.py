"""Values that make no sense: each public function refuses them with an error of the package, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unembed
from tests.families import build
from unembed import steering, toxicity
from unembed.errors import UnembedError
from unembed.sweeps import TopTriggers

HUGE = 2**70
TEXTS = ["The first month. The year is the first.", "The month of the year."] * 2
TOKENS = [5, 7, 11, 13]


@pytest.fixture(scope="module")
def lm() -> Any:
    return unembed.load(build("gpt2"))


def edited(lm: Any, *settings: Any, **more: Any) -> Any:
    return lm.run(TOKENS, edits=[unembed.set_coefficient(*settings, **more)])


CALLS: dict[str, Callable[[Any], Any]] = {
    "ids that are negative": lambda lm: lm.vocabulary.strings([-1]),
    "ids beyond any integer": lambda lm: lm.vocabulary.strings([HUGE]),
    "ids that are not whole": lambda lm: lm.vocabulary.strings([1.5]),
    "readings of no token": lambda lm: lm.trace(TOKENS).readings(top=0),
    "an attribution by nothing known": lambda lm: lm.trace(TOKENS).attribution(1, by=""),
    "an edit at a position beyond any integer": lambda lm: edited(lm, 0, 0, 1.0, positions=[HUGE]),
    "an edit of nothing": lambda lm: unembed.Edit.from_dict({}),
    "values of no token": lambda lm: unembed.value_readings(lm, k=0),
    "values of fewer than none": lambda lm: lm.values.top(0, 0, -1),
    "a value beyond any integer": lambda lm: lm.values.top(0, HUGE),
    "clusters of words": lambda lm: unembed.cluster(np.array([["a"]]), 1),
    "clusters of no layer": lambda lm: unembed.cluster_values(lm, 3, layers=[]),
    "effects of fewer than none": lambda lm: unembed.sub_update_effects(lm, TOKENS, 0, 1, top=-1),
    "triggers of none": lambda lm: TopTriggers(0),
    "triggers without end": lambda lm: TopTriggers(10**12),
    "batches of nothing": lambda lm: unembed.sweep(lm, TEXTS, TopTriggers(2), tokens_per_batch=0),
    "heads by fewer than none": lambda lm: unembed.circuits(lm).head_scores().top("induction", -1),
    "a seed beyond any integer": lambda lm: unembed.circuits(lm).head_scores(HUGE),
    "a seed below zero": lambda lm: unembed.event_sample(lm, TEXTS, 2, seed=-1),
    "skip-trigrams of none": lambda lm: unembed.circuits(lm).skip_trigrams(0, 0, 0),
    "entries of none": lambda lm: unembed.circuits(lm).ov(0, 0).top(0),
    "a row beyond any integer": lambda lm: unembed.circuits(lm).ov(0, 0).rows([HUGE]),
    "paths of an order below zero": lambda lm: unembed.circuits(lm).expand(TOKENS, -1),
    "edits from a name that no file has": lambda lm: steering.load_edits("\0"),
    "edits to a name that no file has": lambda lm: steering.save_edits([], "\0"),
    "edits to half a character": lambda lm: steering.save_edits([], "\ud800"),
    "words from a name that no file has": lambda lm: toxicity.read_words("\ud800"),
    "prompts from a name that no file has": lambda lm: toxicity.read_prompts("\0"),
    "comments from a path that is text": lambda lm: toxicity.read_comments("nowhere.csv"),
    "a study with a seed below zero": lambda lm: unembed.report("geva2021", lm, TEXTS, seed=-1),
    "a study to a name that no folder has": lambda lm: unembed.report("geva2021", lm, TEXTS, "\0"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_value_that_makes_no_sense_is_refused_in_one_line(
    name: str, lm: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnembedError) as refused:
        CALLS[name](lm)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


UNTYPED = """
import inspect
from pathlib import Path

import numpy as np, torch, unembed
from tests.families import build
from unembed import early_exit, steering, toxicity
from unembed.errors import UnembedError
from unembed.sweeps import TopTriggers

lm, wren = unembed.load(build("gpt2")), unembed.load()
sentences = "The first month. The year is the first."
tokens = [5, 7, 11, 13]
for call in (
    lambda: lm.values.top_tokens("3", 0),
    lambda: lm.trace(5),
    lambda: lm.run([1.5, 2.7]),
    lambda: lm.run([True, False]),
    lambda: lm.run([[1, 2], [3, 4.5]]),
    lambda: lm.trace(tokens).readings(top=2.5),
    lambda: lm.trace(tokens).readings("coefficients"),
    lambda: lm.trace(tokens).sub_updates(0, position=1.5),
    lambda: unembed.set_coefficient(0, 0, 10**400),
    lambda: unembed.Edit.from_dict([]),
    lambda: unembed.cluster(np.eye(3), 1.5),
    lambda: steering.perplexity(lm, "a text"),
):
    try:
        print("no error", call())
    except UnembedError as error:
        assert "\\n" not in str(error)

trace, index = lm.trace(tokens), unembed.Index.build(wren, [sentences], "index", top=2)
circuits = unembed.circuits(lm)
entries = circuits.ov(0, 0)
PLACES = (None, True, 1.5, "0", b"0", [], (0,), {}, np.float32(0), torch.tensor([0, 1]), Path("0"))
LISTS = (True, -1, 1.5, "x", b"x", [None], {}, object())
TEXTS = (None, True, -1, 1.5, b"x", [], ["a"], {}, Path("x"))
PATHS = (True, -1, 1.5, b"x", [], {}, torch.tensor(0))
EDITS = (1, 1.5, "x", [None], ["x"], {})
MODELS = (None, "wren", 5, lm.hf)
for ask, hostile in (
    (lambda x: lm.run(tokens, capture=x), (None, True, 1, [1])),
    (lambda x: lm.run(tokens, layers=x), LISTS),
    (lambda x: lm.run(tokens, edits=x), EDITS),
    (lambda x: lm.trace(tokens, edits=x), EDITS),
    (lambda x: lm.edited(x).__enter__(), EDITS),
    (wren.generate, (None, 1, [1], b"x")),
    (lambda x: lm.run(tokens, ["resid_post"])[x], TEXTS),
    (lambda x: lm.run(tokens, ["resid_post"]).at("resid_post", x), PLACES),
    (trace.readings, TEXTS),
    (trace.entropy_and_kl, TEXTS),
    (trace.prediction_ranks, TEXTS),
    (lambda x: trace.ranks_of(5, point=x), TEXTS),
    (lambda x: trace.ranks_among(x, "resid_post", 0, -1), LISTS),
    (lambda x: trace.sub_updates_of(x), LISTS),
    (trace.attribution(5).top, PLACES[:-2]),
    (lambda x: unembed.sub_update_effects(lm, tokens, 0, 5, indices=x), LISTS),
    (lambda x: unembed.cluster(x, 2), (None, 1, 1.5, "x", {})),
    (lambda x: unembed.cluster_values(lm, 2, layers=x), LISTS),
    (lambda x: unembed.open_corpus([sentences], window=x), PLACES[1:]),
    (lambda x: unembed.open_corpus([sentences], column=x), TEXTS),
    (unembed.open_corpus, (True, 1, 1.5, b"x", {}, torch.tensor(0))),
    (lambda x: unembed.sweep(wren, [sentences], x), (None, 1, [None], "x", {}, [])),
    (lambda x: unembed.sweep(x, [sentences], TopTriggers(2)), MODELS),
    (lambda x: unembed.event_sample(x, [sentences], 2), MODELS),
    (lambda x: unembed.event_sample(wren, [sentences], x), PLACES),
    (lambda x: unembed.report("geva2021", x), MODELS),
    (lambda x: unembed.report(x, lm), TEXTS),
    (unembed.circuits, MODELS),
    (unembed.Index.open, (None, *PATHS)),
    (lambda x: unembed.Index.open("index", x), MODELS[1:]),
    (lambda x: unembed.Index.build(x, [sentences], "other"), MODELS),
    (lambda x: unembed.Index.build(wren, [sentences], x), (None, *PATHS)),
    (lambda x: index.triggers(x, 0), PLACES),
    (lambda x: index.triggers(0, x), PLACES),
    (lambda x: index.triggers(0, 0, pole=x), TEXTS),
    (lambda x: index.triggers(0, 0, context=x), (-1, *PLACES[1:])),
    (lambda x: index.similar(0, 0, among=x), TEXTS),
    (lambda x: index.promoting(x), (None, True, 1.5, b"x", [], {})),
    (index.search, TEXTS),
    (index.firing_on, TEXTS),
    (index.sql, TEXTS),
    (lambda x: index.export(x), (None, *PATHS)),
    (lambda x: index.add_label(0, 0, x), TEXTS),
    (lambda x: index.add_label(0, 0, "a label", author=x), (2**70, *TEXTS)),
    (index.withdraw_label, (2**70, *PLACES)),
    (index.triggers(0, 0).to_json, PATHS),
    (index.triggers(0, 0).to_parquet, (None, *PATHS)),
    (index.triggers(0, 0).to_text, PLACES),
    (lambda x: circuits.virtual_head(x, (1, 1)), (None, 1, "00", (0,), (0, 0, 0), (0, None), (0, 99), {})),
    (lambda x: circuits.expand(tokens, 1, position=x), PLACES),
    (lambda x: circuits.head(0, 0).effect(tokens, x), (99, *PLACES)),
    (lambda x: circuits.ov_full(0, 0, sources=x), (True, -1, 1.5, "x", [None], [-1], [97], torch.tensor([97]))),
    (lambda x: circuits.own_token(0, 0, top=x), PLACES),
    (circuits.random_composition, PLACES),
    (lambda x: circuits.head_scores(0, length=x), PLACES[1:]),
    (entries.top_of_row, PLACES),
    (wren.encode, (True, 1, 1.5, b"x", ["a"], {"a": 1})),
    (lambda x: unembed.load("wren", device=x), (3.5, [], {})),
    (unembed.value_readings, MODELS),
    (unembed.value_concepts, MODELS),
    (lambda x: unembed.value_concepts(wren, x), (True, 1, "x", [1], [(1,)], [(0, 0, 0)], [None])),
    (lambda x: steering.steer(x, "a", [unembed.set_coefficient(0, 0, 1.0)]), MODELS),
    (lambda x: steering.steer(wren, "a", x), EDITS),
    (lambda x: steering.promoting(x, ["month"]), MODELS),
    (lambda x: steering.promoting(wren, x), (None, 1, "x", [None], [1])),
    (lambda x: steering.perplexity(x, []), MODELS),
    (early_exit.fit, MODELS),
    (early_exit.examples, MODELS),
    (lambda x: early_exit.compare(x, ["a"]), (None, "rule.npz", wren)),
    (lambda x: early_exit.generate(x, "a"), (None, "rule.npz", wren)),
    (lambda x: toxicity.evaluate(x, ["a"], ["b"], None), MODELS),
    (lambda x: toxicity.evaluate(wren, x, ["b"], None), (None, 1, "x")),
):
    for given in hostile:
        try:
            print("no error", inspect.getsource(ask) if inspect.isfunction(ask) else ask, given, ask(given))
        except UnembedError as error:
            assert "\\n" not in str(error)
        except Exception as error:
            print(repr(error), inspect.getsource(ask) if inspect.isfunction(ask) else ask, given)
for number in (np.int64(1), torch.tensor(1)):  # what argmax gives is a layer, an index, a token, a seed and a count
    assert torch.equal(lm.values.top(number, number, number)[0], lm.values.top(1, 1, 1)[0])
    assert lm.single_token(number) == 1
    assert unembed.circuits(lm).head_scores(number).provenance.seed == 1
"""


def test_values_of_another_kind_too_where_nothing_checks_types(tmp_path: Path) -> None:
    """In a process of its own: tests check the types of all arguments before a function sees them."""
    script = tmp_path / "untyped.py"
    script.write_text(UNTYPED, encoding="utf-8")
    command = [sys.executable, "-W", "ignore", str(script)]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=path)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
