"""The command `unembed value`: what one memory (FFN neuron) promotes and suppresses, and where it fires most."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Screen
from unembed.gallery import (
    MemoryDescriptions,
    memory_descriptions,
    memory_gallery,
    saved_descriptions,
    saved_gallery,
)
from unembed.names import Basis, Pole, SignedMemory
from unembed.options import Index as GivenIndex
from unembed.options import Memory, Option, Seed, ShowUnlearned, Tokens, ValueBasis
from unembed.results import Provenance, Table, format_number, format_percent
from unembed.version import __version__

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.memories.truth_of_values import ReadingTruth
    from unembed.models.decoder import Decoder
    from unembed.models.model_source import UnopenedModel

_TRIGGERS = 5


@dataclass(frozen=True)
class PoleOfMemory:
    """What is known about a memory (FFN neuron) at one sign of its coefficient."""

    pole: Pole
    title: str
    """A heading that names the sign; empty if the memory fires at one sign only."""
    description: str | None
    triggers: Table | None
    """The texts on which the memory fires most at this sign; None without an index."""
    often: str = ""
    """A sentence with the share of tokens on which the memory fires at this sign."""

    @property
    def strength(self) -> float:
        """The largest absolute coefficient among the listed texts; 0 if there are none."""
        found = self.triggers
        return max((abs(m) for m in found.columns["coefficient"]), default=0.0) if found else 0.0


@dataclass(frozen=True)
class MemoryCard:
    """The contents of `unembed value` for one memory (FFN neuron)."""

    tokens: Table
    """The tokens that the memory promotes and suppresses most at the coefficient's sign `shown`."""
    shown: Pole
    poles: Sequence[PoleOfMemory]
    """The signs of the coefficient: first the one in the memory's name, if it has one, else the stronger one."""
    truth: str | None
    """Sentences that state how well adding the value vector raises the tokens, if this was measured, and with which
    lens the description was made."""
    to_build: str = ""
    """The command that builds an index; empty if there is one."""


