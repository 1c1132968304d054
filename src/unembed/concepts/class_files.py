"""Store the classes of a vocabulary's tokens in a file, because computing them takes seconds.

The files of the shipped models are in the package; others are written to the cache folder at their first use. A file's
name is a hash of everything that its content depends on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from unembed.concepts.token_classes import Classes
from unembed.concepts.token_cleaning import clean
from unembed.results.cached_arrays import cached_arrays

SHIPPED = Path(__file__).parent / "shipped"
"""Files of the shipped models; written by `tools/shipped_classes.py`."""
_TEXTS = ("names", "kinds", "evidence")
_NUMBERS = ("sizes", "starts", "classes")


def vocabulary_classes(tokens: Sequence[str]) -> Classes:
    """Return the classes of a vocabulary's tokens, without embedding clusters; they are read from a file or computed.

    Args:
        tokens: the text of every token, with its leading space.
    """
    arrays = cached_arrays(_key("classes", *tokens), lambda: _packed(Classes.build(tokens)), SHIPPED)
    names, kinds, evidence = (tuple[str, ...](json.loads(str(arrays[name]))) for name in _TEXTS)
    sizes, starts, classes = (arrays[name].astype(np.int64) for name in _NUMBERS)
    return Classes(tuple(clean(tokens)), names, kinds, evidence, sizes, starts, classes)


def embedding_clusters(
    W_E: Float[np.ndarray, "d_vocab d_model"], cluster: Callable[[], Int[np.ndarray, " d_vocab"]]
) -> Int[np.ndarray, " d_vocab"]:
    """Return the cluster of every token's embedding; the clusters are read from a file or computed.

    Args:
        W_E: the embedding; its hash is part of the file's name.
        cluster: computes the clusters if there is no file.
    """
    key = _key("neighbours", str(W_E.shape), np.ascontiguousarray(W_E))
    return cached_arrays(key, lambda: {"clusters": cluster()}, SHIPPED)["clusters"].astype(np.int64)


def _key(kind: str, *parts: str | np.ndarray) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0" if isinstance(part, str) else part.data)
    return f"{kind}-{digest.hexdigest()[:16]}"


def _packed(found: Classes) -> dict[str, np.ndarray]:
    texts = {name: np.array(json.dumps(getattr(found, name), ensure_ascii=False)) for name in _TEXTS}
    return texts | {name: _small(getattr(found, name)) for name in _NUMBERS}


def _small(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.uint16 if numbers.max(initial=0) < 2**16 else np.int32)
