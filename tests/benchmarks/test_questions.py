"""The fifty answers that stand in the file are true, the tools give them, and the checker tells right from wrong."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from benchmarks.questions.asked import Question, graded, questions
from benchmarks.questions.plants import PLANTS, make
from benchmarks.questions.replay import replayed
from torch import Tensor, nn

import unembed

WAR = "The war lasted from 1861"
ALL = questions()
BY_ID = {one.id: one for one in ALL}


@pytest.fixture(scope="module")
def wren() -> unembed.LanguageModel:
    """The shipped model."""
    return unembed.load("wren")


@contextmanager
def without(module: nn.Module, columns: slice) -> Generator[None]:
    """Set columns of what a module reads to zero."""

    def change(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        changed = inputs[0].clone()
        changed[..., columns] = 0.0
        return (changed,)

    hook = module.register_forward_pre_hook(change)
    yield
    hook.remove()


def logits(lm: unembed.LanguageModel, prompt: str) -> Tensor:
    """The last logits of the transformers model alone."""
    with torch.no_grad():
        return lm.hf(lm.encode(prompt).reshape(1, -1)).logits[0, -1].double()


def difference(lm: unembed.LanguageModel, prompt: str, token: str, against: str) -> float:
    """The difference of two logits."""
    found = logits(lm, prompt)
    return float(found[lm.single_token(token)] - found[lm.single_token(against)])


def per_cent(lm: unembed.LanguageModel, prompt: str, token: str) -> float:
    """The probability of a token, in per cent."""
    return 100 * float(logits(lm, prompt).softmax(0)[lm.single_token(token)])


def test_there_are_fifty_with_calls_and_different_names() -> None:
    assert len(ALL) == len(BY_ID) == 50
    assert {one.model for one in ALL} == {*PLANTS, "wren", "attn-2l", "smollm2"}
    assert all(one.calls and any(call.stands for call in one.calls) for one in ALL)


def test_numbers_in_the_file_are_those_of_transformers_alone(wren: unembed.LanguageModel) -> None:
    pairs = {
        "difference-until-to": (WAR, " until", " to"), "difference-dogs": ("The dogs", " are", " is"),
        "difference-he-she": ("The king said that", " he", " she"),
        "difference-blue-red": ("The sky is", " blue", " red"),
    }  # fmt: skip
    for name, pair in pairs.items():
        assert float(BY_ID[name].answer) == pytest.approx(difference(wren, *pair), abs=1e-3), name
    assert float(BY_ID["probability-until"].answer) == pytest.approx(per_cent(wren, WAR, " until"), abs=0.02)
    with without(wren.hf.transformer.h[7].mlp.c_proj, slice(985, 986)):
        assert float(BY_ID["without-memory"].answer) == pytest.approx(per_cent(wren, WAR, " until"), abs=0.02)
    whole, falls = difference(wren, WAR, " until", " to"), dict[str, float]()
    for layer in range(8):
        for head in range(8):
            with without(wren.hf.transformer.h[layer].attn.c_proj, slice(32 * head, 32 * head + 32)):
                falls[f"L{layer}H{head}"] = whole - difference(wren, WAR, " until", " to")
    most = max(falls, key=lambda name: falls[name])
    assert BY_ID["without-head"].answer == most
    assert float(BY_ID["without-head-by"].answer) == pytest.approx(falls[most], abs=1e-3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the changed copies."""
    made = tmp_path_factory.mktemp("plants")
    make(made)
    return made


def wrong(asked: list[Question], folder: Path) -> list[str]:
    return [f"{one.id}: {said!r}, not {one.answer!r}" for one, said in replayed(asked, folder) if not one.accepts(said)]


def test_the_tools_answer_the_questions_about_shipped_and_changed_models(folder: Path) -> None:
    assert not wrong([one for one in ALL if one.model != "smollm2"], folder)


def test_a_change_that_was_not_made_is_not_found(folder: Path) -> None:
    """Asked about wren itself, the calls find no silenced memory and no push: the questions can be failed."""
    unchanged = [
        Question(one.id, "wren", one.text, one.answer, one.within, one.calls)
        for one in ALL
        if one.id in ("silenced-L7M985", "pushed-ffn-token", "raised-L2M500", "swapped-induction")
    ]
    assert len(wrong(unchanged, folder)) == 4


@pytest.mark.parametrize(
    ("name", "given", "right"),
    [
        ("swapped-induction", "L3H5", True), ("swapped-induction", "Looking at L3H0 first.\nIt is head L3H5.", True),
        ("swapped-induction", "L3H0", False), ("swapped-induction", "L3H5 or L3H0", False),
        ("swapped-induction", "", False),
        ("raised-L0M12", "' London'", True), ("raised-L0M12", "·London.", True), ("raised-L0M12", "Londoner", False),
        ("capital-difference", "4.13", True), ("capital-difference", "about 4.12 logits", True),
        ("capital-difference", "−4.13", False), ("capital-difference", "4.2", False),
        ("capital-difference", "4.13 or 5", False),
    ],
)  # fmt: skip
def test_the_checker_tells_right_from_wrong(name: str, given: str, right: bool) -> None:
    assert BY_ID[name].accepts(given) is right


def test_grading_counts_missing_answers_as_wrong_and_refuses_unknown_questions() -> None:
    held = graded([{"id": one.id, "answer": one.answer} for one in ALL[1:]], ALL)
    assert sum(held.values()) == 49 and not held[ALL[0].id]
    with pytest.raises(ValueError, match="no question has this id"):
        graded([json.loads('{"id": "x", "answer": "y"}')], ALL)
