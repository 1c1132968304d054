"""Find the index of the model that a command names, without opening the model."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unembed import Index, LanguageModel
    from unembed.cli.option_groups import Opening
    from unembed.models import KnownWeights


VARIABLE = "UNEMBED_READY_INDEX"
"""Set to `never`, commands do not build the ready index."""


def stored_index(opening: Opening, folder: Path | None) -> tuple[Index, KnownWeights] | None:
    """The index given, or a ready one, and the weights: if they are known to be those that the name opens.

    Found without torch; None if this can be known only by opening the model.
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
    """Record that an index belongs to the model of a name, so that `stored_index` finds it; `lm` is that model."""
    from unembed.models import record_weights

    if opening.is_default:
        record_weights(opening.model, opening.revision, lm, index.manifest.weights)


def index_for(opening: Opening, lm: LanguageModel, folder: Path | None) -> Index | None:
    """The index given, else a ready one of this model, built first where the model is the embedded one.

    None where there is none: of another model, where building is refused (`UNEMBED_READY_INDEX=never`), while another
    process builds it, and where the cache folder cannot be written; in the last two cases a line on stderr says so.
    """
    import unembed

    if folder is not None:
        return unembed.Index.open(folder, lm)
    index = unembed.cached_index(lm)
    if index is not None or not _is_built_on_need(opening):
        return index
    return _build(opening, lm)


@dataclass(frozen=True)
class KnownIndex:
    """The index of a command's model, which is opened when an analysis asks for it."""

    opening: Opening
    lm: LanguageModel
    folder: Path | None

    def __call__(self, *, build: bool = True) -> Index | None:
        """The index given, else a ready one; one that does not exist is built where `build` allows it."""
        if build or self.folder is not None:
            return index_for(self.opening, self.lm, self.folder)
        import unembed

        return unembed.cached_index(self.lm)


def _is_built_on_need(opening: Opening) -> bool:
    from unembed.models import DEFAULT_MODEL

    return opening.model == DEFAULT_MODEL and opening.is_default and os.environ.get(VARIABLE) != "never"


def _build(opening: Opening, lm: LanguageModel) -> Index | None:
    """The ready index of an embedded model, built where other commands find it.

    An interrupted build is continued by the next command; the folder is locked, and read only when it is complete.
    """
    from unembed.cli.progress import ProgressLine
    from unembed.errors import UnembedError
    from unembed.index import build_ready_index
    from unembed.results import visible

    print(
        f"No index of {lm.name} is ready: building it, to show the text on which each memory (FFN neuron) fires "
        f"(once; about half a minute on an idle machine; {VARIABLE}=never skips this)",
        file=sys.stderr,
    )
    report = ProgressLine()
    try:
        index = build_ready_index(lm, progress=report)
    except UnembedError as error:
        report.end()
        print(visible(f"continuing without it: {error}", prose=True), file=sys.stderr)
        return None
    report.end()
    record_index(opening, lm, index)
    return index
