"""What the findings of 24 prompts are, and how they are told.

`python -m tests.trace.test_findings` writes the tables anew (that of SmolLM2 where UNEMBED_SMOLLM2 names its folder);
read every sentence that changed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.cli.sample_view import HOSTILE, JANUARY, THE, sample_view
from tests.package.shown import drift
from unembed.language_model import LanguageModel, load
from unembed.models.named_tokens import MovedTokens
from unembed.trace import HeadSource, TraceSettings, trace_view
from unembed.trace.findings import Measured, findings
from unembed.trace.removals import Part, Removal
from unembed.trace.settling import settling

UNDECIDED = re.compile(r"^(Of [\d,]+ [\w ]+ none decides alone);.*")
TABLES = Path(__file__).parents[1] / "data" / "findings"


def told(lm: LanguageModel, prompt: str) -> list[str]:
    """The sentences of a prompt's findings."""
    settings = TraceSettings(prompt, -1, 5, "final", False, (), None)
    view, _ = trace_view(lm, settings, layer=None, memories=10, token=None, point=None, tracing=lm.trace)
    return [one.sentence for one in view.findings]


def compare(lm: LanguageModel, name: str) -> None:
    """Check that the findings of a model are those of its table."""
    table = json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))
    assert len(table) == 24
    for prompt, sentences in table.items():
        now = told(lm, prompt)
        assert 1 <= len(now) <= 3
        # Where nothing decides alone, rounding chooses among parts that matter about as little as each other.
        both = [[re.sub(UNDECIDED, r"\1", one) for one in some] for some in (sentences, now)]
        assert drift("\n".join(both[0]), "\n".join(both[1])) == [], prompt
        # No number of more than six digits.
        assert not re.search(r"\d{7}|\d[\d,]{8}", "".join(now))


def test_the_findings_of_wren_are_those_of_the_table() -> None:
    compare(load(), "wren")


def _removal(part: Part, p: float, effect: float, first: int = JANUARY.id) -> Removal:
    return Removal(part, p, effect, first, THE.id, 0.05, 0.05, MovedTokens())


HEAD, MEMORY, LAYER = Part("head", 1, 2, 1.0), Part("memory", 0, 5, 0.5), Part("ffn", 1, None, 2.0)


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return load()


def _first(lm: LanguageModel, removals: list[Removal], **more: object) -> str:
    view = sample_view(2)
    measured = Measured(JANUARY.id, 0.34, 6, removals, {}, {})
    measured = dataclasses.replace(measured, **more)  # type: ignore[arg-type]
    return findings(lm, measured, settling(view.layers), view.layers, "final")[0].sentence


def test_the_part_without_which_the_token_falls_most_is_named(lm: LanguageModel) -> None:
    weak, strong = _removal(MEMORY, 0.16, 1.0), _removal(HEAD, 0.05, 2.3)
    assert _first(lm, [weak, strong]).startswith("Head L1H2 decides: without it ")
    assert "falls from 34% to 5.0%." in _first(lm, [weak, strong])


def test_a_head_is_named_with_what_it_reads(lm: LanguageModel) -> None:
    source = HeadSource(3, 11, " of", 0.9, 1.0)
    removals = [_removal(HEAD, 0.05, 2.3)]
    assert _first(lm, removals, sources={(1, 2): source}).startswith("Head L1H2, reading ·of, decides")
    itself = dataclasses.replace(source, position=6)
    assert _first(lm, removals, sources={(1, 2): itself}).startswith("Head L1H2, reading ·of itself, decides")


def test_of_parts_that_come_close_the_explained_one_is_named_first(lm: LanguageModel) -> None:
    head, memory = _removal(HEAD, 0.05, 2.3), _removal(MEMORY, 0.07, 2.0)
    described = {(0, 5): "months after 'in'"}
    assert _first(lm, [head, memory], descriptions=described).startswith(
        "Memory L0M5 (months after 'in') and head L1H2 decide: without the first "
    )
    assert _first(lm, [head, memory], descriptions=described).endswith(" falls to 5.0%.")
    assert _first(lm, [memory], descriptions=described).startswith("Memory L0M5 (months after 'in') decides: ")
    far = _removal(MEMORY, 0.14, 1.2)
    assert _first(lm, [head, far], descriptions=described).startswith("Head L1H2 decides")


def test_a_layer_is_named_where_nothing_smaller_decides(lm: LanguageModel) -> None:
    layer, small = _removal(LAYER, 0.01, 4.0, THE.id), _removal(HEAD, 0.3, 0.2)
    sentence = _first(lm, [layer, small])
    assert sentence.startswith("The FFN of layer 1 decides as a whole: without what it writes here ")
    assert sentence.endswith(" Head L1H2 does not alone (34% to 30%).")
    memory = _removal(MEMORY, 0.31, 0.1)
    assert _first(lm, [layer, small, memory]).endswith(
        "Of 2 heads and memories none does alone; head L1H2 matters most (34% to 30%)."
    )
    smaller = [_removal(HEAD, 0.339, 0.01), _removal(MEMORY, 0.3399, 0.001)]
    assert _first(lm, [layer, *smaller]).endswith("Of 2 heads and memories none does alone.")
    assert _first(lm, [layer, _removal(HEAD, 0.1, 1.5)]).startswith("Head L1H2 decides")


