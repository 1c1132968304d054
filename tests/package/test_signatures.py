"""Public functions: one name for how many results, positions out of range are errors, one edit or none will do."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tools.python_reference import SPELLINGS

import unembed
from tests.conftest import tiny
from unembed import names
from unembed.causality import patching
from unembed.errors import UnembedError
from unembed.stream import interventions
from unembed.sweeps import fast_kernels
from unembed.trace import memory_effects

ROOMS = (
    "attention",
    "causality",
    "concepts",
    "dictionaries",
    "gallery",
    "index",
    "memories",
    "models",
    "stream",
    "sweeps",
    "trace",
)
WITH_K = {
    "value_readings",
    "attention.Circuits.relations",
    "attention.LowRank.top",
    "attention.LowRank.top_of_row",
    "train_dictionary",
}
"""k is the number of largest entries of a vector or matrix, or of features that may be active, as in the literature."""


def public() -> Iterator[tuple[str, Any]]:
    """Every public function and every public method of a public class, with the classes that they return."""
    spellings = (written.partition("(")[0] for written in SPELLINGS)
    names = {name: getattr(unembed, name) for name in (*unembed.__all__, "Trace", "Attribution", *spellings)}
    for room in ROOMS:
        module = importlib.import_module(f"unembed.{room}")
        for name in vars(module).get("__all__", ()):
            names[f"{room}.{name}"] = getattr(module, name)
    for name, found in names.items():
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and found.__module__.startswith("unembed."):
            for method, function in inspect.getmembers(found, inspect.isfunction):
                if not method.startswith("_"):
                    yield f"{name}.{method}", function


PUBLIC = dict(public())


def test_many_functions_are_seen() -> None:
    assert len(PUBLIC) > 150


def test_how_many_results_is_called_top_and_how_many_entries_k() -> None:
    called_k = {name for name, function in PUBLIC.items() if "k" in inspect.signature(function).parameters}
    assert called_k == WITH_K


WORDS = {
    *("after", "among", "basis", "by", "capture", "direction", "fast", "mode", "order"),
    *("point", "points", "pole", "poles", "positions", "to"),
}
"""Parameters that take one of a few words."""
NUMBERS = {
    *("float", "int", "int | None", "Sequence[int] | None"),
    *("Bool[Tensor, ' row'] | None", "Int[Tensor, ' token'] | None"),
}
"""Their annotations where they take no word: a factor, an order of terms, positions, rows, tokens."""


def test_an_editor_completes_every_word() -> None:
    """A parameter that takes a word is annotated with one of the types in which the words are defined once."""
    rooms = (names, interventions, patching, memory_effects, fast_kernels)
    aliases = {name for room in rooms for name, value in vars(room).items() if "Literal[" in repr(value)}
    bare = [
        f"{name}({parameter.name}: {parameter.annotation})"
        for name, function in PUBLIC.items()
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name in WORDS
        and parameter.annotation not in NUMBERS
        and not aliases & set(re.findall(r"\w+", str(parameter.annotation)))
    ]
    assert bare == []


def test_positions_out_of_range_are_errors_and_edits_may_be_one_or_none() -> None:
    lm, tokens = tiny("gpt2"), [5, 7, 11, 13]
    trace, one = lm.trace(tokens), unembed.scale_head(0, 1, 0.5)
    for call in (
        lambda: trace.sub_updates(0, position=4),
        lambda: trace.sub_updates(0, position=-5),
        lambda: trace.attribution(5, position=4),
        lambda: trace.events(4),
        lambda: trace.logits(4),
        lambda: trace.head_updates(0, position=4),
        lambda: trace.memory_effects(position=4),
        lambda: trace.described_memories(position=4),
        lambda: unembed.sub_update_effects(lm, tokens, 0, 5, position=4),
        lambda: unembed.circuits(lm).expand(tokens, 1, 4),
        lambda: unembed.circuits(lm).source_effects(tokens, 0, 0, 4, 5),
    ):
        with pytest.raises(UnembedError, match=r"position:? (4|-5)"):
            call()
    assert torch.equal(lm.run(tokens, edits=None).logits, lm.run(tokens).logits)
    assert torch.equal(lm.run(tokens, edits=one).logits, lm.run(tokens, edits=[one]).logits)
    assert torch.equal(lm.trace(tokens, edits=None).logits(), trace.logits())
    assert torch.equal(lm.trace(tokens, edits=one).logits(), lm.trace(tokens, edits=[one]).logits())
