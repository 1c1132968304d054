"""Values that make no sense: each public function refuses them with an error of the package, in one line."""

from __future__ import annotations

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
    "dominant of none": lambda lm: lm.trace(TOKENS).dominant(-1),
    "an account by nothing known": lambda lm: lm.trace(TOKENS).account(1, by=""),
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
    "comments from a path that is text": lambda lm: toxicity.comments("nowhere.csv"),
    "a study with a seed below zero": lambda lm: unembed.report("geva2021", lm, TEXTS, seed=-1),
    "a study to a name that no folder has": lambda lm: unembed.report("geva2021", lm, TEXTS, "\0"),
    "training on no thread": lambda lm: unembed.train("wren", corpus=None, out="out", threads=0),
    "training on a trillion threads": lambda lm: unembed.train("wren", corpus=None, out="out", threads=10**12),
    "training with a seed below zero": lambda lm: unembed.train("wren", corpus=None, out="out", seed=-1),
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
import numpy as np, torch, unembed
from tests.families import build
from unembed import steering
from unembed.errors import UnembedError

lm = unembed.load(build("gpt2"))
tokens = [5, 7, 11, 13]
for call in (
    lambda: lm.values.top_tokens("3", 0),
    lambda: lm.trace(5),
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
for number in (np.int64(1), torch.tensor(1)):  # what argmax gives is a layer, an index, a token, a seed and a count
    assert torch.equal(lm.values.top(number, number, number)[0], lm.values.top(1, 1, 1)[0])
    assert lm.single_token(number) == 1
    assert unembed.circuits(lm).head_scores(number).seed == 1
"""


def test_values_of_another_kind_too_where_nothing_checks_types() -> None:
    """In a process of its own: tests check the types of all arguments before a function sees them."""
    command = [sys.executable, "-W", "ignore", "-c", UNTYPED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
