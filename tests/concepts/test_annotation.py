"""Annotation files out and back, and agreement beside scikit-learn and Fleiss' own example."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

import unembed
from tests.cli.conftest import save_model
from unembed.concepts import annotation
from unembed.concepts.annotation.agreement import cohen_kappa, fleiss_kappa
from unembed.concepts.annotation.files import Pattern
from unembed.concepts.annotation.judge import judge_annotation
from unembed.errors import InvalidInput
from unembed.results import Provenance, Table


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=2, max_size=40))
def test_cohens_kappa_is_scikit_learns(pairs):
    first, second = zip(*pairs, strict=True)
    if len({*first, *second}) == 1:
        assert np.isnan(cohen_kappa(first, second))
    else:
        assert cohen_kappa(first, second) == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)


def test_fleiss_kappa_is_that_of_the_published_example():
    # Fleiss 1971, Table 1 as used everywhere: 10 subjects, 14 raters, 5 categories, kappa 0.210.
    counts = [
        (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
        (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
    ]  # fmt: skip
    items = [[label for label, c in enumerate(row) for _ in range(c)] for row in counts]
    assert fleiss_kappa(items) == pytest.approx(0.210, abs=5e-4)


def test_kappa_at_its_ends_and_bad_labels():
    assert cohen_kappa([1, 0, 1, 0], [1, 0, 1, 0]) == 1.0
    assert cohen_kappa([1, 1, 0, 0], [1, 0, 1, 0]) == 0.0
    assert fleiss_kappa([[1, 1, 1], [0, 0, 0]]) == 1.0
    with pytest.raises(InvalidInput, match="same items"):
        cohen_kappa([1], [1, 0])
    with pytest.raises(InvalidInput, match="as many labels"):
        fleiss_kappa([[1, 0], [1, 0, 1]])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    lm = unembed.load(save_model(tmp_path_factory.mktemp("annotation") / "tiny"))
    return unembed.value_concepts(lm, [(0, 1), (1, 2)], top=20, embedding=False)


def filled(found, path: Path, patterns: list, annotator: str = "") -> Path:
    annotation.export(found, path)
    sheet = json.loads(path.read_text())
    sheet["annotator"] = annotator
    sheet["vectors"][0]["patterns"] = patterns
    path.write_text(json.dumps(sheet))
    return path


def test_what_was_exported_comes_back_with_the_patterns_filled_in(found, tmp_path: Path):
    pattern = {"description": "letters", "kind": "semantic", "tokens": [3, 1, 0, 7, 1]}
    path = filled(found, tmp_path / "ann.json", [pattern], "Ann")
    sheet = json.loads(path.read_text())
    assert sheet["provenance"]["seed"] is None
    assert [t["text"] for t in sheet["vectors"][1]["tokens"]] == found.lm.token_strings(found.ids[1].tolist())
    read = annotation.load(path)
    assert (read.annotator, read.vectors) == ("Ann", found.labels)
    assert read.patterns == ((Pattern("letters", "semantic", (0, 1, 3, 7)),), ())
    assert read.coverage() == [4 / 20, 0.0]
    assert len(annotation.patterns_table([read])) == 1
    row = next(iter(annotation.summary([read]).rows()))
    assert (row["in_a_pattern"], row["patterns_per_vector"]) == (0.1, 0.5)


def test_agreement_counts_tokens(found, tmp_path: Path):
    sets = {"a": [0, 1, 2, 3], "b": [2, 3, 4, 5], "c": [0, 1, 2, 3]}
    read = []
    for name, tokens in sets.items():
        pattern = {"description": "x", "kind": "names", "tokens": tokens}
        read.append(annotation.load(filled(found, tmp_path / f"{name}.json", [pattern])))
    labels = {n: [i in t for i in range(40)] for n, t in sets.items()}
    rows = {(r["question"], r["annotators"]): r for r in annotation.agreement(read).rows()}
    for pair in (("a", "b"), ("a", "c")):
        row = rows["in a concept", " and ".join(pair)]
        assert row["kappa"] == pytest.approx(cohen_kappa_score(labels[pair[0]], labels[pair[1]]))
        assert row["statistic"] == "Cohen"
    every = rows["in a concept", "a and b and c"]
    assert every["kappa"] == pytest.approx(fleiss_kappa(list(zip(*labels.values(), strict=True))))
    program = annotation.automatic(found)
    assert program.token_labels(("semantic", "syntactic", "names")) == [
        any(t in c.members and c.counted for c in concepts)
        for ids, concepts in zip(found.ids.tolist(), found.concepts, strict=True)
        for t in ids
    ]
    assert len(annotation.agreement([read[0], program])) == 5


def test_a_judge_is_anything_that_names_patterns(found):
    class First:
        annotator = "first four"

        def patterns(self, items, instruction):
            return [Pattern(items[0], "semantic", (0, 1, 2, 3))]

    assert judge_annotation(found, First()).coverage() == [0.2, 0.2]

    class Wrong(First):
        def patterns(self, items, instruction):
            return [Pattern("x", "semantic", (0, 1, 2, 99))]

    with pytest.raises(InvalidInput, match="places from 0 to 19"):
        judge_annotation(found, Wrong())


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ({"description": "x", "kind": "odd", "tokens": [0, 1, 2, 3]}, "kind 'odd'"),
        ({"description": "x", "kind": "names", "tokens": [0, 1, 2]}, "needs 4"),
        ({"description": "x", "kind": "names", "tokens": [0, 1, 2, 20]}, "0 to 19"),
        ({"description": " ", "kind": "names", "tokens": [0, 1, 2, 3]}, "no description"),
        ({"kind": "names"}, "damaged"),
    ],
)
def test_a_pattern_that_breaks_the_instructions_is_named(found, tmp_path: Path, pattern, message):
    with pytest.raises(InvalidInput, match=message):
        annotation.load(filled(found, tmp_path / "bad.json", [pattern]))


def test_files_that_are_no_annotations(found, tmp_path: Path):
    with pytest.raises(InvalidInput, match="cannot read"):
        annotation.load(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidInput, match="schema"):
        annotation.load(tmp_path / "other.json")
    one = annotation.automatic(found)
    with pytest.raises(InvalidInput, match="two or more"):
        annotation.agreement([one])


class Store:
    """Labels in a list, with an index's two methods."""

    def __init__(self) -> None:
        self.kept: list[dict] = []

    def add_labels(self, labels):
        new = [asdict(label) for label in labels]
        self.kept += new
        return [len(self.kept)] * len(new)

    def labels(self, layer=None, index=None):
        names = ("layer", "index", "label", "author")
        columns = {name: [row[name] for row in self.kept] for name in names}
        return Table("labels", columns, Provenance("m", None, "none"))


def test_patterns_become_labels_once_and_an_empty_vector_says_so(found, tmp_path: Path):
    pattern = {"description": "letters", "kind": "semantic", "tokens": [0, 1, 2, 3]}
    read = [annotation.load(filled(found, tmp_path / "ann.json", [pattern], "Ann"))]
    store = Store()
    assert annotation.add_to_index(read, store) == 2
    assert annotation.add_to_index(read, store) == 0
    first, second = store.kept
    assert (first["layer"], first["index"], first["label"], first["author"]) == (0, 1, "letters", "Ann")
    assert first["notes"] == {"pattern": "semantic", "members": [0, 1, 2, 3]}
    assert second["notes"] == {"pattern": None, "members": []}
    odd = replace(read[0], vectors=("L0.1", "random 3"))
    with pytest.raises(InvalidInput, match="random 3"):
        annotation.add_to_index([odd], store)
    assert len(store.kept) == 2
