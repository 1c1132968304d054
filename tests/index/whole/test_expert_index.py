"""An index of a model whose memories belong to experts, and of some of its layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from tests.cli.conftest import save_model
from tests.cli.conftest import unembed as unembed
from tests.index.conftest import corpus_of
from unembed.errors import IndexFault, OutOfRange
from unembed.index import Index, IndexSettings
from unembed.language_model import LanguageModel, load
from unembed.stream.run import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "qwen2_moe", "qwen2_moe")


@pytest.fixture(scope="module")
def experts(folder: Path) -> LanguageModel:
    return load(folder)


@pytest.fixture(scope="module")
def index(experts: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("index") / "experts"
    return Index.build(experts, corpus_of(), path, top=5, settings=IndexSettings(top_tokens=6))


def _coefficients(lm: LanguageModel, index: Index, layer: int) -> dict[int, torch.Tensor]:
    """Every counted position's coefficients, segment by segment, by position of the token stream."""
    stream, found = index.passages, {}
    for segment in range(len(stream.start) - 1):
        begin, end = int(stream.start[segment]), int(stream.start[segment + 1])
        m = run(lm, torch.from_numpy(stream.prefix(end - 1).astype("int64"))[None], "coefficients")
        rows = m.at("coefficients", layer)[0][-(end - begin) :]
        found |= {begin + i: row for i, row in enumerate(rows)}
    return found


def test_triggers_are_the_largest_coefficients_of_every_experts_keys(experts: LanguageModel, index: Index) -> None:
    for layer in range(experts.n_layers):
        found = _coefficients(experts, index, layer)
        values = torch.stack(list(found.values()))
        for number in range(0, experts.n_memories_of(layer), 17):
            for pole, sign in (("positive", 1), ("negative", -1)):
                stored, position = index.pole(pole)
                row = index.row(layer, number)
                best = (values[:, number] * sign).sort(descending=True).values[:5]
                listed = stored[row][position[row] >= 0] * sign
                assert len(listed) == min(5, int((best > 0).sum()))
                assert listed.tolist() == pytest.approx(best[best > 0].tolist(), rel=1e-4, abs=1e-6)


def test_memories_are_named_by_their_expert(experts: LanguageModel, index: Index) -> None:
    found = index.triggers(1, (2, 5))
    assert found.title.startswith("Triggers of key L1E2M5,")
    assert index.row(1, (2, 5)) == experts.n_memories_of(0) + 2 * 24 + 5
    assert index.memory_name(0, 4 * 24 + 3) == "L0SM3" and index.memory(0, (None, 3)) == (0, 4 * 24 + 3)
    assert all("E" in name or "S" in name for name in index.promoting(20, 4)["memory"])
    with pytest.raises(OutOfRange, match="4 experts of 24"):
        index.triggers(1, (4, 0))


def test_the_share_of_routed_positions_is_stored(experts: LanguageModel, index: Index) -> None:
    share = index.sql('SELECT layer, "index", routed FROM statistics ORDER BY layer, "index"')["routed"]
    m = _coefficients(experts, index, 0)
    chosen = torch.stack([(row[: 4 * 24].view(4, 24) != 0).any(1) for row in m.values()]).float().mean(0)
    assert share[: 4 * 24 : 24] == pytest.approx(chosen.tolist(), abs=1e-6)
    assert share[4 * 24] == 1.0


def test_keys_that_fire_and_similar_values_are_found(index: Index, experts: LanguageModel) -> None:
    index.attach(experts)
    found = index.firing_on("The first month of the year is January", 5)
    assert len(found) == 5 and all(s > 0 for s in found["strength"])
    near = index.similar(0, (1, 3), 4)
    assert near.title.endswith("L0E1M3") and near["cosine"] == sorted(near["cosine"], reverse=True)


def test_an_index_of_some_layers_holds_only_these(experts: LanguageModel, index: Index, tmp_path: Path) -> None:
    settings = IndexSettings(top_tokens=6, layers=(1,))
    part = Index.build(experts, corpus_of(), tmp_path / "part", top=5, settings=settings)
    assert part.manifest.layers == (0, experts.n_memories_of(1))
    assert part.triggers(1, (2, 5)).to_dict()["columns"] == index.triggers(1, (2, 5)).to_dict()["columns"]
    with pytest.raises(OutOfRange):
        part.triggers(0, 0)
    part.attach(experts)
    assert set(part.firing_on("The first month of the year is January", 5)["layer"]) == {1}
    assert len(part.similar(1, 3, 4)) == 4
    with pytest.raises(IndexFault, match="another"):
        Index.build(experts, corpus_of(), tmp_path / "part", top=5, settings=IndexSettings(top_tokens=6, layers=(0, 1)))


def test_the_command_line_names_memories_of_experts(index: Index, unembed: Callable[..., Result]) -> None:
    out = unembed("index", "triggers", str(index.path), "L1E2M5", "--json")
    assert out.exit_code == 0 and "L1E2M5" in out.stdout
    bad = unembed("index", "triggers", str(index.path), "L1E9M5")
    assert bad.exit_code == 1 and "4 experts of 24" in bad.stderr
