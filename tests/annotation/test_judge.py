"""A judge is any object with a name and a method; its answers are checked like a person's."""

from __future__ import annotations

import pytest

from unembed.annotation.files import Pattern
from unembed.annotation.judge import judge_annotation, require_judge
from unembed.errors import InvalidInput


def test_any_object_that_names_patterns_is_a_judge(found):
    class First:
        annotator = "first four"

        def patterns(self, items, instruction):
            return [Pattern(items[0], "semantic", (0, 1, 2, 3))]

    assert judge_annotation(found, First()).coverage() == [0.2, 0.2]

    class Wrong(First):
        def patterns(self, items, instruction):
            return [Pattern("x", "semantic", (0, 1, 2, 99))]

    with pytest.raises(InvalidInput, match="numbers from 0 to 19"):
        judge_annotation(found, Wrong())


def test_an_object_without_the_method_is_not_a_judge():
    with pytest.raises(InvalidInput, match="the method `patterns"):
        require_judge(object())
