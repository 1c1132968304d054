"""Relations are read from files, and only pairs of single tokens count."""

import json
from pathlib import Path

import pytest

import unembed
from unembed.attention.text.word_relations import Relation, open_relation, shipped_relations, token_pairs
from unembed.errors import InvalidInput


def test_a_shipped_relation_has_the_pairs_of_its_file() -> None:
    names = shipped_relations()
    assert len(names) == 11 and "country_to_capital" in names
    relation = open_relation("country_to_capital")
    assert relation.name == "country to capital"
    assert ("Austria", ("Vienna",)) in relation.pairs
    for name in names:
        assert len(open_relation(name).pairs) >= 20


def test_a_file_of_anyone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "colour of things.json"
    path.write_text(json.dumps([["grass", ["green"]], ["snow", "white"]]), encoding="utf-8-sig")
    assert open_relation(path) == Relation("colour of things", (("grass", ("green",)), ("snow", ("white",))))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"), ("{}", "not a list"), ("[]", "no pairs"), ("[3]", "not a source word"),
        ("[[1, 2]]", "must be strings"),
        ('["ab"]', "not a source word with its targets"),
        ('[["a", []]]', "must be strings"), ('[["a"]]', "not a source word with its targets"),
    ],
)  # fmt: skip
def test_what_is_no_relation_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "pairs.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=why) as refused:
        open_relation(path)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_refused_with_the_names_of_shipped_relations() -> None:
    with pytest.raises(InvalidInput, match="country_to_capital"):
        open_relation("no such file")


def test_pairs_of_several_tokens_or_of_one_token_with_itself_are_left_out() -> None:
    lm = unembed.load("wren")
    pairs = [("France", ["Paris"]), ("Italy", ["Rome", "Roma"]), ("cut", ["cut"]), ("Antigua and Barbuda", ["Rome"])]
    found = token_pairs(lm, Relation.of(pairs))
    assert found.sources == tuple(lm.single_token(word) for word in (" France", " Italy"))
    assert found.targets[0] == {lm.single_token(" Paris")}
    assert lm.single_token(" Rome") in found.targets[1]
    assert found.left_out == 2


def test_pairs_that_all_have_one_target_have_no_control() -> None:
    with pytest.raises(InvalidInput, match="different targets"):
        token_pairs(unembed.load("wren"), Relation.of([("France", "Paris"), ("Italy", "Paris")]))
