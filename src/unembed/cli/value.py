"""`unembed value`: one memory's card: its description, what its value promotes and suppresses, its top triggers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from unembed.cli.command import command
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output
from unembed.names import Basis, Pole, SignedMemory
from unembed.options import IndexFolder, Memory, Option, ShowUnlearned, Tokens, UnusedSeed, ValueBasis
from unembed.results import Table
from unembed.version import __version__

if TYPE_CHECKING:
    from rich.console import RenderableType

    from unembed import Index, LanguageModel
    from unembed.gallery import MemoryDescriptions
    from unembed.memories import ReadingTruth
    from unembed.results import Provenance

_TRIGGERS = 5


@command("value", "unembed value L7M985 --tokens 5")
def value(
    memory: Memory,
    tokens: Tokens = 10,
    basis: ValueBasis = None,
    show_unlearned: ShowUnlearned = False,
    index: IndexFolder = None,
    distinctive: Annotated[
        bool,
        Option("List the tokens that set the value apart from the others of its layer, not those it raises most."),
    ] = False,
    truth: Annotated[bool, Option("Measure whether adding the value raises the tokens listed as promoted.")] = False,
    opening: Opening = Opening(),
    seed: UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Show what a memory (FFN neuron) promotes and suppresses and, with an index, on what text it fires most.

    An index answers alone, without the model: only --lens, --basis, --show-unlearned, --truth, and more tokens than the
    index holds read the weights. As many suppressed tokens are listed as promoted ones. Memories of gated layers fire
    with either sign: both poles are shown, the stronger one first, unless the negative one is named (-L5M278). A
    description is shown where a gallery has one (see `unembed memories`), but not where --truth finds that adding the
    value does not raise the tokens listed as promoted. --json, --csv and --html hold the tokens.

    Caution: What a value promotes is a reading of its direction; --truth measures how far adding the value does that.
    Triggers are the strongest of one corpus.
    """
    from unembed.cli.output import show
    from unembed.cli.stored_index import index_for, record_index, stored_index
    from unembed.gallery import memory_descriptions, saved_descriptions
    from unembed.jacobian import lens_path

    needs_model = show_unlearned or truth or distinctive
    measured: ReadingTruth | None = None
    stored = stored_index(opening, index) if basis != "final" and not needs_model else None
    if stored is not None and basis not in (None, stored[0].provenance.basis):
        stored = None  # its tokens were read in another basis
    if stored is not None and basis is None and opening.lens is None and lens_path(stored[1].sampled).exists():
        stored = None  # its tokens were read without the lens
    table = None if stored is None else _stored_tokens(stored[0], memory, tokens, seed)
    if stored is not None and table is not None:
        opened, known = stored
        described = saved_descriptions(opened.provenance, lambda: known.sampled, opened.path)
        place, is_signed = opened.memory(*memory.address), "negative" in opened.poles
        name = opened.memory_name(*place, memory.pole)
    else:
        lm = opening.open(seed)
        from unembed.jacobian import basis_or_default

        chosen = basis_or_default(lm, basis, "raw")
        place = lm.memory(*memory.address)
        is_signed = lm.is_signed(place[0])
        name = lm.memory_name(*place, memory.pole)
        signed = SignedMemory(*place, memory.pole)
        table = _tokens(lm, signed, tokens, chosen, show_unlearned, seed, distinctive=distinctive)
        if (opened := index_for(opening, lm, index)) is not None:
            record_index(opening, lm, opened)
        described = memory_descriptions(lm, None if opened is None else opened.path)
        if truth:
            measured = lm.reading_truth([SignedMemory(*place, memory.pole)], basis=chosen, seed=seed or 0)
            table = _with_truth(table, measured)
    if not output.for_terminal:
        output.deliver(table)
        return
    if opened is None:
        build = f"unembed index build --model {shlex.quote(opening.model)}"
        print(f"no index of the model is ready; {build} finds the text on which its memories fire", file=sys.stderr)
    poles = _poles(opened, SignedMemory(*place, memory.pole), described, is_signed=is_signed)
    if measured is not None and not measured.borne_out[0]:
        poles = [replace(one, description=None) for one in poles]
    layer_truth = None if opened is None else opened.truth
    if layer_truth is not None and layer_truth.provenance.basis != table.provenance.basis:
        layer_truth = None  # it was measured for another reading
    if measured is None and layer_truth is not None and layer_truth.is_above_control(place[0]) is False:
        poles = [replace(one, description=None) for one in poles]
    of_layer = None if layer_truth is None else layer_truth.in_words(place[0])
    said = of_layer if measured is None else measured.in_words()
    show(lambda width: _card(table, memory.pole, poles, said, width, output.plain), plain=output.plain)
    print_explorer_link(opening, "memory", index=index, memory=name)


