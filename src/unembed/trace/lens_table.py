"""The analysis `lens`: the top tokens of every layer for many prompts, by the model's fitted lens or the logit lens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Exhibit, Section
from unembed.errors import InvalidInput
from unembed.jacobian.basis import basis_or_default
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Basis, StreamPoint
from unembed.options import Edits as GivenEdits
from unembed.options import Layer, Option, Position, Prompts, ReadingBasis, ReadPoint, ShowAll, ShowUnlearned
from unembed.options import Tokens as Listed
from unembed.results import Table, characters
from unembed.stream.interventions import Edits
from unembed.stream.massive_activations import MASSIVE
from unembed.stream.run import Tokens
from unembed.trace.trace import Trace
from unembed.validation import as_tuple

_MASSIVE = "massive_activations"
"""The note that names the first three positions at which a stream that was read has massive activations."""
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
    """Return a table of the most probable tokens that a lens reads at one point of every layer, for many prompts.

    Args:
        prompts: texts, or token ids.
        point: capture point of the stream that is read.
        top: number of tokens listed for each layer and position.
        basis: how the stream is read; when None, by the model's fitted lens ("jacobian"), or by the final norm and the
            unembedding ("final") where there is none.
        layer: only this layer; all when None.
        position: only this position of each prompt, negative from its end; all when None.
        edits: changes made during the runs.
        show_unlearned: include tokens that the model never learned.

    Returns:
        Columns prompt (its number, from 0), layer, position, input (the token at the position), rank (from 1), token,
        id, probability, logit. The note "massive_activations" says at which positions a stream that was read is over
        ten times as long as usual, so that a lens reads little there.

    Raises:
        InvalidInput: there are no prompts.
        OutOfRange: there is no such layer, or a prompt is too short to have the position.
        PointMissing: the model has no such capture point.
    """
    lm, prompts = require_decoder(lm), as_tuple("prompts", prompts)
    basis = basis_or_default(lm, basis, "final")
    if not prompts:
        raise InvalidInput("an empty list of prompts", instead="Give at least one")
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    chosen = None if layer is None else lm.layer(layer)
    notes: dict[str, Any] = {}
    massive: dict[str, None] = {}  # in the order of the prompts
    for number, prompt in enumerate(prompts):
        trace = Trace(lm, prompt, edits, show_unlearned=show_unlearned)
        inputs, is_massive = trace.token_strings, trace.massive(point) > 0
        readings = trace.readings(point, top, basis, position)
        notes = {**readings.provenance.notes, "prompts": len(prompts)}
        for row in readings.to_table().rows():
            if chosen is None or row["layer"] == chosen:
                if is_massive[row["layer"], row["position"]]:
                    massive[f"position {row['position']} of prompt {number}"] = None
                row = {**row, "prompt": number, "input": inputs[row["position"]]}
                for name, values in columns.items():
                    values.append(row[name])
    if massive:
        more = f" and {len(massive) - 3:,} more" if len(massive) > 3 else ""
        notes[_MASSIVE] = ", ".join(list(massive)[:3]) + more
    name = "Jacobian lens" if basis == "jacobian" else "Logit lens"
    return Table(f"{name} of {lm.name} at {point}", columns, lm.provenance(basis=basis, notes=notes))


def lens(
    lm: Decoder,
    texts: Prompts,
    *,
    layer: Layer = None,
    position: Position = -1,
    all_positions: Annotated[bool, Option("Read every position of every prompt, not only --position.")] = False,
    tokens: Listed = 1,
    edits: GivenEdits = (),
    point: ReadPoint = "resid_post",
    basis: ReadingBasis = None,
    show_unlearned: ShowUnlearned = False,
    everything: ShowAll = False,
) -> Answer:
    """Show the most probable tokens of the stream at every layer, for many prompts in one table (the logit lens).

    Caution: A lens does not show all that the stream contains. The logit lens treats the later layers as if they
    changed nothing, and shows little in the middle layers of most models. `fit-lens` makes a lens that reads them
    better.
    """
    where = None if all_positions else position
    table = logit_lens(
        lm,
        texts,
        point=point,
        top=tokens,
        basis=basis,
        layer=layer,
        position=where,
        edits=edits,
        show_unlearned=show_unlearned,
    )
    parts = tuple(
        Exhibit(f"prompt_{n}", part, listed=len(part) if everything else 40)
        for n, part in enumerate(_by_prompt(_with_characters(table)))
    )
    remarks: tuple[str, ...] = ()
    if places := table.provenance.notes.get(_MASSIVE):
        remarks = (
            f"The stream at {places} is over {MASSIVE} times as long as usual in some of these layers (massive "
            "activations): the tokens that a lens reads there say little.",
        )
    return Answer(table.title, (Section(table.title, exhibits=parts),), table.provenance, data=table, remarks=remarks)


def _by_prompt(table: Table) -> list[Table]:
    numbers = list(dict.fromkeys(table["prompt"]))
    if len(numbers) < 2:
        return [table]
    rows = {n: [i for i, prompt in enumerate(table["prompt"]) if prompt == n] for n in numbers}
    return [
        Table(
            f"{table.title}, prompt {n}",
            {name: [table[name][i] for i in of] for name in table.column_names},
            table.provenance,
        )
        for n, of in rows.items()
    ]


def _with_characters(table: Table) -> Table:
    """Return the table with the whole character in place of an input token that is only some bytes of it.

    JSON and CSV show the bytes instead.
    """
    inputs: dict[int, dict[int, str]] = {}
    for row in table.rows():
        inputs.setdefault(row["prompt"], {})[row["position"]] = row["input"]
    texts = {n: dict(zip(tokens, characters(list(tokens.values())), strict=True)) for n, tokens in inputs.items()}
    shown = [texts[n][at] for n, at in zip(table["prompt"], table["position"], strict=True)]
    columns = {("input_token" if name == "input" else name): table[name] for name in table.column_names}
    return Table(table.title, {**columns, "input_token": shown}, table.provenance)


ANALYSIS = Analysis(
    "lens",
    lens,
    Needs.MODEL,
    Cost.SECONDS,
    'unembed lens "The war lasted from 1861" "He was born in the United" --csv',
)
