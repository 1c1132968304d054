"""The index of a model that a command names, found without opening the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unembed import Index, LanguageModel
    from unembed.cli.option_groups import Opening
    from unembed.models import KnownWeights


def stored_index(opening: Opening, folder: Path | None) -> tuple[Index, KnownWeights] | None:
    """The index given, or a ready one, and the weights: if they are known to be those that the name opens.

    Found without torch; None where the model has to be opened to know.
    """
    if not opening.is_default:
        return None
    from unembed.models import known_weights

    if (known := known_weights(opening.model, opening.revision)) is None:
        return None
    from unembed.index import Index, cached_index_of_weights

    index = cached_index_of_weights(known.weights) if folder is None else Index.open(folder)
    return (index, known) if index is not None and index.manifest.weights == known.weights else None


def record_index(opening: Opening, lm: LanguageModel, index: Index) -> None:
    """Record that an index is of what a name opens, so that `stored_index` finds it; `lm` is that model."""
    from unembed.models import record_weights

    if opening.is_default:
        record_weights(opening.model, opening.revision, lm, index.manifest.weights)
