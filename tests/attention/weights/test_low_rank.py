"""A matrix kept as factors answers as the dense matrix does."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unembed.attention.weights.low_rank import LowRank
from unembed.errors import InvalidInput, OutOfRange


def low_rank(*batch: int, m: int = 40, n: int = 40, r: int = 7, seed: int = 0) -> LowRank:
    g = torch.Generator().manual_seed(seed)
    return LowRank(
        torch.randn(*batch, m, r, generator=g, dtype=torch.float64),
        torch.randn(*batch, r, n, generator=g, dtype=torch.float64),
    )


def test_numbers_equal_those_of_the_dense_matrix() -> None:
    matrix = low_rank(3, 2)
    dense = matrix.dense()
    torch.testing.assert_close(matrix.norm(), dense.norm(dim=(-2, -1)), rtol=1e-12, atol=0)
    torch.testing.assert_close(matrix.trace(), dense.diagonal(dim1=-2, dim2=-1).sum(-1), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(matrix.diagonal(), dense.diagonal(dim1=-2, dim2=-1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(matrix.singular_values(), torch.linalg.svdvals(dense)[..., :7], rtol=1e-11, atol=1e-11)
    U, S, Vh = matrix.svd()
    torch.testing.assert_close(U * S[..., None, :] @ Vh, dense, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(U.mT @ U, torch.eye(7, dtype=torch.float64).expand(3, 2, 7, 7), rtol=0, atol=1e-12)


def test_eigenvalues_are_the_largest_of_the_dense_matrix() -> None:
    matrix = low_rank()
    every = torch.linalg.eigvals(matrix.dense())
    largest = every[every.abs().argsort(descending=True)][:7]
    mine = matrix.eigenvalues()
    for values in (mine, largest):
        assert values.abs().diff().max() <= 1e-9
    # Complex pairs come in either order, so compare as multisets.
    distance = (mine[:, None] - largest[None]).abs()
    assert distance.min(dim=0).values.max() < 1e-9 and distance.min(dim=1).values.max() < 1e-9


def test_products_and_parts() -> None:
    matrix, other = low_rank(r=9), low_rank(r=4, seed=1)
    dense = matrix.dense()
    close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-11)
    for product, expected in (
        (matrix @ other, dense @ other.dense()),
        (other @ matrix, other.dense() @ dense),
        (matrix @ dense, dense @ dense),
        (dense @ matrix, dense @ dense),
        (matrix.T, dense.T),
        (matrix * 3.0, dense * 3),
    ):
        close(product.dense(), expected)
    assert (matrix @ other).rank == 4 == (other @ matrix).rank
    close(matrix.rows([3, 5]), dense[[3, 5]])
    close(matrix.rows(torch.tensor([3, -1])), dense[[3, -1]])
    close(matrix.columns(slice(2, 6)), dense[:, 2:6])
    close(matrix.block([1, 2], [0, 7, 9]), dense[[1, 2]][:, [0, 7, 9]])
    close(low_rank(3)[1].dense(), low_rank(3).dense()[1])


@given(
    m=st.integers(1, 600), n=st.integers(1, 5000), r=st.integers(1, 6), k=st.integers(1, 40), largest=st.booleans(),
    seed=st.integers(0, 5),
)  # fmt: skip
def test_top_entries_are_those_of_the_dense_matrix(m: int, n: int, r: int, k: int, largest: bool, seed: int) -> None:
    matrix = low_rank(m=m, n=n, r=r, seed=seed)
    dense = matrix.dense()
    expected = dense.flatten().topk(min(k, m * n), largest=largest).values
    found = matrix.top(k, largest=largest)
    torch.testing.assert_close(found.values, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(dense[found.rows, found.columns], found.values, rtol=1e-9, atol=1e-9)
    assert len(set(zip(found.rows.tolist(), found.columns.tolist(), strict=True))) == min(k, m * n)


@given(n=st.integers(2, 3000), k=st.integers(1, 40), largest=st.booleans(), n_kinds=st.integers(1, 9))
def test_top_entries_between_different_kinds(n: int, k: int, largest: bool, n_kinds: int) -> None:
    matrix, kinds = low_rank(m=300, n=n), torch.arange(max(300, n)) % n_kinds
    dense = matrix.dense()
    apart = kinds[:300, None] != kinds[:n]
    found = matrix.top(k, largest=largest, kinds=(kinds[:300], kinds[:n]))
    expected = dense[apart].topk(min(k, int(apart.sum())), largest=largest).values
    torch.testing.assert_close(found.values, expected, rtol=1e-9, atol=1e-9)
    assert apart[found.rows, found.columns].all()


def test_the_top_of_one_row() -> None:
    matrix = low_rank(m=300, n=2500)
    dense = matrix.dense()
    row = matrix.top_of_row(17, 5)
    assert row.columns.tolist() == dense[17].topk(5).indices.tolist()
    hidden = torch.zeros(2500, dtype=torch.bool)
    hidden[row.columns[:2]] = True
    assert matrix.top_of_row(17, 3, hidden=hidden).columns.tolist() == row.columns[2:].tolist()
    least = matrix.top_of_row(17, 2500, largest=False, hidden=hidden).columns
    assert len(least) == 2498 and not hidden[least].any()


def test_bad_questions_are_refused_with_the_reason() -> None:
    with pytest.raises(InvalidInput, match="not square"):
        low_rank(m=4).eigenvalues()
    with pytest.raises(InvalidInput, match="Index the batch first"):
        low_rank(3).top(5)
    with pytest.raises(InvalidInput, match="factors of shapes"):
        LowRank(torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(OutOfRange, match="row 40"):
        low_rank().rows([40])