def test_nothing_is_said_to_decide_where_nothing_does(lm: LanguageModel) -> None:
    removals = [_removal(LAYER, 0.33, 0.05), _removal(HEAD, 0.3, 0.2), _removal(MEMORY, 0.33, 0.05)]
    assert "none decides alone; head L1H2 matters most: without it" in _first(lm, removals)
    # A prediction by a hair is no decision.
    close = [_removal(HEAD, 0.33, 0.05, THE.id)]
    assert _first(lm, close).startswith("Head L1H2 alone does not decide: without it ")


def test_two_chosen_tokens_are_compared_by_the_difference_of_their_logits(lm: LanguageModel) -> None:
    sentence = _first(lm, [_removal(HEAD, 0.1, 2.5)], against=THE.id, difference=4.13)
    assert sentence.startswith("Head L1H2 decides for ") and " over " in sentence
    assert sentence.endswith("without it the difference of their logits falls from +4.13 to +1.63.")
    assert "alone does not decide" in _first(lm, [_removal(HEAD, 0.1, 1.5)], against=THE.id, difference=4.13)
    lost = _first(lm, [_removal(HEAD, 0.1, 0.5)], against=THE.id, difference=-1.0)
    assert lost.endswith("falls from −1.00 to −1.50.")


def test_a_head_that_reads_itself_is_no_candidate(lm: LanguageModel) -> None:
    removals = [_removal(HEAD, 0.01, 3.0), _removal(MEMORY, 0.1, 1.5)]
    assert _first(lm, removals, left_out={(1, 2)}).startswith("Memory L0M5 decides")
    small = [_removal(HEAD, 0.3, 0.2), _removal(MEMORY, 0.33, 0.05), _removal(Part("head", 0, 1, 1.0), 0.2, 0.7)]
    assert _first(lm, small, left_out={(0, 1)}).startswith(
        "Of 2 memories and heads that read other tokens none decides alone; head L1H2 matters most: "
    )


def test_a_token_that_was_first_before_is_not_said_to_be_first_only_at_the_end(lm: LanguageModel) -> None:
    layers = [dataclasses.replace(one, rank_before=9, rank_middle=9, rank_after=9) for one in sample_view(6).layers]
    for n in (0, 2, 3, len(layers) - 1):
        layers[n] = dataclasses.replace(layers[n], rank_after=1)
    measured = Measured(JANUARY.id, 0.34, 6, [], {}, {})
    settled, *_ = findings(lm, measured, settling(layers), layers, "final")
    told = f"is first after layers 0 and 2 to 3, and again after the FFN of layer {len(layers) - 1}, the last."
    assert settled.sentence.endswith(told)


def test_when_the_prediction_settles_and_what_was_first_until_then(lm: LanguageModel) -> None:
    layers = sample_view(6).layers
    measured = Measured(JANUARY.id, 0.34, 6, [], {}, {})
    settled, displaced = findings(lm, measured, settling(layers), layers, "final")
    name = lm.token_strings([JANUARY.id])[0]
    assert settled.kind == "settled" and settled.layer == 4
    assert settled.sentence.startswith("By the logit lens, ") and settled.sentence.endswith("FFN of layer 4 on.")
    assert displaced.sentence.startswith("Until then the logit lens has ") and "(8.0%)" in displaced.sentence
    assert name not in displaced.sentence
    assert "By the unembedding alone, " in findings(lm, measured, settling(layers), layers, "raw")[0].sentence


def test_where_the_stream_is_massive_that_is_said_and_not_what_was_first_until_then(lm: LanguageModel) -> None:
    layers = sample_view(6).layers
    measured = Measured(JANUARY.id, 0.34, 6, [], {}, {}, massive=[0.0, 12.2, 1500.4, 0.0, 11.0, 0.0])
    settled, massive = findings(lm, measured, settling(layers), layers, "final")
    assert (settled.kind, massive.kind, massive.layer) == ("settled", "massive", 1)
    assert massive.sentence == (
        "After layers 1 to 2 and 4 the stream here is up to 1,500 times as long as usual (massive activations): the "
        "tokens that a lens reads there say little."
    )


def test_a_token_that_is_never_first_has_its_best_rank(lm: LanguageModel) -> None:
    layers = [
        dataclasses.replace(one, rank_after=rank)
        for one, rank in zip(sample_view(3).layers, (90, 4, 1200), strict=True)
    ]
    measured = Measured(JANUARY.id, 0.34, 6, [], {}, {})
    (found,) = findings(lm, measured, settling(layers), layers, "final")
    assert found.sentence.endswith("is never first; its best rank is 4, after layer 1, and 1,200 after the last.")


def test_the_token_displaced_is_followed_back_through_the_layers() -> None:
    layers = sample_view(6).layers
    middle = [dataclasses.replace(one, middle=[THE, HOSTILE]) for one in layers]
    settled = settling(middle)
    assert settled is not None and settled.displaced == THE
    assert (settled.layer, settled.cause, settled.displaced_since) == (4, "ffn", 0)


if __name__ == "__main__":
    real = os.environ.get("UNEMBED_SMOLLM2")
    for name, model in [("wren", "wren"), *([("smollm2", real)] if real else [])]:
        file = TABLES / f"{name}.json"
        prompts = json.loads(file.read_text(encoding="utf-8"))
        opened = load(model)
        file.write_text(
            json.dumps({p: told(opened, p) for p in prompts}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
    sys.exit()
