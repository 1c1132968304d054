"""`unembed value`: one memory's card: its description, what its value promotes and suppresses, its top triggers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unembed.cli import options
from unembed.cli.option_groups import Opening, Output, grouped

if TYPE_CHECKING:
    from rich.console import RenderableType

    from unembed import Index, LanguageModel
    from unembed.results import Table

_TRIGGERS = 5


@grouped
def value(
    memory: options.Memory,
    number: options.MemoryNumber = None,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Tokens at either end.")] = 10,
    basis: Annotated[
        options.ValueBasis, typer.Option(help="raw: the readout alone, as in the papers; final: the last norm too.")
    ] = "raw",
    show_unlearned: options.ShowUnlearned = False,
    index: options.IndexFolder = None,
    opening: Opening = Opening(),
    seed: options.Seed = None,
    output: Output = Output(),
) -> None:
    """Show what a memory's value promotes and suppresses and, with an index, on what text the memory fires most.

    A description is shown where a gallery has one (see `unembed memories`). --json, --csv and --html hold the tokens.
    """
    layer, column = options.memory_and_number(memory, number)
    from unembed.cli.model_loading import index_of

    lm = opening.open(seed)
    from unembed.cli.output import show

    layer, column = lm.memory(layer, column)

    table = _tokens(lm, layer, column, top, basis, show_unlearned, seed)
    if not output.for_terminal:
        output.deliver(table)
        return
    opened = index_of(lm, index)
    found = None if opened is None else opened.triggers(layer, column, _TRIGGERS)
    described = _description(lm, layer, column, opened)
    show(lambda width: _card(table, described, found, width, output.plain), plain=output.plain)


def _tokens(
    lm: LanguageModel,
    layer: int,
    column: int,
    top: int,
    basis: options.ValueBasis,
    show_unlearned: bool,
    seed: int | None,
) -> Table:
    from unembed.results import Table

    columns: dict[str, Any] = {}
    for name, bottom in (("promoted", False), ("suppressed", True)):
        ids, scores = lm.values.top(layer, column, top, basis=basis, bottom=bottom, show_unlearned=show_unlearned)
        columns |= {
            f"{name}_id": ids.tolist(),  # pyright: ignore[reportUnknownMemberType]
            f"{name}_token": lm.token_strings(ids),
            f"{name}_score": scores.tolist(),  # pyright: ignore[reportUnknownMemberType]
        }
    provenance = lm.provenance(basis=basis, seed=seed, notes={"show_unlearned": show_unlearned})
    title = (
        f"Memory {lm.memory_name(layer, column)} of {lm.name}: its value has length {lm.values.norm(layer, column):.3g}"
    )
    return Table(title, columns, provenance)


def _description(lm: LanguageModel, layer: int, column: int, opened: Index | None) -> str | None:
    from unembed.gallery import memory_descriptions

    folder: Path | None = None if opened is None else opened.path
    return memory_descriptions(lm, folder).of(layer, column)


def _card(table: Table, description: str | None, found: Table | None, width: int, plain: bool) -> RenderableType:
    """The description, tokens and scores side by side, and the triggers."""
    from rich.console import Group
    from rich.table import Table as Columns
    from rich.text import Text

    from unembed.cli.bars import signed
    from unembed.cli.index.view import draw_passages
    from unembed.results import visible_rich

    drawn = Columns(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for name in ("promotes", "suppresses"):
        drawn.add_column(name, no_wrap=True, max_width=(width - 24) // 2)
        drawn.add_column("score", justify="right", no_wrap=True)
    for row in table.rows():
        cells = [(row[f"{name}_token"], row[f"{name}_score"]) for name in ("promoted", "suppressed")]
        drawn.add_row(*(part for token, score in cells for part in (visible_rich(token), Text(signed(score)))))
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    parts += [] if description is None else [visible_rich(description, prose=True)]
    parts += [Text(), drawn, Text()]
    if found is None:
        parts.append(visible_rich(table.provenance.line(), prose=True, style="dim"))
    else:
        parts.append(draw_passages(found, None, width, plain=plain))
    return Group(*parts)
