"""Load one-line descriptions of memories (FFN neurons) from an atlas or a saved gallery, to print after `L5M278`.

A shipped model has a gallery in the package. For any other model, `Index.memories` saves one with the index. If there
is an atlas in the index's folder, its descriptions replace those of the gallery, because they were tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from unembed.errors import InvalidInput
from unembed.gallery.evidence import MemoryEvidence
from unembed.gallery.gallery import FILE, Gallery
from unembed.models import SHIPPED, shipped_folder
from unembed.results import Provenance

if TYPE_CHECKING:
    from unembed.models.decoder import Decoder

T = TypeVar("T")
ATLAS, MEMORIES, HEADS = "atlas", "memories.parquet", "heads.parquet"
"""Name of the atlas folder in the folder of an index, and file names of the atlas's tables of memories and of heads."""


class MemoryDescriptions:
    """The one-line descriptions of memories (FFN neurons), by layer, index and sign of the coefficient."""

    other_lens: str | None
    """A sentence that names the gallery's lens and the model's, if they differ (`Gallery.other_lens`)."""

    def __init__(
        self,
        gallery: Gallery | None = None,
        of_atlas: Mapping[tuple[int, int, str], str] = MappingProxyType({}),
        lens: str | None = None,
        heads: Mapping[tuple[int, int], str] = MappingProxyType({}),
    ) -> None:
        """Use the descriptions of an atlas and, for other memories whose tokens have a theme, those of the gallery.

        Args:
            lens: the identity of the lens that reads the model's tokens now.
            heads: what the atlas says of heads, by layer and head.
        """
        rows = () if gallery is None else gallery.rows
        own = {(row.layer, row.index, row.pole): row.description for row in rows if has_theme(row)}
        self._of, self.heads = {**own, **of_atlas}, heads
        self.other_lens = None if gallery is None or own.keys() <= of_atlas.keys() else gallery.other_lens(lens)

    def __len__(self) -> int:
        """Return the number of descriptions."""
        return len(self._of)

    def __iter__(self) -> Iterator[tuple[int, int, str, str]]:
        """Yield layer, index, pole and description, best memory first."""
        return ((*key, text) for key, text in self._of.items())

    def containing(self, word: str) -> list[tuple[int, int, str, str]]:
        """Return layer, index, pole and description of the memories whose description contains a word.

        Case is ignored; the best memory is first.
        """
        return [row for row in self if _contains(row[3], word)]

    def heads_containing(self, word: str) -> list[tuple[int, int, str]]:
        """Return layer, number and description of the heads whose role or relation contains a word; case is ignored."""
        return [(*place, text) for place, text in self.heads.items() if _contains(text.partition(":")[0], word)]

    def of(self, layer: int, index: int, *, negative: bool = False) -> str | None:
        """Return a memory's description at positive (or `negative`) coefficients; None if there is none."""
        return self._of.get((layer, index, "negative" if negative else "positive"))


def _contains(text: str, word: str) -> bool:
    found = rf"(?<!\w){re.escape(word.strip())}(?!\w)"
    return bool(word.strip()) and re.search(found, text, re.IGNORECASE) is not None


def has_theme(row: MemoryEvidence) -> bool:
    """Return whether the promoted tokens have a theme: they are significantly coherent or share a concept.

    It is False if a measurement found that adding the value vector does not raise these tokens.
    """
    if not row.is_borne_out:
        return False
    found = (row.evidence["coherence"], row.evidence["concept"])
    return any(one is not None and one.counted > 0 for one in found)


def memory_descriptions(
    lm: Decoder, index_folder: Path | None = None, atlas_folder: Path | None = None
) -> MemoryDescriptions:
    """Return the descriptions of a model's memories that are saved with an index or shipped with the model, if any.

    Args:
        index_folder: the folder of an index of this model.
        atlas_folder: the folder of an atlas of this model; when None, the one in the index's folder, if there is one.

    Raises:
        InvalidInput: the file of descriptions in the index's folder was not saved by `Gallery.save`, or the given
            atlas is of another model or revision.
    """
    from unembed.jacobian import lens_identity

    own = _of_atlas(index_folder) if atlas_folder is None else _atlas_of(lm, atlas_folder)
    folder = index_folder / ATLAS if atlas_folder is None and index_folder is not None else atlas_folder
    heads = _cached(_heads, folder / HEADS) if folder is not None and (folder / HEADS).exists() else {}
    return MemoryDescriptions(memory_gallery(lm, index_folder), own, lens_identity(lm), heads)


