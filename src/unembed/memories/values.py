"""Score every token with a value vector: the tokens that each value vector promotes or suppresses most, exactly.

By default, scores are in the basis "jacobian" where a lens is fitted, else in "raw": the product with W_U, without the
final norm, as in the papers. Where a norm follows the FFN, its gain (and centring) are applied to the value vector
first, since this is what is added to the stream, up to the positive scale of the norm in a run. Where a gate that
multiplies each channel follows (RWKV), it is not applied. Source: Geva et al. 2021, section 4; 2022, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unembed.errors import InvalidInput
from unembed.jacobian.basis import basis_or_default, in_basis, mean_scores
from unembed.lazy import offers
from unembed.lens import COLUMNS, ROWS, TopTokens, logits_of, read, read_ends, top_k
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Basis, MemoryIndex
from unembed.results import Displayed, Provenance, Table
from unembed.validation import positive_int

if TYPE_CHECKING:
    from unembed.memories.clustering.value_clusters import ValueClusters

_AT_ONCE = 8 * ROWS
"""Number of value vectors between two progress reports. An offloaded W_U is loaded once for each such batch."""
_FEW = 64
"""Number of value vectors whose scores over the whole vocabulary are in memory at once."""


def written_values(lm: Decoder, layer: int, rows: slice | Tensor = slice(None)) -> Float[Tensor, "value d_model"]:
    """Return a layer's value vectors as they are added to the stream, at a coefficient of 1.

    Where a norm follows the FFN, they are multiplied by its gain (its scale is taken as 1), and where the model
    multiplies the FFN's output by a factor, by that factor.
    """
    site = lm.feed_forward(layer)
    values = lm.weights.values(layer, rows)
    if site.branch_norm is not None:
        values = site.branch_norm.frozen(values, torch.ones(1, dtype=values.dtype, device=values.device))
    return values if site.multiplier == 1.0 else values * site.multiplier


def values_of(lm: Decoder, memories: Sequence[tuple[int, int]] | np.ndarray) -> Float[Tensor, "value d_model"]:
    """Return the value vectors of memories, given as (layer, index), in order; see `written_values`."""
    layers, rows = torch.as_tensor(memories).T
    order = layers.argsort(stable=True)
    found = [written_values(lm, n, rows[order][layers[order] == n]) for n in layers.unique().tolist()]
    return torch.cat(found)[order.argsort()]


def memories_at(lm: Decoder, numbers: Int[Tensor, " memory"]) -> Int[Tensor, "memory 2"]:
    """Return the layer and index of memories that are given as one number, counted from 0 over all layers."""
    starts = torch.tensor([0, *(lm.n_memories_of(n) for n in range(lm.n_layers))]).cumsum(0)
    layer = torch.searchsorted(starts, numbers, right=True) - 1
    return torch.stack([layer, numbers - starts[layer]], dim=1)


@dataclass(frozen=True, eq=False, repr=False)
class ValueReadings(Displayed):
    """The top tokens of every value vector of some layers; layers with fewer memories are padded with ids of -1."""

    layers: tuple[int, ...]
    ids: Int[Tensor, "layer d_mlp k"]
    scores: Float[Tensor, "layer d_mlp k"]
    basis: Basis
    show_unlearned: bool
    """Whether tokens that the model never learned are included."""
    provenance: Provenance

    def __repr__(self) -> str:
        n_layers, d_mlp, k = self.ids.shape
        return f"ValueReadings({n_layers} layers of up to {d_mlp:,} memories, top {k} tokens, basis {self.basis!r})"

    def to_table(self) -> Table:
        """Return one row for each value vector, with the ids and scores of its tokens."""
        row, index = (self.ids[..., 0] >= 0).nonzero(as_tuple=True)
        columns = {
            "layer": torch.tensor(self.layers)[row].tolist(),
            "index": index.tolist(),
            "ids": self.ids[row, index].tolist(),
            "scores": self.scores[row, index].tolist(),
        }
        return Table("Values in the vocabulary", columns, self.provenance)


@torch.no_grad()
def value_readings(
    lm: Decoder,
    k: int = 30,
    *,
    layers: Sequence[int] | None = None,
    basis: Basis | None = None,
    bottom: bool = False,
    show_unlearned: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ValueReadings:
    """Return the k top tokens of every value vector, exactly.

    Args:
        k: number of tokens for each value vector.
        layers: the layers to read; all when None.
        basis: "raw" (the papers' E v), "final" (the value vector through the final norm, as if it were the whole
            stream) or "jacobian" (mapped to the final stream by the model's fitted lens); when None, "jacobian" where
            a lens is fitted, else "raw".
        bottom: return the tokens that are suppressed most instead of those promoted most.
        show_unlearned: include tokens that the model never learned; by default they are left out.
        progress: called with the number of value vectors done and their total.

    Memory: the result (layers * d_mlp * k ids and scores), plus 1,024 * 4,096 scores at a time.
    """
    lm = require_decoder(lm)
    basis = basis_or_default(lm, basis, "raw")
    if basis == "frozen":
        raise InvalidInput(
            "basis 'frozen' for value vectors",
            why="it uses the scale that the final norm has in a run, and a value vector alone has no run",
            instead="Use 'raw' or 'final'",
        )
    hidden = None if show_unlearned else lm.unlisted

    def one_end(values: Tensor, layer: int, k: int) -> tuple[TopTokens]:
        scores, ids = _top(lm, values, layer, k, basis, bottom, hidden)
        return ((ids, scores),)

    (found,) = _read_all(lm, k, layers, one_end, 1, progress)
    return ValueReadings(*found, basis, show_unlearned, lm.provenance(basis=basis))


@torch.no_grad()
def value_ends(
    lm: Decoder,
    k: int = 30,
    *,
    layers: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[ValueReadings, ValueReadings]:
    """Return the tokens that every value vector promotes most and suppresses most, computing scores only once.

    Arguments and memory use are those of `value_readings`; the basis is "jacobian" with a fitted lens, else "raw".
    """
    lm = require_decoder(lm)
    chosen = basis_or_default(lm, None, "raw")

    ends = _read_all(lm, k, layers, lambda values, n, k: _ends(lm, values, n, k, chosen, lm.unlisted), 2, progress)
    provenance = lm.provenance(basis=chosen)
    promoted, suppressed = (ValueReadings(*found, chosen, False, provenance) for found in ends)
    return promoted, suppressed


def _read_all(
    lm: Decoder,
    k: int,
    layers: Sequence[int] | None,
    read_rows: Callable[[Tensor, int, int], Sequence[TopTokens]],
    n_ends: int,
    progress: Callable[[int, int], None] | None,
) -> list[tuple[tuple[int, ...], Int[Tensor, "layer d_mlp k"], Float[Tensor, "layer d_mlp k"]]]:
    """Apply `read_rows` to all value vectors; for each list that it returns, collect layers, ids and scores."""
    chosen = tuple(lm.layer(n) for n in ((lm.memory_layers or range(lm.n_layers)) if layers is None else layers))
    sizes = [lm.weights.n_memories[n] for n in chosen]
    k = min(positive_int("k", k), lm.d_vocab)
    shape = (n_ends, len(chosen), max(sizes, default=0), k)
    ids = torch.full(shape, -1, dtype=torch.int32)
    scores = torch.full(shape, -torch.inf, dtype=torch.float32)
    done, total = 0, sum(sizes)
    for row, layer in enumerate(chosen):
        for start in range(0, sizes[row], _AT_ONCE):
            rows = slice(start, min(start + _AT_ONCE, sizes[row]))
            for end, (found, values) in enumerate(read_rows(written_values(lm, layer, rows), layer, k)):
                ids[end, row, rows], scores[end, row, rows] = found.to(torch.int32).cpu(), values.float().cpu()
            done += rows.stop - rows.start
            if progress is not None:
                progress(done, total)
    return [(chosen, ids[end], scores[end]) for end in range(n_ends)]


@torch.no_grad()
def first_tokens(
    lm: Decoder,
    layer: int,
    *,
    basis: Basis = "final",
    negated: bool = False,
    hidden: Bool[Tensor, " d_vocab"] | None = None,
) -> tuple[Int[Tensor, " value"], Int[Tensor, " value"] | None]:
    """Return the top token of every value vector of a layer and, with `negated`, also of every negated value vector.

    The final norm maps v to a + b and -v to -a + b, where b is the norm's bias. So the products of a and of b with W_U
    give the scores of both v and -v.

    Memory: ROWS * COLUMNS scores at a time.
    """
    values, basis = in_basis(lm, written_values(lm, layer), layer, basis)
    norm, head = lm.structure.final_norm, lm.structure.head
    if not negated or (basis == "final" and not isinstance(head, nn.Linear)):
        plus = read(lm, values, 1, basis=basis, hidden=hidden).ids[:, 0]
        return plus, read(lm, -values, 1, basis=basis, hidden=hidden).ids[:, 0] if negated else None
    shift = torch.zeros_like(values[:1])
    if basis == "final" and norm is not None:
        values, other = norm.normed(values), norm.normed(-values)
        shift, values = (values[:1] + other[:1]) / 2, (values - other) / 2
    W_U, b_U = lm.weights.W_U, lm.weights.b_U if basis == "final" else None
    found: list[Tensor] = []
    for rows in values.split(ROWS):
        best = torch.full((2, len(rows)), -torch.inf, dtype=values.dtype, device=values.device)
        ids = torch.zeros(2, len(rows), dtype=torch.long, device=values.device)
        for start in range(0, lm.d_vocab, COLUMNS):
            tokens = slice(start, min(start + COLUMNS, lm.d_vocab))
            columns = W_U[:, tokens].to(values.dtype)
            own = shift @ columns if b_U is None else shift @ columns + b_U[tokens]
            scores = rows @ columns
            for end, both in enumerate((own + scores, own - scores)):
                if hidden is not None:
                    both[:, hidden[tokens].to(both.device)] = -torch.inf
                highest, at = top_k(both, 1)
                better = highest[:, 0] > best[end]
                best[end] = torch.where(better, highest[:, 0], best[end])
                ids[end] = torch.where(better, at[:, 0] + start, ids[end])
        found.append(ids)
    plus, minus = torch.cat(found, dim=1)
    return plus, minus


def _top(
    lm: Decoder,
    vectors: Tensor,
    layer: int,
    k: int,
    basis: Basis,
    bottom: bool,
    hidden: Bool[Tensor, " d_vocab"] | None,
) -> tuple[Tensor, Tensor]:
    """Return scores and ids of the k highest-scored (or, with `bottom`, lowest-scored) tokens of vectors of a layer."""
    vectors, plain = in_basis(lm, vectors, layer, basis)
    if bottom and plain != "raw":
        return _lowest(lm, vectors, k, plain, hidden)
    reading = read(lm, -vectors if bottom else vectors, k, basis=plain, hidden=hidden)
    scores = -reading.logits if bottom else reading.logits
    if basis == "jacobian":
        scores = scores - mean_scores(lm, vectors)[:, None]
    return scores, reading.ids


def _ends(
    lm: Decoder, vectors: Tensor, layer: int, k: int, basis: Basis, hidden: Bool[Tensor, " d_vocab"] | None
) -> tuple[TopTokens, TopTokens]:
    """Return the k highest-scored and k lowest-scored tokens of a layer's vectors; basis is "raw" or "jacobian"."""
    vectors, plain = in_basis(lm, vectors, layer, basis)
    high, low = read_ends(lm, vectors, k, hidden=hidden)
    if plain == basis:
        return high, low
    mean = mean_scores(lm, vectors)[:, None]
    return (high[0], high[1] - mean), (low[0], low[1] - mean)


def _lowest(
    lm: Decoder, vectors: Tensor, k: int, basis: Basis, hidden: Bool[Tensor, " d_vocab"] | None
) -> tuple[Tensor, Tensor]:
    """Return scores and ids of the k lowest-scored tokens, for a basis that is not linear.

    In a linear basis, they would be the highest-scored tokens of the negated vectors.

    Memory: `_FEW` * d_vocab scores at a time.
    """
    found: list[tuple[Tensor, Tensor]] = []
    for rows in vectors.split(_FEW):
        scores = logits_of(lm, rows, basis)
        if hidden is not None:
            scores = scores.masked_fill(hidden.to(scores.device), torch.inf)
        lowest = scores.topk(min(k, scores.shape[-1]), largest=False)
        found.append((lowest.values, lowest.indices))
    return torch.cat([values for values, _ in found]), torch.cat([ids for _, ids in found])


@offers("top top_tokens norm readings clusters")
class Values:
    """`lm.values`: the value vectors of a model, and the tokens that they promote."""

    def __init__(self, lm: Decoder) -> None:
        self._lm = lm

    def __repr__(self) -> str:
        return f"Values({self._lm!r})"

    @torch.no_grad()
    def top(
        self,
        layer: int,
        index: MemoryIndex | Sequence[int] | Tensor,
        k: int = 30,
        *,
        basis: Basis | None = None,
        bottom: bool = False,
        show_unlearned: bool = False,
    ) -> tuple[Int[Tensor, "*value k"], Float[Tensor, "*value k"]]:
        """Return ids and scores of the tokens that value vectors promote most (or, with `bottom`, suppress most).

        The default basis is "jacobian" where a lens is fitted, else "raw"; see `value_readings`.

        `index` is one memory or several. In a layer of experts, a tuple is one memory: (expert, index).
        """
        lm = self._lm
        several = index.tolist() if isinstance(index, Tensor) else index
        pair = isinstance(index, tuple) and lm.experts_of(lm.layer(layer)) is not None
        single = pair or not isinstance(several, Sequence | np.ndarray)
        numbers = cast("Sequence[MemoryIndex]", [several] if single else several)
        rows = torch.tensor([lm.memory(layer, i)[1] for i in numbers], dtype=torch.long)
        layer = lm.layer(layer)
        hidden = None if show_unlearned else lm.unlisted
        basis = basis_or_default(lm, basis, "raw")
        scores, ids = _top(lm, written_values(lm, layer, rows.to(lm.device)), layer, k, basis, bottom, hidden)
        return (ids[0], scores[0]) if single else (ids, scores)

    @torch.no_grad()
    def top_and_bottom(
        self,
        memories: Sequence[tuple[int, Sequence[int]]],
        k: int = 30,
        *,
        basis: Basis | None = None,
        show_unlearned: bool = False,
    ) -> list[tuple[Int[Tensor, "value k"], Int[Tensor, "value k"]]]:
        """Return, for each layer in `memories`, the ids of the tokens that its memories promote and suppress most.

        The basis is "raw" or "jacobian"; by default "jacobian" where a lens is fitted, else "raw".
        """
        lm = self._lm
        for layer, index in memories:
            for i in index:
                lm.memory(layer, i)
        basis = basis_or_default(lm, basis, "raw")
        rows = [
            in_basis(
                lm,
                written_values(lm, lm.layer(n), torch.as_tensor(index, dtype=torch.long, device=lm.device)),
                lm.layer(n),
                basis,
            )[0]
            for n, index in memories
        ]
        found = read_ends(lm, torch.cat(rows), k, hidden=None if show_unlearned else lm.unlisted)
        sizes = [len(row) for row in rows]
        return list(zip(*(ids.split(sizes) for ids, _ in found), strict=True))

    def top_tokens(
        self,
        layer: int,
        index: MemoryIndex,
        k: int = 30,
        *,
        basis: Basis | None = None,
        bottom: bool = False,
        show_unlearned: bool = False,
    ) -> list[str]:
        """Return the tokens that a value vector promotes most (or, with `bottom`, suppresses most), in that order."""
        ids, _ = self.top(layer, index, k, basis=basis, bottom=bottom, show_unlearned=show_unlearned)
        return self._lm.token_strings(ids)

    def readings(
        self, k: int = 30, *, layers: Sequence[int] | None = None, basis: Basis | None = None, **options: Any
    ) -> ValueReadings:
        """Return the k top tokens of all value vectors, exactly; see `value_readings`."""
        return value_readings(self._lm, k, layers=layers, basis=basis, **options)

    def clusters(
        self, n_clusters: int = 10_000, *, layers: Sequence[int] | None = None, linkage: str = "average"
    ) -> ValueClusters:
        """Group all value vectors into clusters of similar directions; see `cluster_values`."""
        from unembed.memories.clustering.value_clusters import cluster_values

        return cluster_values(self._lm, n_clusters, layers=layers, linkage=linkage)

    @torch.no_grad()
    def score_histogram(
        self, layer: int, index: int, bins: int = 48, *, show_unlearned: bool = False
    ) -> tuple[Float[Tensor, " edge"], Int[Tensor, " bin"]]:
        """Return a histogram of all tokens' scores under a value vector ("jacobian" if a lens is fitted, else "raw").

        Returns:
            The bin edges, from the lowest to the highest score, and the number of tokens in each bin.
        """
        lm = self._lm
        layer, index = lm.memory(layer, index)
        hidden = None if show_unlearned else lm.unlisted
        basis = basis_or_default(lm, None, "raw")
        value, _ = in_basis(lm, written_values(lm, layer, slice(index, index + 1)), layer, basis)
        scores = torch.cat(
            [(value @ lm.weights.W_U[:, start : start + COLUMNS])[0] for start in range(0, lm.d_vocab, COLUMNS)]
        )
        if basis == "jacobian":
            scores = scores - mean_scores(lm, value)
        counts, edges = np.histogram(scores[~hidden if hidden is not None else ...].float().cpu().numpy(), bins=bins)
        return torch.from_numpy(edges).float(), torch.from_numpy(counts)

    def norm(self, layer: int, index: MemoryIndex) -> float:
        """Return the length of a value vector, after the gain of a norm that follows the FFN where there is one."""
        return float(values_of(self._lm, [self._lm.memory(layer, index)]).norm())