def value(
    model: UnopenedModel,
    memory: Memory,
    *,
    tokens: Tokens = 10,
    basis: ValueBasis = None,
    show_unlearned: ShowUnlearned = False,
    index: GivenIndex,
    distinctive: Annotated[
        bool,
        Option(
            "List the tokens that this value vector raises more than others of its layer do, not those that it "
            "raises most."
        ),
    ] = False,
    truth: Annotated[
        bool, Option("Measure whether adding the value vector to the stream raises the tokens listed as promoted.")
    ] = False,
    seed: Seed = 0,
) -> Answer:
    """Show what a memory (FFN neuron) promotes and suppresses and, with an index, on what text it fires most.

    With an index, the model is loaded only for --lens, --basis, --show-unlearned, --distinctive, --truth, or more
    tokens than the index stores. In gated layers, coefficients are positive or negative: tokens and texts are shown for
    both signs, the stronger one first, or the negative one first if it is named (-L5M278); --truth measures the named
    sign. A description is shown if `unembed memories` has saved one, unless --truth finds that adding the value vector
    does not raise the tokens listed as promoted. --json, --csv and --html output the tokens.

    Caution: The promoted tokens are computed from the value vector alone; --truth measures whether adding it raises
    them. The texts are only the strongest examples in one corpus.
    """
    place: tuple[int, int]
    stored = None if basis == "final" or show_unlearned or truth or distinctive else index(opened=False)
    if stored is not None and not _is_read_as(stored, model, basis):
        stored = None
    table, measured = None if stored is None else _stored_tokens(stored, memory, tokens), None
    if stored is not None and table is not None and (known := model.known) is not None:
        opened, is_signed = stored, "negative" in stored.poles
        place = opened.memory(*memory.address)
        name = opened.memory_name(*place, memory.pole)
        lens = model.lens_identity
        described = saved_descriptions(opened.provenance, lambda: known.sampled, opened.path, lens)
        gallery = saved_gallery(opened.provenance, lambda: known.sampled, opened.path)
    else:
        from unembed.jacobian import basis_or_default, lens_identity

        lm = model.open()
        lens = lens_identity(lm)
        chosen = basis_or_default(lm, basis, "raw")
        place = lm.memory(*memory.address)
        opened = index()
        name, is_signed = lm.memory_name(*place, memory.pole), lm.is_signed(place[0])
        signed = SignedMemory(*place, memory.pole)
        table = _tokens(lm, signed, tokens, chosen, show_unlearned, distinctive=distinctive)
        described = memory_descriptions(lm, None if opened is None else opened.path)
        gallery = memory_gallery(lm, None if opened is None else opened.path)
        if truth:
            from unembed.memories.truth_of_values import reading_truth

            measured = reading_truth(lm, [signed], basis=chosen, seed=seed)
            table = _with_truth(table, measured, seed)
    poles = _poles(opened, SignedMemory(*place, memory.pole), described, is_signed=is_signed)
    if measured is not None and not measured.borne_out[0]:
        poles = [replace(one, description=None) for one in poles]
    layer_truth = None if opened is None else opened.truth
    if layer_truth is not None and layer_truth.provenance.basis != table.provenance.basis:
        layer_truth = None  # not shown: it was measured for scores in another basis
    own = None
    if gallery is not None and gallery.is_read_by(lens if table.provenance.basis == "jacobian" else None):
        own = gallery.row_of(*place, memory.pole) or gallery.row_of(*place, poles[0].pole)
    of_memory = None if own is None else own.truth_in_words
    if own is not None and own.pole != memory.pole and of_memory is not None:
        of_memory = f"at {own.pole} coefficients, {of_memory}"
    if measured is not None:
        words = f"at {memory.pole} coefficients, {measured.in_words()}" if is_signed else measured.in_words()
    elif of_memory is not None:
        words = of_memory
    else:
        words = None if layer_truth is None else layer_truth.in_words(place[0])
        if layer_truth is not None and layer_truth.is_above_control(place[0]) is False:
            poles = [replace(one, description=None) for one in poles]
    if described.other_lens is not None and any(one.description is not None for one in poles):
        words = described.other_lens if words is None else f"{words}. {described.other_lens}"
    to_build = f"unembed index build --model {shlex.quote(model.name)}" if opened is None else ""
    return Answer.of_table(
        table,
        screen=Screen("memory", {"memory": name}),
        view=MemoryCard(table, memory.pole, poles, words, to_build),
    )


def _is_read_as(index: Index, model: UnopenedModel, basis: ValueBasis) -> bool:
    """Return whether the tokens stored in an index were computed in the wanted basis and with the same lens."""
    lens = model.lens_identity
    wanted = basis or ("raw" if lens is None else "jacobian")
    return index.provenance.basis == wanted and index.is_read_by(lens if wanted == "jacobian" else None)


def _poles(
    index: Index | None, memory: SignedMemory, described: MemoryDescriptions, *, is_signed: bool
) -> list[PoleOfMemory]:
    """Return a `PoleOfMemory` for each sign of the coefficient.

    The negative sign comes first if it is in the memory's name; otherwise, the sign with the larger coefficients.
    """
    found: list[PoleOfMemory] = []
    for pole in get_args(Pole) if is_signed else (memory.pole,):
        known = index is not None and pole in index.poles
        triggers = index.triggers(*memory.address, _TRIGGERS, pole=pole) if index is not None and known else None
        description = described.of(memory.layer, cast(int, memory.index), negative=pole == "negative")
        title = f"At {pole} coefficients" if is_signed else ""
        found.append(PoleOfMemory(pole, title, description, triggers, _how_often(index, memory, pole)))
    first = {memory.pole} if memory.pole == "negative" else set[str]()
    return sorted(found, key=lambda one: (one.pole not in first, -one.strength))


