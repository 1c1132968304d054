"""The packed atlas: what the page reads of it is the library's map, rounded."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from unembed.index.atlas import AtlasView, atlas_view
from unembed.server.packed_atlas import LEAST_DENSITY, LEVELS_A_DECADE, STEPS, PackedAtlas, pack


def unpacked(found: PackedAtlas) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the columns of a body, as its description says."""
    raw = gzip.decompress(found.body)
    end = 4 + int.from_bytes(raw[:4], "little")
    header = json.loads(raw[4:end])
    n = header["n"]
    planes = np.frombuffer(raw[end:], np.uint8).reshape(len(header["columns"]), 4, n).astype(np.int64)
    return header, dict(zip(header["columns"], (planes * 256 ** np.arange(4)[:, None]).sum(axis=1), strict=True))


@pytest.fixture(scope="module")
def view(wren) -> AtlasView:
    """The library's map."""
    return atlas_view(wren)


def test_a_packed_map_has_every_value_at_its_place(view):
    header, columns = unpacked(pack(view))
    assert header["n"] == len(view.x) and header["n_values"] == view.n_values
    for name in ("layer", "index", "cluster", "kind"):
        assert columns[name].tolist() == getattr(view, name)
    islands = [view.islands[c] for c in view.cluster]
    for name in ("x", "y"):
        code = columns[name]
        steps = np.where(code % 2 == 1, -(code + 1) // 2, code // 2)
        at = np.array([getattr(one, name) for one in islands]) + steps * header["step"]
        assert np.abs(at - np.array(getattr(view, name))).max() <= header["step"] / 2 + 1e-5
    distances = np.hypot(np.diff(view.x), np.diff(view.y))
    assert header["step"] * STEPS <= distances[distances > 0].min() * 1.02 + 2e-5  # neighbours stay apart


def test_the_tokens_of_each_value_are_its_first_two(view):
    header, columns = unpacked(pack(view))
    for k in range(2):
        shown = [header["tokens"][i] for i in columns[f"top{k}"]]
        assert shown == [view.tokens[row[k]] for row in view.top]


def test_densities_are_within_a_tenth(view):
    random = np.random.default_rng(0)
    density = (10 ** random.uniform(-5, 0, len(view.x)) * (random.random(len(view.x)) > 0.1)).tolist()
    _, columns = unpacked(pack(AtlasView(**{**vars(view), "density": density})))
    level = columns["density"]
    found = np.where(level > 0, LEAST_DENSITY * 10 ** ((level - 1) / LEVELS_A_DECADE), 0)
    assert ((found == 0) == (np.array(density) == 0)).all()
    assert np.abs(found / np.maximum(density, 1e-12) - 1)[found > 0].max() < 10 ** (0.5 / LEVELS_A_DECADE) - 1 + 1e-9


def test_the_version_changes_with_the_content_alone(view):
    assert pack(view) == pack(view)
    assert pack(AtlasView(**{**vars(view), "n_values": view.n_values + 1})).version != pack(view).version