@dataclass(frozen=True)
class _Pole:
    """One sign of a memory's coefficient: what is known of it."""

    pole: Pole
    title: str
    description: str | None
    found: Table | None
    """Its triggers; None without an index."""
    often: str = ""
    """On how many tokens the memory fires at this sign."""

    @property
    def strength(self) -> float:
        """The size of the coefficient on its top trigger."""
        return max((abs(m) for m in self.found.columns["coefficient"]), default=0.0) if self.found else 0.0


def _poles(index: Index | None, memory: SignedMemory, described: MemoryDescriptions, *, is_signed: bool) -> list[_Pole]:
    """The poles of a memory: the one that was named with its sign first, else the stronger one."""
    found: list[_Pole] = []
    for pole in get_args(Pole) if is_signed else (memory.pole,):
        known = index is not None and pole in index.poles
        triggers = index.triggers(*memory.address, _TRIGGERS, pole=pole) if index is not None and known else None
        description = described.of(memory.layer, cast(int, memory.index), negative=pole == "negative")
        title = f"At {pole} coefficients" if is_signed else ""
        found.append(_Pole(pole, title, description, triggers, _how_often(index, memory, pole)))
    first = {memory.pole} if memory.pole == "negative" else set[str]()
    return sorted(found, key=lambda one: (one.pole not in first, -one.strength))


def _how_often(index: Index | None, memory: SignedMemory, pole: Pole) -> str:
    """On how many tokens of the index's corpus a gated memory fires at a sign; empty where that is not known."""
    if index is None or len(index.poles) < 2 or index.firing_shares is None:
        return ""
    share = float(index.firing_shares[pole][index.row(*memory.address)])
    size = index.usual_size(*memory.address)
    return f"fires on {100 * share:.2g} % of the tokens (half of its usual size, {size:.2g}, or more)"


def _stored_tokens(index: Index, memory: SignedMemory, top: int, seed: int | None) -> Table | None:
    """The tokens as an index holds them; None where it holds fewer, or none that are suppressed."""
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
    provenance = replace(index.provenance, corpus=None, seed=seed, version=__version__, notes=notes)
    place = index.memory(*memory.address)
    return _titled(index.memory_name(*place, memory.pole), index.value_norm(*place), columns, provenance)


def _ends(memory: SignedMemory) -> tuple[tuple[str, bool], tuple[str, bool]]:
    """What is listed, and whether it is the lower end of the value's scores; the ends change places with the sign."""
    return ("promoted", memory.sign < 0), ("suppressed", memory.sign > 0)


def _tokens(
    lm: LanguageModel,
    memory: SignedMemory,
    top: int,
    basis: Basis,
    show_unlearned: bool,
    seed: int | None,
    *,
    distinctive: bool,
) -> Table:
    from unembed.memories import distinctive_tokens

    columns: dict[str, Any] = {}
    read = partial(distinctive_tokens, lm) if distinctive else lm.values.top
    layer, column = cast("tuple[int, int]", memory.address)
    for name, bottom in _ends(memory):
        ids, scores = read(layer, column, top, basis=basis, bottom=bottom, show_unlearned=show_unlearned)
        columns |= {
            f"{name}_id": ids.tolist(),  # pyright: ignore[reportUnknownMemberType]
            f"{name}_token": lm.token_strings(ids),
            f"{name}_score": (memory.sign * scores).tolist(),  # pyright: ignore[reportUnknownMemberType]
        }
    notes = {"show_unlearned": show_unlearned, **({"scores": "standardised"} if distinctive else {})}
    provenance = lm.provenance(basis=basis, seed=seed, notes=notes)
    return _titled(lm.memory_name(layer, column, memory.pole), lm.values.norm(layer, column), columns, provenance)