def _how_often(index: Index | None, memory: SignedMemory, pole: Pole) -> str:
    """Describe on what share of tokens a gated memory fires with this sign; empty if the index has no such data."""
    if index is None or len(index.poles) < 2 or index.firing_shares is None:
        return ""
    share = float(index.firing_shares[pole][index.row(*memory.address)])
    size = index.usual_size(*memory.address)
    return f"fires on {format_percent(share)} of the tokens (half of its usual size, {format_number(size)}, or more)"


def _stored_tokens(index: Index, memory: SignedMemory, top: int) -> Table | None:
    """Return the tokens stored in an index; None if it stores fewer than `top`, or no suppressed tokens."""
    if index.suppressed is None or top > index.manifest.settings["top_tokens"]:
        return None
    ends = {name: index.value_tokens(*memory.address, top, bottom=bottom).columns for name, bottom in _ends(memory)}
    columns = {
        f"{name}_{column.removeprefix('token_')}": read[column]
        for name, read in ends.items()
        for column in ("token_id", "token", "score")
    }
    for name in ends if memory.sign < 0 else ():
        columns[f"{name}_score"] = [-score for score in columns[f"{name}_score"]]
    notes = {"show_unlearned": False}
    provenance = replace(index.provenance, corpus=None, seed=None, version=__version__, notes=notes)
    place = index.memory(*memory.address)
    return _titled(index.memory_name(*place, memory.pole), index.value_norm(*place), columns, provenance)


def _ends(memory: SignedMemory) -> tuple[tuple[str, bool], tuple[str, bool]]:
    """Return "promoted" and "suppressed", each paired with whether these tokens have the lowest scores.

    At a negative coefficient, the tokens with the lowest scores are promoted.
    """
    return ("promoted", memory.sign < 0), ("suppressed", memory.sign > 0)


def _tokens(
    lm: Decoder, memory: SignedMemory, top: int, basis: Basis, show_unlearned: bool, *, distinctive: bool
) -> Table:
    """Return the promoted and suppressed tokens, computed from the weights."""
    from unembed.memories import distinctive_tokens
    from unembed.memories.values import Values

    columns: dict[str, Any] = {}
    values = Values(lm)
    read = partial(distinctive_tokens, lm) if distinctive else values.top
    layer, column = cast("tuple[int, int]", memory.address)
    for name, bottom in _ends(memory):
        ids, scores = read(layer, column, top, basis=basis, bottom=bottom, show_unlearned=show_unlearned)
        columns |= {
            f"{name}_id": ids.tolist(),  # pyright: ignore[reportUnknownMemberType]
            f"{name}_token": lm.token_strings(ids),
            f"{name}_score": (memory.sign * scores).tolist(),  # pyright: ignore[reportUnknownMemberType]
        }
    notes = {"show_unlearned": show_unlearned, **({"scores": "standardised"} if distinctive else {})}
    provenance = lm.provenance(basis=basis, notes=notes)
    return _titled(lm.memory_name(layer, column, memory.pole), values.norm(layer, column), columns, provenance)


def _titled(name: str, norm: float, columns: dict[str, Any], provenance: Provenance) -> Table:
    ways = {
        "raw": ", read by the logit lens",
        "final": ", read by the logit lens through the final norm",
        "jacobian": ", read by the fitted lens",
    }
    through = ways.get(str(provenance.basis), "") if norm else ", so it promotes nothing"
    if "scores" in provenance.notes:
        through += (
            "; scores in standard deviations over the layer's values: what sets it apart, not what it raises most"
        )
    title = f"Memory {name} of {provenance.model}: its value has length {format_number(norm)}{through}"
    return Table(title, columns, provenance)


def _with_truth(table: Table, measured: ReadingTruth, seed: int) -> Table:
    """Return the table of tokens with the result of --truth added to its provenance."""
    row = next(measured.to_table().rows())
    numbers = {name: row[name] for name in ("correlation", "overlap", "control_99", "borne_out")}
    notes = {**table.provenance.notes, "truth": numbers}
    return Table(table.title, table.columns, replace(table.provenance, seed=seed, notes=notes))


ANALYSIS = Analysis("value", value, Needs.UNOPENED, Cost.INSTANT, "unembed value L7M985 --tokens 5")
