"""Define the provenance of a result: the model, data and settings with which it was computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from unembed.errors import InvalidInput
from unembed.results.number_format import format_setting
from unembed.version import __version__


@dataclass(frozen=True)
class Provenance:
    """Which model, data and settings a result was computed with; two results are comparable only when these agree.

    Attributes:
        model: name, Hugging Face id or folder of the model.
        revision: commit or checksum of the weights; None for a model that was given as an object in memory.
        dtype: dtype of the weights, such as "float32".
        corpus: hash or name of the corpus; None if no corpus was used.
        basis: how vectors were mapped to tokens: "raw", "final", "frozen" or "jacobian"; None if none were.
        seed: seed of the random choices; None if there were none.
        version: version of unembed.
        notes: further settings that change the result, such as `{"hide_unlearned": True}`, as JSON values.
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
        # The mapping is copied, so that later changes by the caller have no effect here.
        object.__setattr__(self, "notes", dict(self.notes))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Provenance:
        """Make a provenance from the result of `to_dict`.

        Raises:
            InvalidInput: a field is unknown or missing.
        """
        known = {entry.name for entry in fields(cls)}
        if unknown := sorted(set(stored) - known):
            raise InvalidInput(
                f"provenance field {unknown[0]!r}",
                why="this version of unembed has no such field",
                instead=f"Use only the fields {', '.join(sorted(known))}",
            )
        if missing := [name for name in ("model", "revision", "dtype") if name not in stored]:
            raise InvalidInput(
                f"provenance without {missing[0]!r}",
                why="a result without it cannot be compared",
                instead="Store what Provenance.to_dict() returns",
            )
        return cls(**stored)

    def line(self) -> str:
        """Return the fields that are not None as one line of text, for captions."""
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
    return format_setting(value) if isinstance(value, float) else str(value)