def _titled(name: str, norm: float, columns: dict[str, Any], provenance: Provenance) -> Table:
    ways = {"final": ", read through the final norm", "jacobian": ", read by the fitted lens"}
    through = ways.get(str(provenance.basis), "")
    if "scores" in provenance.notes:
        through += (
            "; scores in standard deviations over the layer's values: what sets it apart, not what it raises most"
        )
    title = f"Memory {name} of {provenance.model}: its value has length {norm:.3g}{through}"
    return Table(title, columns, provenance)


def _negated(table: Table) -> Table:
    """The tokens at the other pole: the ends change places, and the scores their sign."""
    other = {"promoted": "suppressed", "suppressed": "promoted"}
    columns = {
        f"{other[name.partition('_')[0]]}_{name.partition('_')[2]}": [-x for x in found] if "score" in name else found
        for name, found in table.columns.items()
    }
    return Table(table.title, columns, table.provenance)


def _with_truth(table: Table, measured: ReadingTruth) -> Table:
    """The tokens, whose provenance holds how true they are."""
    row = next(measured.to_table().rows())
    numbers = {name: row[name] for name in ("correlation", "overlap", "control_99", "borne_out")}
    notes = {**table.provenance.notes, "truth": numbers}
    return Table(table.title, table.columns, replace(table.provenance, notes=notes))


def _card(
    table: Table, shown: Pole, poles: Sequence[_Pole], truth: str | None, width: int, plain: bool
) -> RenderableType:
    """Each pole with its description, what it promotes and its triggers; then the tokens with their scores."""
    from rich.console import Group
    from rich.table import Table as Columns
    from rich.text import Text

    from unembed.cli.bars import decimals, signed
    from unembed.cli.index.view import draw_passages, tokens_line
    from unembed.results import visible_rich

    if poles[0].pole != shown:
        table, shown = _negated(table), poles[0].pole
    drawn = Columns(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    ends = [end for end in ("promoted", "suppressed") if f"{end}_token" in table.columns]
    for name in ends:
        drawn.add_column(
            {"promoted": "promotes", "suppressed": "suppresses"}[name], no_wrap=True, max_width=(width - 24) // 2
        )
        drawn.add_column("score", justify="right", no_wrap=True)
    places = decimals(score for name in ends for score in table.columns[f"{name}_score"])
    for row in table.rows():
        cells = [(row[f"{name}_token"], row[f"{name}_score"]) for name in ends]
        drawn.add_row(*(part for token, score in cells for part in (visible_rich(token), Text(signed(score, places)))))
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    parts += [] if truth is None else [Text(f"{truth[0].upper()}{truth[1:]}.")]
    for number, one in enumerate(poles):
        if one.title:
            stronger = ", the stronger pole" if number == 0 and one.strength > poles[-1].strength else ""
            often = f": {one.often}" if one.often else ""
            parts += [Text(), Text(f"{one.title}{stronger}", style="bold").append(often, style="not bold")]
            end = "promoted" if one.pole == shown else "suppressed"
            parts.append(tokens_line("promotes", table.columns[f"{end}_token"], width))
        parts += [] if one.description is None else [visible_rich(one.description, prose=True)]
        if one.title and one.found is not None:
            parts.append(draw_passages(one.found, None, width, plain=plain, signature=False))
    if poles[0].title:
        parts += [Text(), Text(f"Scores of the value at {shown} coefficients", style="bold"), drawn]
    else:
        parts += [Text(), drawn]
    if poles[0].title or poles[0].found is None:
        source = table if poles[0].found is None else poles[0].found
        about = replace(source.provenance, basis=table.provenance.basis)
        parts += [Text(), visible_rich(about.line(), prose=True, style="dim")]
    else:
        found = poles[0].found
        about = replace(found.provenance, basis=table.provenance.basis)
        parts += [Text(), draw_passages(Table(found.title, found.columns, about), None, width, plain=plain)]
    return Group(*parts)
