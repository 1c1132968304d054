"""A matrix stored as two thin factors, whose entries, norms and eigenvalues are computed without forming it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from unembed.attention.weights import low_rank_topk
from unembed.errors import InvalidInput, OutOfRange
from unembed.validation import as_int, positive_int


class Svd(NamedTuple):
    """The thin singular value decomposition M = U diag(S) Vh of a matrix with factors (m, r) and (r, n)."""

    U: Float[Tensor, "*batch m r"]
    S: Float[Tensor, "*batch r"]
    Vh: Float[Tensor, "*batch r n"]


@dataclass(frozen=True, eq=False)
class LowRank:
    """M = left @ right, of shape (*batch, m, n) and rank at most r.

    Circuits of Elhage et al. (2021) are such products: W_QK = W_Q W_K^T and W_OV = W_V W_O have rank d_head inside
    d_model, and W_E W_OV W_U has rank d_head inside d_vocab. Values that need it (norms, eigenvalues, singular values)
    are computed in float64; entries come in the dtype of the factors, or float32 where these are in half precision.

    Attributes:
        left: (*batch, m, r), a view of the model's weights if possible.
        notes: facts that are part of what the matrix means, such as a norm's gain folded in, or a rotary offset.

    Raises:
        InvalidInput: the factors do not fit together.
    """

    left: Float[Tensor, "*left_batch m r"]
    right: Float[Tensor, "*right_batch r_too n"]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.left.dim() < 2 or self.right.dim() < 2 or self.left.shape[-1] != self.right.shape[-2]:
            raise InvalidInput(
                f"factors of shapes {tuple(self.left.shape)} and {tuple(self.right.shape)}",
                why="the number of columns of the left factor differs from the number of rows of the right one",
                instead="Give (..., m, r) and (..., r, n)",
            )

    @property
    def shape(self) -> torch.Size:
        """(*batch, m, n)."""
        batch = torch.broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2])
        return torch.Size((*batch, self.left.shape[-2], self.right.shape[-1]))

    @property
    def rank(self) -> int:
        """The number of columns of the left factor, which bounds the rank of the matrix."""
        return self.left.shape[-1]

    @property
    def T(self) -> LowRank:
        """The transpose."""
        return LowRank(self.right.mT, self.left.mT, self.notes)

    def __repr__(self) -> str:
        notes = f", {'; '.join(self.notes)}" if self.notes else ""
        return f"LowRank({' x '.join(map(str, self.shape))}, rank {self.rank}{notes})"

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> LowRank:
        """Select one or several matrices of a batch."""
        batch = self.shape[:-2]
        left, right = (t.expand(*batch, *t.shape[-2:]) for t in (self.left, self.right))
        return LowRank(left[index], right[index], self.notes)

    def __matmul__(self, other: Tensor | LowRank) -> LowRank:
        """Return the product as factors; for two low-rank matrices it has the smaller of the two ranks."""
        if isinstance(other, Tensor):
            return LowRank(self.left, _product(self.right, other), self.notes)
        core = _product(self.right, other.left)
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        if self.rank <= other.rank:
            return LowRank(self.left, _product(core, other.right), notes)
        return LowRank(_product(self.left, core), other.right, notes)

    def __rmatmul__(self, other: Tensor) -> LowRank:
        return LowRank(_product(other, self.left), self.right, self.notes)

    def __mul__(self, factor: float) -> LowRank:
        return LowRank(self.left * factor, self.right, self.notes)

    def double(self) -> LowRank:
        """The same matrix with factors in float64."""
        return LowRank(self.left.double(), self.right.double(), self.notes)

    def dense(self) -> Float[Tensor, "*batch m n"]:
        """Return the matrix itself, which takes m * n numbers; use it for small matrices."""
        return _product(self.left, self.right)

    def norm(self) -> Float[Tensor, "*batch"]:
        """Return the Frobenius norm in float64: the square root of the inner product of left' left and right right'."""
        left, right = self.left.double(), self.right.double()
        return ((left.mT @ left) * (right @ right.mT)).sum(dim=(-2, -1)).clamp_min(0).sqrt()

    def trace(self) -> Float[Tensor, "*batch"]:
        """Return the sum of the diagonal in float64."""
        self._square("trace")
        return (self.left.double() * self.right.double().mT).sum(dim=(-2, -1))

    def diagonal(self) -> Float[Tensor, "*batch n"]:
        """The entries (i, i)."""
        self._square("diagonal")
        return (self.left * self.right.mT).sum(dim=-1)

    def eigenvalues(self) -> Complex[Tensor, "*batch r"]:
        """The r eigenvalues that can be non-zero, complex128, largest modulus first.

        AB and BA have the same non-zero eigenvalues, so these are the eigenvalues of right @ left (r, r). The remaining
        n - r are zero.
        """
        self._square("eigenvalues")
        core = self.right.double() @ self.left.double()
        return by_modulus(torch.linalg.eigvals(core))

    def svd(self) -> Svd:
        """Return the thin SVD in float64, computed by QR of both factors and SVD of an (r, r) matrix."""
        q_left, r_left = torch.linalg.qr(self.left.double())
        q_right, r_right = torch.linalg.qr(self.right.double().mT)
        U, S, Vh = torch.linalg.svd(r_left @ r_right.mT, full_matrices=False)
        return Svd(q_left @ U, S, Vh @ q_right.mT)

    def singular_values(self) -> Float[Tensor, "*batch r"]:
        """Return the singular values in float64, largest first."""
        return self.svd().S

    def rows(self, ids: Int[Tensor, " row"] | int | list[int] | slice) -> Float[Tensor, "*batch row n"]:
        """Return chosen rows; needs no more memory than the result."""
        return _product(self.left[..., self._ids(ids, -2), :], self.right)

    def columns(self, ids: Int[Tensor, " column"] | int | list[int] | slice) -> Float[Tensor, "*batch m column"]:
        """Return chosen columns; needs no more memory than the result."""
        return _product(self.left, self.right[..., self._ids(ids, -1)])

    def block(
        self,
        rows: Int[Tensor, " row"] | int | list[int] | slice,
        columns: Int[Tensor, " column"] | int | list[int] | slice,
    ) -> Float[Tensor, "*batch row column"]:
        """Return the submatrix of chosen rows and columns."""
        return _product(self.left[..., self._ids(rows, -2), :], self.right[..., self._ids(columns, -1)])

    def top(
        self,
        k: int = 10,
        *,
        largest: bool = True,
        kinds: tuple[Int[Tensor, " row"], Int[Tensor, " column"]] | None = None,
    ) -> low_rank_topk.Entries:
        """The k largest (or smallest) entries of the whole matrix, exactly, best first. One matrix, no batch.

        Args:
            kinds: a number for each row and for each column; entries where the two are equal are left out.

        Memory: a few blocks; see `low_rank_topk.top`.
        """
        return low_rank_topk.top(*self._single("top"), k, largest=largest, kinds=kinds)

    def top_of_row(
        self, row: int, k: int = 10, *, largest: bool = True, hidden: Bool[Tensor, " column"] | None = None
    ) -> low_rank_topk.Entries:
        """Return the k largest (or smallest) entries of a row, leaving out the columns in `hidden`."""
        self._single("top of a row")
        row, k = as_int("row", row), positive_int("k", k)
        values, count = self.rows(row)[0], self.shape[-1]
        if hidden is not None:
            values = values.masked_fill(hidden.to(values.device), -torch.inf if largest else torch.inf)
            count -= int(hidden.sum())
        found = values.topk(min(k, count), largest=largest)
        return low_rank_topk.Entries(torch.full_like(found.indices, row), found.indices, found.values)

    def _single(self, question: str) -> tuple[Tensor, Tensor]:
        if len(self.shape) != 2:
            raise InvalidInput(
                f"{question} of {self.shape[0]} matrices",
                why="it is computed for a single matrix",
                instead="Index the batch first",
            )
        dtype = torch.promote_types(torch.promote_types(self.left.dtype, self.right.dtype), torch.float32)
        return self.left.to(dtype), self.right.to(dtype)

    def _square(self, question: str) -> None:
        if self.shape[-1] != self.shape[-2]:
            raise InvalidInput(f"{question} of a {self.shape[-2]} x {self.shape[-1]} matrix", why="it is not square")

    def _ids(self, ids: Tensor | int | list[int] | slice, axis: int) -> Tensor | list[int] | slice:
        if isinstance(ids, slice):
            return ids
        n, what = self.shape[axis], "row" if axis == -2 else "column"
        if not isinstance(ids, Tensor):
            ids = [as_int(what, i) for i in (ids if isinstance(ids, Iterable) else [ids])]
        ends = [ids.min(), ids.max()] if isinstance(ids, Tensor) and ids.numel() else ids
        for i in map(int, ends):
            if not -n <= i < n:
                raise OutOfRange(f"{what} {i}", why=f"the matrix has {n} {what}s, counted from 0 to {n - 1}")
        return torch.as_tensor(ids, dtype=torch.long, device=self.left.device)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply in the wider dtype, and at least in float32, so that no circuit is rounded to half precision."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return a.to(dtype) @ b.to(dtype)


def by_modulus(values: Complex[Tensor, "*batch r"]) -> Complex[Tensor, "*batch r"]:
    """Sort eigenvalues by modulus, largest first."""
    return values.gather(-1, values.abs().argsort(dim=-1, descending=True))
