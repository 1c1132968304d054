"""Quiet layers of a long trace become one row; a layer in which something happens never does."""

from __future__ import annotations

import dataclasses

from tests.cli.sample_view import HOSTILE, JANUARY, THE, sample_view
from unembed.cli.trace.folding import ALWAYS_SHOWN, Fold, folded
from unembed.trace import LayerView


def _layer(number: int, ranks: tuple[int, int, int], first: int = 0) -> LayerView:
    stream = [[THE, HOSTILE, JANUARY][first]]
    (one,) = sample_view(1).layers
    return dataclasses.replace(
        one,
        layer=number,
        before=stream,
        middle=stream,
        after=stream,
        rank_before=ranks[0],
        rank_middle=ranks[1],
        rank_after=ranks[2],
        events=[],
    )


def test_layers_in_which_the_target_is_far_are_one_row() -> None:
    layers = [_layer(n, (5000 - n, 4000, 3000), n % 3) for n in range(20)] + [
        _layer(20, (3000, 900, 40)),
        _layer(21, (40, 39, 1)),
    ]
    rows = folded(layers)
    assert [row.numbers if isinstance(row, Fold) else row.layer for row in rows] == ["0–19", 20, 21]
    assert isinstance(rows[0], Fold) and rows[0].kind == "far" and rows[0].beyond == 1000


def test_layers_in_which_the_same_token_stays_first_are_one_row() -> None:
    layers = [_layer(n, (3, 3, 3)) for n in range(9)]
    layers += [_layer(9, (3, 3, 1), 1)]
    layers += [_layer(n, (1, 1, 1), 2) for n in range(10, 20)]
    rows = folded(layers)
    assert [row.numbers if isinstance(row, Fold) else row.layer for row in rows] == ["0–8", 9, "10–18", 19]
    assert [row.kind for row in rows if isinstance(row, Fold)] == ["same", "same"]


def test_a_layer_across_which_the_rank_halves_is_shown() -> None:
    layers = [_layer(n, (60, 60, 60)) for n in range(20)]
    layers[7] = _layer(7, (60, 25, 60))
    rows = folded(layers)
    assert 7 in [row.layer for row in rows if isinstance(row, LayerView)]


def test_a_nearer_rank_is_far_where_many_rows_would_be_left() -> None:
    layers = [_layer(n, (800 if n % 2 else 350, 400, 350 if n % 2 else 800), n % 3) for n in range(24)]
    rows = folded(layers)
    assert len(rows) == 2 and isinstance(rows[0], Fold) and rows[0].beyond == 300


def test_all_layers_of_a_small_model_are_shown() -> None:
    layers = [_layer(n, (5000, 5000, 5000)) for n in range(ALWAYS_SHOWN)]
    assert folded(layers) == layers
