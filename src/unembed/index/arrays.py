"""The arrays of an index: plain NumPy files, opened as read-only memory maps.

| file | shape, dtype | contents |
|---|---|---|
| `triggers/{pole}/coefficient.npy` | (keys, t) float32 | strongest first; infinite where a key has fewer than t |
| `triggers/{pole}/position.npy` | (keys, t) int32 or int64 | position in the token stream; -1 as padding |
| `values/token.npy`, `values/score.npy` | (keys, k) int32, float32 | top tokens of every value vector |
| `values/suppressed/token.npy`, `score.npy` | (keys, k) int32, float32 | lowest-scored tokens of every value vector |
| `values/by_token/entry.npy` | (keys * k) int32 or int64 | places in `values/token.npy` (row * k + column), by token |
| `values/by_token/start.npy` | (d_vocab + 1) int64 | index in `entry.npy` at which each token's places start |
| `tokens/token.npy` | (stream) int32 | the token stream: each token once, although windows may overlap |
| `tokens/start.npy` | (segments + 1) int64 | position of each segment's first token after its context |
| `tokens/first.npy` | (segments) int64 | position of its first text token, context included |
| `tokens/document.npy` | (segments) int32 | the document of each segment |
| `tokens/sentence.npy` | (segments) int32 | the number of the segment in its document |
| `tokens/origin.npy` | (segments) int64 | position at which the segment's document starts |
| `tokens/after.npy` | (segments) int32 | the token after the segment; -1 if there is none |

In the shapes, `keys` is the number of memories (FFN neurons) of all layers, sorted by layer and index. Where two dtypes
are given, the smaller one is used if all numbers fit. A pole is `positive` (the largest coefficients) or `negative`
(the most negative ones, stored for gated layers). The context of a window is the text that it repeats from the window
before.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from unembed.errors import IndexFault, UnembedError
from unembed.results import write_whole

SUPPRESSED = "values/suppressed"
"""The folder with the suppressed tokens' files; an index that an earlier version built has no such files."""


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a `.npy` file, little-endian and in C order; unlike `np.save`, do not add `.npy` to the name."""
    with path.open("wb") as handle:
        array = np.ascontiguousarray(array)
        np.lib.format.write_array_header_1_0(handle, np.lib.format.header_data_from_array_1_0(array))
        handle.write(array.data)  # np.save would not report a full disk


def map_array(
    folder: Path, name: str, *, shape: tuple[int | None, ...], dtype: np.dtype | type | tuple[type, ...]
) -> np.ndarray:
    """Open an array as a read-only memory map and check its header; `dtype` can be a tuple of allowed dtypes.

    Raises:
        IndexFault: the file is missing, cut short or not of this shape.
    """
    path = folder / name
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header can raise errors of several modules
        raise IndexFault(
            f"cannot read {path}", why=" ".join(str(error).split()), instead="Run the build again: it repairs the index"
        ) from error
    fits = array.ndim == len(shape) and all(n is None or n == m for n, m in zip(shape, array.shape, strict=True))
    dtypes = [np.dtype(one) for one in (dtype if isinstance(dtype, tuple) else (dtype,))]
    if not fits or array.dtype not in dtypes:
        raise IndexFault(
            f"{path} contains an array of type {array.dtype} and shape {array.shape}",
            why=f"the type should be {' or '.join(map(str, dtypes))}, and the shape "
            f"{tuple('any' if n is None else n for n in shape)}",
            instead="Run the build again: it repairs the index",
        )
    return array


def store_derived(path: Path, weights: str, **arrays: np.ndarray) -> None:
    """Store arrays computed from a model's weights in a file of an index; do nothing if it cannot be written.

    The file also stores `weights`, the fingerprint of the weights, which `stored_derived` compares.
    """
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, weights=np.array(weights), **arrays)
    with suppress(OSError, UnembedError):
        write_whole(path, packed.getvalue())


def stored_derived(path: Path, weights: str, names: Iterable[str]) -> dict[str, np.ndarray] | None:
    """Return the arrays that `store_derived` wrote; None if the file is missing, damaged, or of other weights."""
    with (
        suppress(Exception),  # a damaged file can raise errors of NumPy, zipfile, zlib or tokenize
        path.open("rb") as file,  # opened here, because `np.load` would not close a damaged file
        np.load(file) as stored,
    ):
        if str(stored["weights"]) == weights:
            return {name: stored[name] for name in names}
    return None


def smallest(positions: Int[np.ndarray, "..."], n: int) -> Int[np.ndarray, "..."]:
    """Return positions, all below n, as int32 if n fits into int32, else as int64."""
    return positions.astype(np.int32 if n <= np.iinfo(np.int32).max else np.int64, copy=False)


def by_token(
    ids: Int[np.ndarray, "keys k"], scores: Float[np.ndarray, "keys k"], d_vocab: int
) -> tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " starts"]]:
    """Invert the lists of top tokens: find, for each token, every entry of `ids` that is this token, best score first.

    Entries with equal scores stay in the order of rows.

    Returns:
        Entries (row * k + column) grouped by token, and the index at which each token's group starts (d_vocab + 1).
    """
    flat = ids.reshape(-1)
    order = smallest(np.lexsort((-scores.reshape(-1), flat)), flat.size)
    return order, np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=d_vocab))]).astype(np.int64)


def open_poles(folder: Path, keys: int, top: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Open the stored coefficients and positions as memory maps.

    The result has the key "positive" for the largest coefficients, and "negative" for the most negative ones.

    Raises:
        IndexFault: a file is missing or cut short.
    """
    return {
        pole: (
            map_array(folder, f"triggers/{pole}/coefficient.npy", shape=(keys, top), dtype=np.float32),
            map_array(folder, f"triggers/{pole}/position.npy", shape=(keys, top), dtype=(np.int32, np.int64)),
        )
        for pole in ("positive", "negative")
        if pole == "positive" or (folder / "triggers" / pole).is_dir()
    }


def open_values(folder: Path, name: str, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Open the ids and scores of every value vector's tokens, both (keys, k), as memory maps.

    Args:
        name: "values" for the top tokens, or `SUPPRESSED`.

    Raises:
        IndexFault: a file is missing or cut short.
    """
    return (
        map_array(folder, f"{name}/token.npy", shape=(keys, None), dtype=np.int32),
        map_array(folder, f"{name}/score.npy", shape=(keys, None), dtype=np.float32),
    )
