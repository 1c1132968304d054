"""A picture with its test and its measured effects, on the shipped model: an induction."""

from __future__ import annotations

from typing import Literal

import pytest

import unembed
from unembed.circuit_graph import CircuitGraph, FlowView, changed, circuit, picture, prompt_picture, read_case
from unembed.errors import InvalidInput, OutOfRange, Unsupported
from unembed.language_model import LanguageModel

PROMPT, OTHER = "Captain Cook sailed north. Captain", "Captain Scott sailed north. Captain"


@pytest.fixture(scope="module")
def wren() -> LanguageModel:
    return unembed.load()


@pytest.fixture(scope="module")
def view(wren: LanguageModel) -> FlowView:
    return picture(circuit(wren, PROMPT, " Cook", " Scott", OTHER))


def test_an_induction_is_drawn_with_what_it_reads(view: FlowView) -> None:
    """A head of layer 5 reads the token that followed the first Captain, which heads of layer 0 wrote."""
    first = view.nodes[0]
    assert (first.name, first.kind, first.position, view.tokens[first.reads or 0]) == ("L5H0@5", "head", 5, " Cook")
    assert view.counterfactual == OTHER and view.explained == pytest.approx(view.metric - (view.other_metric or 0.0))
    assert view.likely[0].token == view.target == " Cook"
    assert view.likely[0].probability == pytest.approx(view.probabilities[0], rel=1e-4)
    assert len(view.test) == 1 and "brings 103 % of the difference of" in view.test[0]
    assert "(101 % with 10," in view.test[0]


def test_measured_effects_are_beside_the_drawn_ones(view: FlowView) -> None:
    removed = [node for node in view.nodes if node.removed is not None]
    assert len(removed) == sum(node.kind in ("head", "memory") for node in view.nodes) > 20
    first = view.nodes[0]
    assert first.relevance is not None and first.removed is not None
    assert view.metric - first.removed.metric == pytest.approx(first.relevance, rel=0.1)
    assert view.without == f"its value after “{OTHER}”"


def test_the_picture_of_a_prompt_is_that_of_its_graph(wren: LanguageModel, view: FlowView) -> None:
    steps: list[str] = []
    found = prompt_picture(wren, PROMPT, " Cook", " Scott", OTHER, step=steps.append)
    assert found == view
    assert len(steps) == 2


def test_without_a_second_prompt_one_is_found_or_the_prompt_stands_alone(wren: LanguageModel) -> None:
    steps: list[str] = []
    found = prompt_picture(wren, "The dogs", " are", " is", max_nodes=10, step=steps.append)
    assert found.counterfactual is not None and len(steps) == 3
    alone = prompt_picture(wren, "The dogs", " are", " is", alone=True, max_nodes=10)
    assert alone.counterfactual is None and alone.other_metric is None
    assert alone.without == "its mean over a text" and alone.explained == alone.metric


def test_one_part_is_measured_at_zero_or_with_the_value_of_any_prompt(wren: LanguageModel, view: FlowView) -> None:
    case = read_case(wren, PROMPT, None, " Cook", " Scott")
    first = view.nodes[0].removed
    assert first is not None
    assert changed(wren, case, [("head", 5, 5, 0)], other=OTHER).metric == pytest.approx(first.metric, abs=1e-4)
    assert changed(wren, case, [("head", 5, 5, 0)]).metric < view.metric - 1
    with pytest.raises(OutOfRange):
        changed(wren, case, [("head", 5, 6, 0)])
    with pytest.raises(OutOfRange):
        changed(wren, case, [("memory", 5, 5, 99_999)])
    with pytest.raises(InvalidInput):
        changed(wren, case, [("head", 5, 5, 0)], other="Captain")


def test_groups_are_in_the_picture_with_what_the_model_does_when_they_are_changed(wren: LanguageModel) -> None:
    graph = circuit(wren, PROMPT, " Cook", " Scott", OTHER).with_group("two", ["L5H0", "L5H4"])
    view = picture(graph, test=())
    assert {group.by for group in view.groups} >= {"hand", "role"}
    two = next(group for group in view.groups if group.name == "two")
    assert [view.nodes[i].name for i in two.nodes] == ["L5H0@5", "L5H4@5"]
    own = [view.nodes[i].relevance or 0.0 for i in two.nodes]
    inside = sum(weight for source, target, weight in view.edges if {source, target} <= set(two.nodes))
    assert two.relevance == pytest.approx(sum(own) - inside, abs=1e-6)
    found = {(effect.change, effect.factor): effect.found.metric for effect in two.effects}
    assert set(found) == {("silence", None), ("scale", 0.5), ("scale", 2.0), ("patch", None)}
    for change, factor in found:
        table = graph.intervene(change, factor=factor or 2.0)  # type: ignore[arg-type]
        assert table["metric"][1] == pytest.approx(found[change, factor], abs=1e-4)
    case = read_case(wren, PROMPT, None, " Cook", " Scott")
    parts: list[tuple[Literal["head", "memory"], int, int, int]] = [("head", 5, 5, 0), ("head", 5, 5, 4)]
    assert changed(wren, case, parts, 0.5).metric == pytest.approx(found["scale", 0.5], abs=1e-4)
    assert changed(wren, case, parts, other=OTHER).metric == pytest.approx(found["patch", None], abs=1e-4)
    assert len({round(value, 3) for value in found.values()}) == 4


def test_a_graph_from_a_file_has_no_picture_until_it_has_its_model(
    wren: LanguageModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("graph") / "cook.circuit"
    circuit(wren, PROMPT, " Cook", " Scott", OTHER, max_nodes=5).save(path)
    graph: CircuitGraph = unembed.open_result(path)
    with pytest.raises(Unsupported):
        picture(graph)
    assert picture(graph.bound_to(wren), test=()).nodes[0].name == "L5H0@5"
