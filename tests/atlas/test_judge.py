"""The judge's answers as scores: what can be read, what counts as chance, and what exceeds the control."""

from __future__ import annotations

import numpy as np
import pytest

from unembed.atlas.judge import Description, Scores, Trial, _choice, _description, _detection, _prompt

FIRES = np.array([True, False, True, False])


@pytest.mark.parametrize(
    ("answer", "accuracy"),
    [
        ("[1, 3]", 1.0),
        ("[2,4]", 0.0),
        ("[1]", 0.75),
        ("[]", 0.5),
        ("Sure: [1, 2, 3, 4].", 0.5),
        ("[5]", None),
        ("[0]", None),
        ("1 and 3", None),
        ("[1,,3]", None),
        ("", None),
    ],
)
def test_a_list_of_excerpts_is_scored_as_the_rules_are(answer: str, accuracy: float | None) -> None:
    assert _detection(answer, FIRES) == accuracy


@pytest.mark.parametrize(
    ("answer", "right"), [("2", True), ("Text 2.", True), ("3", False), ("4", None), ("1 or 2", None)]
)
def test_one_text_is_a_choice(answer: str, right: bool | None) -> None:
    assert _choice(answer, 1) is right


def test_both_sides_of_a_description_are_read() -> None:
    assert _description("FIRES: after years\nRAISES: prepositions") == Description("after years", "prepositions")
    assert _description("**FIRES:** after years\n**RAISES:** prepositions") == Description(
        "after years", "prepositions"
    )
    assert _description("It fires after years.") == Description("", "")


def test_a_prompt_may_contain_braces_of_the_text() -> None:
    assert "{description} of {x}" in _prompt("choose", description="{description} of {x}", texts="1. a")


def _tested(own: float | None, control: float | None, chosen: bool | None = True) -> Trial:
    return Trial(Description("a", "b"), own, control, chosen, False)


def test_a_line_passes_where_it_exceeds_the_controls_of_the_others() -> None:
    rng = np.random.default_rng(0)
    controls = rng.choice([0.4, 0.5, 0.6], 40)
    found = Scores.of([_tested(0.9 if i < 30 else 0.5, float(control)) for i, control in enumerate(controls)])
    assert found.detection_passes.value == 30 / 40
    assert found.detection.value == pytest.approx((0.9 * 30 + 0.5 * 10) / 40)
    assert (found.chosen.value, found.chosen_control.value, found.unread) == (1, 0, 0)
    few = Scores.of([_tested(1.0, 0.5)] * 10)
    assert few.detection_passes.value == 0  # too few controls for a bound


def test_an_answer_that_cannot_be_read_is_chance_and_counted() -> None:
    found = Scores.of([_tested(None, None, None)] * 30)
    assert (found.detection.value, found.detection_passes.value, found.chosen.value, found.unread) == (0.5, 0, 0, 90)