def atlas_descriptions(lm: Decoder, atlas_folder: Path) -> MemoryDescriptions:
    """Return the descriptions of memories in an atlas; descriptions saved with an index are not included.

    Raises:
        InvalidInput: the atlas is of another model or revision.
    """
    return MemoryDescriptions(of_atlas=_atlas_of(lm, atlas_folder))


def _atlas_of(lm: Decoder, atlas_folder: Path) -> Mapping[tuple[int, int, str], str]:
    """Read the descriptions of an atlas of this model.

    Raises:
        InvalidInput: the atlas is of another model or revision.
    """
    from unembed.atlas import open_card

    made_of, own = open_card(atlas_folder).provenance, lm.provenance()
    if (made_of.model, made_of.revision) != (own.model, own.revision):
        raise InvalidInput(
            f"the atlas {atlas_folder} cannot be used",
            why=f"it is of {made_of.model}@{made_of.revision}, and the model is {own.model}@{own.revision}",
            instead="Build one with `unembed atlas build`",
        )
    return _cached(_lines, atlas_folder / MEMORIES)


def memory_gallery(lm: Decoder, index_folder: Path | None = None) -> Gallery | None:
    """Return the gallery saved with an index of the model or shipped with the model; None if there is none.

    Arguments and errors are those of `memory_descriptions`.
    """
    from unembed.models.fingerprint import sampled_fingerprint

    return saved_gallery(lm.provenance(), lambda: sampled_fingerprint(lm), index_folder)


def saved_descriptions(
    model: Provenance, sampled: Callable[[], str], index_folder: Path | None = None, lens: str | None = None
) -> MemoryDescriptions:
    """Return the descriptions that are saved for a model, which need not be loaded.

    Args:
        model: a provenance with the model's name and dtype.
        sampled: returns the model's `sampled_fingerprint`; called only to check a shipped gallery.
        index_folder: the folder of an index of this model.
        lens: the identity of the lens that reads the model's tokens now; None for the logit lens.

    Raises:
        InvalidInput: the file with the index is not a saved gallery.
    """
    return MemoryDescriptions(saved_gallery(model, sampled, index_folder), _of_atlas(index_folder), lens)


def saved_gallery(model: Provenance, sampled: Callable[[], str], index_folder: Path | None = None) -> Gallery | None:
    """Return the gallery saved for a model, which need not be loaded; None if there is none.

    Arguments and errors are those of `saved_descriptions`.
    """
    if index_folder is not None and (index_folder / FILE).exists():
        return _cached(Gallery.load, index_folder / FILE)
    name = model.model
    if name not in SHIPPED or not (shipped_folder(name) / FILE).exists():
        return None
    gallery = _cached(Gallery.load, shipped_folder(name) / FILE)
    # The fingerprint depends on the dtype, so it is compared only if the model has the dtype of the gallery.
    changed = model.dtype == gallery.provenance.dtype and gallery.provenance.notes["sampled_fingerprint"] != sampled()
    return None if changed else gallery


def _of_atlas(index_folder: Path | None) -> Mapping[tuple[int, int, str], str]:
    """Return the descriptions of the atlas in an index's folder; an empty mapping if there is no atlas."""
    path = None if index_folder is None else index_folder / ATLAS / MEMORIES
    return MappingProxyType({}) if path is None or not path.exists() else _cached(_lines, path)


def _lines(path: Path) -> Mapping[tuple[int, int, str], str]:
    from unembed.atlas.lines import description_columns  # pyarrow, which a model without an atlas does not need

    return MappingProxyType(description_columns(path))


def _heads(path: Path) -> Mapping[tuple[int, int], str]:
    from unembed.atlas.heads import head_sentences  # pyarrow, which a model without an atlas does not need

    return MappingProxyType(head_sentences(path))


def _cached(read: Callable[[Path], T], path: Path) -> T:
    """Return `read(path)`; the file is read again only if it has changed."""
    about = path.stat()
    return _read(read, path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=12)
def _read(read: Callable[[Path], Any], path: Path, _modified: int, _size: int) -> Any:
    return read(path)
