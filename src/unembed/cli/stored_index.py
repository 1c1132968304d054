"""The model that a command names and its index, each opened when an answer needs it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from unembed.cli.option_groups import NO_LENS, Opening

if TYPE_CHECKING:
    from unembed import Index, LanguageModel
    from unembed.models import KnownWeights


VARIABLE = "UNEMBED_READY_INDEX"
"""Set to `never`, commands do not build the ready index."""


@dataclass(frozen=True)
class NamedModel:
    """The model of a command's options; torch's random numbers start from the seed when it is opened."""

    opening: Opening
    seed: int | None = None

    @property
    def name(self) -> str:
        """What the user called it."""
        return self.opening.model

    @cached_property
    def known(self) -> KnownWeights | None:
        """Its weights, found without torch; None if they are not recorded, or it is not opened as it was saved."""
        from unembed.models import known_weights

        return known_weights(self.name, self.opening.revision) if self.is_as_saved else None

    @property
    def is_as_saved(self) -> bool:
        """Tell whether no option changes how it is opened."""
        return self.opening.is_default

    @property
    def lens_identity(self) -> str | None:
        """What tells the lens from others by which the model's values are read, as far as it is known unopened."""
        from unembed.jacobian import lens_file, stored_identity

        if self.opening.lens == NO_LENS:
            return None
        given = self.opening.lens
        path = Path(given) if given is not None else None if self.known is None else lens_file(self.known.sampled)
        return None if path is None else stored_identity(path)

    def open(self) -> LanguageModel:
        """The opened model.

        Raises:
            ModelUnavailable: no such model, folder or network.
        """
        return self._opened

    @cached_property
    def _opened(self) -> LanguageModel:
        return self.opening.open(self.seed)


@dataclass(frozen=True)
class KnownIndex:
    """The index that a command is given, else the ready one of its model."""

    model: NamedModel
    folder: Path | None

    @property
    def is_chosen(self) -> bool:
        """Tell whether the user named its folder."""
        return self.folder is not None

    def __call__(self, *, build: bool = True, opened: bool = True) -> Index | None:
        """Return the index; None where there is none, as `options.IndexOnNeed` defines.

        A ready index is built only of the embedded model, unless `UNEMBED_READY_INDEX=never`; where another process
        builds it, or the cache folder cannot be written, a line on stderr says so.
        """
        if not opened:
            return self._of_known_weights()
        import unembed

        lm, opening = self.model.open(), self.model.opening
        index = unembed.cached_index(lm) if self.folder is None else unembed.Index.open(self.folder, lm)
        if index is None and build and _is_built_on_need(opening):
            index = _build(lm)
        if index is not None and self.model.known is None:
            record_index(opening, lm, index)
        return index

    def _of_known_weights(self) -> Index | None:
        """The index, found without torch; None if only the opened model could tell that it is its own."""
        if (known := self.model.known) is None:
            return None
        from unembed.index import Index, cached_index_of_weights

        index = cached_index_of_weights(known.weights) if self.folder is None else Index.open(self.folder)
        return index if index is not None and index.manifest.weights == known.weights else None


def record_index(opening: Opening, lm: LanguageModel, index: Index) -> None:
    """Record that an index belongs to the model of a name, so that it is found without opening the model."""
    from unembed.models import record_weights

    if opening.is_default:
        record_weights(opening.model, opening.revision, lm, index.manifest.weights)


def _is_built_on_need(opening: Opening) -> bool:
    from unembed.models import DEFAULT_MODEL

    return opening.model == DEFAULT_MODEL and opening.is_default and os.environ.get(VARIABLE) != "never"


def _build(lm: LanguageModel) -> Index | None:
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
        return build_ready_index(lm, progress=report)
    except UnembedError as error:
        report.end()
        print(visible(f"continuing without it: {error}", prose=True), file=sys.stderr)
        return None
    finally:
        report.end()
