"""The name of a part, as printed, is read as the same part."""

from __future__ import annotations

import pytest

from unembed.names import HeadAddress, MemoryIndex, head_name, head_named, memory_name, parse_head, parse_memory


@pytest.mark.parametrize(
    ("layer", "index", "name"),
    [(5, 278, "L5M278"), (12, (7, 345), "L12E7M345"), (12, (None, 3), "L12SM3"), (0, 0, "L0M0")],
)
def test_the_name_of_a_memory_is_read_as_that_memory(layer: int, index: MemoryIndex, name: str) -> None:
    assert memory_name(layer, index) == name
    assert parse_memory(name) == (layer, index)


@pytest.mark.parametrize(("number", "name"), [(0, "L2E0M0"), (17, "L2E1M7"), (39, "L2E3M9"), (40, "L2SM0")])
def test_a_number_in_a_layer_of_experts_is_named_by_its_expert(number: int, name: str) -> None:
    assert memory_name(2, number, (4, 10)) == name


def test_the_name_of_a_head_is_read_as_that_head() -> None:
    assert head_name(3, 11) == str(HeadAddress(3, 11)) == "L3H11"
    assert parse_head("L3H11") == head_named("L3H11") == parse_head("3.11") == (3, 11)
    assert head_named("3.11") is None and head_named("L3M11") is None
