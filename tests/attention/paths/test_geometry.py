"""Virtual weights and subspaces against dense computation."""

from pathlib import Path

import pytest
import scipy.linalg
import torch

import unembed
from tests.conftest import tiny
from unembed.attention.paths.geometry import subspaces, virtual_weights, writers_and_readers


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "attention-only", "gptj"])
def test_virtual_weights_equal_dense_products(name: str, centre: bool) -> None:
    lm = tiny(name, torch.float64)
    found = virtual_weights(lm, centre=centre)
    w = lm.weights
    layer_norms = name in ("gpt2", "gptj")

    def written(rows: torch.Tensor) -> torch.Tensor:
        return rows - rows.mean(dim=1, keepdim=True) if centre and layer_norms else rows

    out = written(w.W_O[0].flatten(0, 1))
    for which, matrix in (("Q 1", w.W_Q[1]), ("V 1", w.W_V[1])):
        into = matrix.transpose(0, 1).flatten(1)
        expected = (out @ into).norm() / (out.norm() * into.norm())
        torch.testing.assert_close(
            found.ratio[found.writers.index("attention 0"), found.readers.index(which)], expected
        )
    if name != "attention-only":
        gate = w.W_gate[0]
        into = w.W_in[0] if gate is None else gate
        expected = (out @ into).norm() / (out.norm() * into.norm())
        ratio = found.ratio[found.writers.index("attention 0"), found.readers.index("keys 0")]
        assert torch.isnan(ratio) if name == "gptj" else torch.isclose(ratio, expected)
        if gate is not None:
            expected = (out @ w.W_in[0]).norm() / (out.norm() * w.W_in[0].norm())
            torch.testing.assert_close(
                found.ratio[found.writers.index("attention 0"), found.readers.index("up 0")], expected
            )
    W_E, W_U = written(w.W_E), w.W_U - w.W_U.mean(dim=1, keepdim=True) if centre else w.W_U
    direct = (W_E @ W_U).norm() / (W_E.norm() * W_U.norm())
    torch.testing.assert_close(found.ratio[0, -1], direct)
    assert torch.isnan(found.ratio[found.writers.index("attention 1"), 0])


def test_subspaces_against_scipy() -> None:
    lm = tiny("gpt2", torch.float64)
    found = subspaces(lm, centre=False)
    ports = writers_and_readers(lm, centre=False)
    writers, readers = ports.writers, ports.readers
    out = lm.weights.W_O[0].flatten(0, 1)
    s = torch.linalg.svdvals(out).square()
    expected = (s.sum() ** 2 / s.square().sum()).item()
    i, j = found.labels.index("attention 0"), found.labels.index("Q 1")
    assert found.effective_rank[i].item() == pytest.approx(expected)
    bases = []
    for k in (i, j):
        gram = (writers + readers)[k].gram
        bases.append(torch.linalg.eigh(gram).eigenvectors[:, -round(found.effective_rank[k].item()) :].numpy())
    angles = scipy.linalg.subspace_angles(*bases)
    assert found.overlap[i, j].item() == pytest.approx((torch.tensor(angles).cos() ** 2).mean().item(), rel=1e-6)
    assert found.overlap[i, i].item() == pytest.approx(1.0)


def test_virtual_weights_are_a_table_of_later_readers_that_saves(tmp_path: Path) -> None:
    found = virtual_weights(tiny("gpt2"))
    table = found.to_table()
    assert len(table) == int((~found.ratio.isnan()).sum()) and table.column_names[:3] == ["writer", "reader", "ratio"]
    assert table["ratio"] == sorted(table["ratio"], reverse=True)
    assert table["over_chance"][0] == table["ratio"][0] / found.chance
    found.save(tmp_path / "weights")
    assert unembed.open_result(tmp_path / "weights").to_table().to_dict() == table.to_dict()
