"""Complete linkage under cosine distance, as in LM-Debugger's clusters.

Unlike average linkage (`unembed.memories.clustering.average_linkage`), it needs the full distance matrix, so it is for
small sets of vectors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from unembed.errors import Unsupported
from unembed.memories.clustering.dendrogram import NONE, Dendrogram, Tree
from unembed.memories.clustering.unit_vectors import equal_rows, unit_rows
from unembed.results import bytes_in_words

LARGEST_COMPLETE = 20_000
"""Largest number of vectors for complete linkage, whose matrix has n * n float32 entries."""


def complete_linkage(vectors: Tensor, *, progress: Callable[[int, int], None] | None = None) -> Dendrogram:
    """Return the complete-linkage tree under cosine distance, by a nearest-neighbour chain on the full matrix.

    Args:
        vectors: (n, d), any float dtype, on any device.
        progress: called with the number of merges done and their total.

    Raises:
        Unsupported: more than `LARGEST_COMPLETE` vectors.
        InvalidInput: the vectors are not a matrix, are empty, or hold NaN or infinity.

    Memory: 4 n * n bytes.

    Source: the setting of LM-Debugger's released clusters.
    """
    if len(vectors) > LARGEST_COMPLETE:
        raise Unsupported(
            f"complete linkage of {len(vectors)} vectors",
            why=f"it needs the full matrix of distances, {bytes_in_words(4 * len(vectors) ** 2)}",
            instead=f"Use linkage='average', or at most {LARGEST_COMPLETE} vectors",
        )
    directions = unit_rows(vectors)
    first_of, distinct = equal_rows(directions)
    tree = Tree(len(directions))
    roots = tree.merge_equal(first_of, distinct)
    unique = directions[torch.from_numpy(distinct)]
    distance = (1 - unique @ unique.T).cpu().numpy()
    np.fill_diagonal(distance, np.inf)
    nodes, chain = roots.copy(), [0]
    for merged in range(len(roots) - 1):
        if progress is not None:
            progress(merged, len(roots) - 1)
        if not chain:
            chain = [int(np.flatnonzero(nodes >= 0)[0])]
        while True:
            here = chain[-1]
            nearest = int(distance[here].argmin())
            # In a tie the previous element of the chain counts as the nearest; otherwise the chain could follow a cycle
            # of equally distant clusters for ever.
            if len(chain) > 1 and distance[here, chain[-2]] <= distance[here, nearest]:
                nearest = chain[-2]
                break
            chain.append(nearest)
        del chain[-2:]
        node = tree.merge(np.array([[nodes[here], nodes[nearest]]]), distance[here, [nearest]].astype(np.float64))[0]
        joined = np.maximum(distance[here], distance[nearest])
        joined[here] = np.inf
        distance[here], distance[:, here] = joined, joined
        distance[nearest], distance[:, nearest] = np.inf, np.inf
        nodes[here], nodes[nearest] = node, NONE
    return tree.sorted()
