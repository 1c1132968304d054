"""Save edits to a JSON file and load them from it; the file can be changed by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from unembed.errors import InvalidInput, reading
from unembed.results import write_whole
from unembed.stream.interventions import Edit
from unembed.version import __version__

SCHEMA = "unembed.edits/1"


def save_edits(edits: Sequence[Edit], path: str | os.PathLike[str], *, model: str | None = None) -> Path:
    """Write edits to a JSON file that `load_edits` reads, with one line for each edit; return the file's path.

    Args:
        edits: the edits, in the order in which they are applied.
        model: the name of the model for which the edits were chosen; `load_edits` checks it.

    Raises:
        InvalidInput: the file cannot be written.
    """
    head = json.dumps({"schema": SCHEMA, "version": __version__, "model": model})[:-1]
    lines = ",\n  ".join(json.dumps(edit.to_dict()) for edit in edits)
    return write_whole(path, f'{head}, "edits": [\n  {lines}\n]}}\n')


def load_edits(path: str | os.PathLike[str], *, model: str | None = None) -> list[Edit]:
    """Read the edits from a file that `save_edits` wrote.

    Args:
        model: the name of the model; an error is raised if the file names another one.

    Raises:
        InvalidInput: the file cannot be read, has another schema, or was made for another model.
    """
    with reading(f"cannot read edits from {path}", instead="Give a file that --save wrote"):
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA or not isinstance(stored.get("edits"), list):
        raise InvalidInput(
            f"{path} is not a file of edits", why=f"its schema is not {SCHEMA}", instead="Save the edits again"
        )
    made_for = stored.get("model")
    if model is not None and made_for is not None and made_for != model:
        raise InvalidInput(
            f"the edits in {path}",
            why=f"they were chosen for {made_for}, and in {model} the same layers and indices are other components",
            instead=f"Use --model {made_for}, or choose values of {model}",
        )
    edits = []
    for number, row in enumerate(stored["edits"]):
        try:
            edits.append(Edit.from_dict(row))
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"edit {number} in {path}", why=str(error), instead="Save the edits again") from error
    return edits
