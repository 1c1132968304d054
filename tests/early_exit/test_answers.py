"""What `unembed early-exit fit` shows: layers at which examples saturate, the others in one row, and progress."""

from __future__ import annotations

from pathlib import Path

import pytest

import unembed
from unembed.early_exit.answers import _folded, fit_answer
from unembed.models.decoder import Decoder
from unembed.results import Table


@pytest.fixture(scope="module")
def wren() -> Decoder:
    return unembed.load("wren")


@pytest.mark.parametrize(
    ("counts", "layers"),
    [
        ([0, 3, 0, 0, 1], ["1", "4", "each of 3 others"]),
        ([0, 3, 2], [0, 1, 2]),
        ([1, 3], [0, 1]),
    ],
)
def test_layers_without_an_example_are_one_row(wren: Decoder, counts: list[int], layers: list[object]) -> None:
    columns = {"layer": list(range(len(counts))), "examples": counts, "share": [25.0 * one for one in counts]}
    folded = _folded(Table("t", columns, wren.provenance()))
    assert list(folded["layer"]) == layers
    assert sum(folded["examples"]) == sum(counts) and list(folded["examples"]).count(0) == (0 in counts)


def test_progress_goes_from_none_of_the_examples_to_all_and_json_has_every_layer(wren: Decoder, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    out = tmp_path / "rule.npz"
    answer = fit_answer(wren, out=out, method="margin", examples=20, progress=lambda *now: seen.append(now))
    assert seen[0] == ("examples", 0, 20) and seen[-1] == ("examples", 20, 20)
    assert isinstance(answer.data, Table) and list(answer.data["layer"]) == list(range(wren.n_layers))
