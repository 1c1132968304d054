"""Muon's updates against an SVD, and on a quadratic."""

from __future__ import annotations

import pytest
import torch
from tools.training.muon import Muon, orthogonalised


@pytest.mark.parametrize("shape", [(6, 6), (12, 5), (5, 12)])
def test_an_orthogonalised_matrix_keeps_its_directions_and_evens_its_lengths(shape):
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    lengths = torch.linspace(0.3, 2.0, min(shape))
    made = orthogonalised((u * lengths @ v)[None])[0]
    inner = u.T @ made @ v.T
    assert (inner.diagonal() > 0.6).all()
    assert (inner.diagonal() < 1.3).all()
    assert (inner - inner.diagonal().diag()).abs().max() < 0.05


def test_muon_goes_down_a_bowl():
    torch.manual_seed(0)
    weight, goal = torch.nn.Parameter(torch.zeros(4, 8)), torch.randn(4, 8)
    muon = Muon([weight], lr=0.05)
    for _ in range(200):
        muon.zero_grad()
        (weight - goal).square().sum().backward()
        muon.step()
    assert (weight - goal).abs().max() < 0.2
