"""Load a command's model and index only when they are needed."""

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
"""Environment variable; if it is `never`, commands do not build the default index of the shipped model."""


@dataclass(frozen=True)
class NamedModel:
    """The model that a command's options name; loading it also seeds torch's random numbers."""

    opening: Opening
    seed: int | None = None

    @property
    def name(self) -> str:
        """The value of --model."""
        return self.opening.model

    @cached_property
    def known(self) -> KnownWeights | None:
        """The stored hashes of the model's weights, read without torch.

        None if no hashes are stored for this model, or if options change the model.
        """
        from unembed.models import known_weights

        return known_weights(self.name, self.opening.revision) if self.is_as_saved else None

    @property
    def is_as_saved(self) -> bool:
        """True if no option changes the model's dtype, tokenizer, adapter, special tokens or lens."""
        return self.opening.is_default

    @property
    def lens_identity(self) -> str | None:
        """A hash that identifies the lens, read without the model; None if there is no lens or no stored hash."""
        from unembed.jacobian import lens_file, stored_identity

        if self.opening.lens == NO_LENS:
            return None
        given = self.opening.lens
        path = Path(given) if given is not None else None if self.known is None else lens_file(self.known.sampled)
        return None if path is None else stored_identity(path)

    def open(self) -> LanguageModel:
        """Load the model, or return it if it is loaded.

        Raises:
            ModelUnavailable: the model, the folder or the network cannot be found.
        """
        return self._opened

    @cached_property
    def _opened(self) -> LanguageModel:
        return self.opening.open(self.seed)


@dataclass(frozen=True)
class KnownIndex:
    """The index in a command's --index folder, else the default index of its model in the cache folder."""

    model: NamedModel
    folder: Path | None

    @property
    def is_chosen(self) -> bool:
        """True if the user gave a folder."""
        return self.folder is not None

    def __call__(self, *, build: bool = True, opened: bool = True) -> Index | None:
        """Return the index; None if there is none. The arguments are those of `options.IndexOnNeed`.

        An index is built only for the default model, and not if `UNEMBED_READY_INDEX=never`. If another process is
        building it, or the cache folder cannot be written, a line on stderr reports this.
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
        """Open the index without torch; None if that is impossible or the index was built from other weights."""
        if (known := self.model.known) is None:
            return None
        from unembed.index import Index, cached_index_of_weights

        index = cached_index_of_weights(known.weights) if self.folder is None else Index.open(self.folder)
        return index if index is not None and index.manifest.weights == known.weights else None


def record_index(opening: Opening, lm: LanguageModel, index: Index) -> None:
    """Record the hash of the model's weights, so that later commands find its index without loading the model."""
    from unembed.models import record_weights

    if opening.is_default:
        record_weights(opening.model, opening.revision, lm, index.manifest.weights)


def _is_built_on_need(opening: Opening) -> bool:
    from unembed.models import DEFAULT_MODEL

    return opening.model == DEFAULT_MODEL and opening.is_default and os.environ.get(VARIABLE) != "never"


def _build(lm: LanguageModel) -> Index | None:
    """Build the default index of a shipped model in the cache folder; None if that fails.

    The next command resumes an interrupted build. The folder is locked during the build, and not used before the index
    is complete.
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
