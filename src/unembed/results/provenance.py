"""Where a number comes from: the provenance that every result carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from unembed.errors import InvalidInput
from unembed.version import __version__


@dataclass(frozen=True)
class Provenance:
    """Which model, data and settings a result was computed with; two results are comparable only when these agree.

    Attributes:
        model: name, hub id or folder of the model.
        revision: commit or checksum of its weights; None for an object that was in memory.
        dtype: the dtype of the weights the numbers were computed with, such as "float32".
        corpus: fingerprint or name of the corpus; None where no corpus was read.
        basis: "raw", "final" or "frozen" for readings; None where nothing was read in the vocabulary.
        seed: the seed of the random choices; None where there were none.
        version: the version of unembed.
        notes: further facts that change numbers, such as `{"hide_unlearned": True}`; values JSON can hold.
    """

    model: str
    revision: str | None
    dtype: str
    corpus: str | None = None
    basis: str | None = None
    seed: int | None = None
    version: str = __version__
    notes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        # A copy, so that later changes of the caller's mapping do not change the provenance.
        object.__setattr__(self, "notes", dict(self.notes))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Provenance:
        """Rebuild the provenance that `to_dict` described.

        Raises:
            InvalidInput: a field is unknown or missing.
        """
        known = {entry.name for entry in fields(cls)}
        if unknown := sorted(set(stored) - known):
            raise InvalidInput(
                f"provenance field {unknown[0]!r}",
                why="this version of unembed has no such field",
                instead=f"Known fields: {', '.join(sorted(known))}",
            )
        if missing := [name for name in ("model", "revision", "dtype") if name not in stored]:
            raise InvalidInput(
                f"provenance without {missing[0]!r}",
                why="a result without it cannot be compared",
                instead="Store what Provenance.to_dict() returns",
            )
        return cls(**stored)

    def line(self) -> str:
        """Return one line for captions: the fields that are set, in a fixed order."""
        parts = [self.model if self.revision is None else f"{self.model}@{self.revision[:12]}"]
        parts += [self.dtype] if self.dtype != "none" else []
        parts += [
            f"{name} {value}" for name in ("corpus", "basis", "seed") if (value := getattr(self, name)) is not None
        ]
        parts += [f"{name.replace('_', ' ')} {_short(value)}" for name, value in self.notes.items()]
        return " · ".join([*parts, f"unembed {self.version}"])


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
