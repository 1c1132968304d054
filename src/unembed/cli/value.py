"""`unembed value`: one memory's card: its description, what its value promotes and suppresses, its top triggers."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unembed.cli.command import command
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output
from unembed.options import IndexFolder, Memory, ShowUnlearned, Tokens, UnusedSeed, ValueBasis
from unembed.results import Table
from unembed.version import __version__

if TYPE_CHECKING:
    from rich.console import RenderableType

    from unembed import Index, LanguageModel
    from unembed.names import MemoryIndex
    from unembed.results import Provenance

_TRIGGERS = 5


@command("value", "unembed value L7M985 --tokens 5")
def value(
    memory: Memory,
    tokens: Tokens = 10,
    basis: ValueBasis = "raw",
    show_unlearned: ShowUnlearned = False,
    index: IndexFolder = None,
    opening: Opening = Opening(),
    seed: UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Show what a memory (FFN neuron) promotes and suppresses and, with an index, on what text it fires most.

    An index answers alone, without the model: only --basis final, --show-unlearned, and more tokens than the index
    holds read the weights. As many suppressed tokens are listed as promoted ones; through the final norm, only the
    promoted ones. A description is shown where a gallery has one (see `unembed memories`). --json, --csv and
    --html hold the tokens.
    """
    layer, column = memory
    from unembed.cli.output import show
    from unembed.cli.stored_index import index_for, record_index, stored_index
    from unembed.gallery import memory_descriptions, saved_descriptions

    stored = stored_index(opening, index) if basis == "raw" and not show_unlearned else None
    table = None if stored is None else _stored_tokens(stored[0], layer, column, tokens, seed)
    if stored is not None and table is not None:
        opened, known = stored
        described = saved_descriptions(opened.provenance, lambda: known.sampled, opened.path)
        place = opened.memory(layer, column)
        name = opened.memory_name(*place)
    else:
        lm = opening.open(seed)
        place = lm.memory(layer, column)
        name = lm.memory_name(*place)
        table = _tokens(lm, *place, tokens, basis, show_unlearned, seed)
        if (opened := index_for(opening, lm, index)) is not None:
            record_index(opening, lm, opened)
        described = memory_descriptions(lm, None if opened is None else opened.path)
    if not output.for_terminal:
        output.deliver(table)
        return
    if opened is None:
        build = f"unembed index build --model {shlex.quote(opening.model)}"
        print(f"no index of the model is ready; {build} finds the text on which its memories fire", file=sys.stderr)
    found = None if opened is None else opened.triggers(*place, _TRIGGERS)
    show(lambda width: _card(table, described.of(*place), found, width, output.plain), plain=output.plain)
    print_explorer_link(opening, "memory", index=index, memory=name)


def _stored_tokens(index: Index, layer: int, number: MemoryIndex, top: int, seed: int | None) -> Table | None:
    """The tokens as an index holds them; None where it holds fewer, or none that are suppressed."""
    if index.suppressed is None or top > index.manifest.settings["top_tokens"]:
        return None
    ends = {
        name: index.value_tokens(layer, number, top, bottom=bottom).columns
        for name, bottom in (("promoted", False), ("suppressed", True))
    }
    columns = {
        f"{name}_{column.removeprefix('token_')}": read[column]
        for name, read in ends.items()
        for column in ("token_id", "token", "score")
    }
    notes = {"show_unlearned": False}
    provenance = replace(index.provenance, corpus=None, basis="raw", seed=seed, version=__version__, notes=notes)
    place = index.memory(layer, number)
    return _titled(index.memory_name(*place), index.value_norm(*place), columns, provenance)


def _tokens(
    lm: LanguageModel,
    layer: int,
    column: int,
    top: int,
    basis: ValueBasis,
    show_unlearned: bool,
    seed: int | None,
) -> Table:
    columns: dict[str, Any] = {}
    # Through the norm, the tokens with the lowest scores are not those that the value suppresses.
    ends = [("promoted", False), ("suppressed", True)][: 2 if basis == "raw" else 1]
    for name, bottom in ends:
        ids, scores = lm.values.top(layer, column, top, basis=basis, bottom=bottom, show_unlearned=show_unlearned)
        columns |= {
            f"{name}_id": ids.tolist(),  # pyright: ignore[reportUnknownMemberType]
            f"{name}_token": lm.token_strings(ids),
            f"{name}_score": scores.tolist(),  # pyright: ignore[reportUnknownMemberType]
        }
    provenance = lm.provenance(basis=basis, seed=seed, notes={"show_unlearned": show_unlearned})
    return _titled(lm.memory_name(layer, column), lm.values.norm(layer, column), columns, provenance)


def _titled(name: str, norm: float, columns: dict[str, Any], provenance: Provenance) -> Table:
    through = ", read through the final norm" if provenance.basis == "final" else ""
    title = f"Memory {name} of {provenance.model}: its value has length {norm:.3g}{through}"
    return Table(title, columns, provenance)


def _card(table: Table, description: str | None, found: Table | None, width: int, plain: bool) -> RenderableType:
    """The description, tokens and scores side by side, and the triggers."""
    from rich.console import Group
    from rich.table import Table as Columns
    from rich.text import Text

    from unembed.cli.bars import decimals, signed
    from unembed.cli.index.view import draw_passages
    from unembed.results import visible_rich

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
    parts += [] if description is None else [visible_rich(description, prose=True)]
    parts += [Text(), drawn, Text()]
    if found is None:
        parts.append(visible_rich(table.provenance.line(), prose=True, style="dim"))
    else:
        parts.append(draw_passages(found, None, width, plain=plain))
    return Group(*parts)
