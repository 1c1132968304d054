"""The lens over many prompts, as one table: the one that was fitted on the model, else the logit lens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unembed.errors import InvalidInput
from unembed.jacobian.basis import basis_or_default
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Basis, StreamPoint
from unembed.results import Table
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens
from unembed.trace.trace import Trace
from unembed.validation import as_tuple

COLUMNS = ("prompt", "layer", "position", "input", "rank", "token", "id", "probability", "logit")


def logit_lens(
    lm: Decoder,
    prompts: Sequence[Tokens],
    *,
    point: StreamPoint = "resid_post",
    top: int = 1,
    basis: Basis | None = None,
    layer: int | None = None,
    position: int | None = -1,
    edits: Edits = (),
    show_unlearned: bool = False,
) -> Table:
    """Tabulate the most probable tokens at one point of the stream in every layer, for many prompts.

    Args:
        prompts: texts, or token ids.
        point: where the stream is read.
        top: tokens of each reading.
        basis: how it is read; when None, by the model's fitted lens ("jacobian"), or "final" where there is none.
        layer: only this layer; all when None.
        position: only this position of each prompt, negative from its end; all when None.
        edits: changes made during the runs.
        show_unlearned: include tokens that the model never learned.

    Returns:
        Columns prompt (its number, from 0), layer, position, input (the token at the position), rank (from 1), token,
        id, probability, logit.

    Raises:
        InvalidInput: there are no prompts.
        OutOfRange: no such layer, or a prompt without the position.
        PointMissing: the model has no such point.
    """
    lm, prompts = require_decoder(lm), as_tuple("prompts", prompts)
    basis = basis_or_default(lm, basis, "final")
    if not prompts:
        raise InvalidInput("an empty list of prompts", instead="Give at least one")
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    chosen = None if layer is None else lm.layer(layer)
    notes: dict[str, Any] = {}
    for number, prompt in enumerate(prompts):
        trace = Trace(lm, prompt, edits, show_unlearned=show_unlearned)
        inputs = trace.token_strings
        readings = trace.readings(point, top, basis, position)
        notes = {**readings.provenance.notes, "prompts": len(prompts)}
        for row in readings.to_table().rows():
            if chosen is None or row["layer"] == chosen:
                row = {**row, "prompt": number, "input": inputs[row["position"]]}
                for name, values in columns.items():
                    values.append(row[name])
    name = "Jacobian lens" if basis == "jacobian" else "Logit lens"
    return Table(f"{name} of {lm.name} at {point}", columns, lm.provenance(basis=basis, notes=notes))
