"""Convert a trace to an object that rich can print, for terminals of 60 to 160 columns."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from unembed.cli.trace.layer_rows import EVENT_STYLE, SIGNS, draw_layers
from unembed.cli.trace.parts import draw_attribution, draw_heads, draw_memories
from unembed.cli.trace.tokens import ACCENT, candidates_text, signed_text, token_text
from unembed.models import Candidate
from unembed.results import decimals_of, join_bytes, visible_rich
from unembed.trace import TraceView

_REMARK = 20
"""Each suggested command has an explanation. It stands next to the command if at least this number of characters fits
there, else above the command."""


def draw_trace(
    view: TraceView,
    width: int,
    *,
    plain: bool = False,
    lines: int = 1,
    next_steps: str | None = None,
    everything: bool = False,
) -> RenderableType:
    """Draw a trace: header, findings, the heads and memories with the largest effects, the layers, the attribution.

    Args:
        plain: leave out bars and symbols.
        lines: number of tokens in each cell of the table of layers.
        next_steps: the value of --model in the commands to try next, which the output ends with; None to suggest no
            commands.
        everything: show all layers, events (saturation, elimination) and components.
    """
    parts = [_header(view, width, lines), *_findings(view, plain)]
    if view.heads is not None:
        parts += [draw_heads(view, view.heads, width, plain=plain), Text()]
    parts += _described(view)
    if view.memories is not None:
        parts += [draw_memories(view, view.memories, width, plain=plain), Text()]
    symbols = everything and not plain
    parts.append(draw_layers(view, width, symbols=symbols, lines=lines, everything=everything))
    if everything:
        parts += _events(view, plain)
    for attribution in view.attributions:
        parts += [Text(), draw_attribution(attribution, width, plain=plain, everything=everything)]
    return Group(*parts, *([] if next_steps is None else _next_steps(view, next_steps, width)))


def _next_steps(view: TraceView, model_given: str, width: int) -> list[RenderableType]:
    """Suggest three commands: show the memory that matters most, repeat the trace without it, or open the explorer."""
    rows = [] if view.memories is None else [row for row in view.memories.rows if (row.score or 0.0) > 0]
    measured = sorted((row for row in rows if row.without is not None), key=lambda row: row.without or 0.0)
    best = next(iter([*measured, *view.described, *rows]), None)
    if best is None:
        return []
    name = best.name
    model = f" --model {shlex.quote(model_given)}" if model_given else ""
    steps = {
        f"unembed value {name}{model}": f"what {name} promotes, and on what text it fires",
        f"unembed trace {shlex.quote(view.prompt)} --set {name}=0{model}": "the same prompt without it",
        f"unembed serve {shlex.quote(view.prompt)}{model}": "all of this in a browser",
    }
    title: list[RenderableType] = [Text(), Text("Try next", style="bold")]
    if max(map(len, steps)) + _REMARK > width:  # no line break is inserted in a command, so that it can be copied
        return [
            *title,
            *(
                Text.assemble(
                    (f"# {what}\n", "dim"), visible_rich(command, prose=True), no_wrap=True, overflow="ignore"
                )
                for command, what in steps.items()
            ),
        ]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for command, what in steps.items():
        table.add_row(visible_rich(command, prose=True), what)
    return [*title, table]


def draw_explanation(view: TraceView, width: int, *, plain: bool = False, everything: bool = False) -> RenderableType:
    """Draw the output of `unembed explain`: header, the target's rank in each layer, the attributions of its logit."""
    parts = [_header(view, width, 1), draw_layers(view, width, symbols=not plain, everything=everything)]
    parts += _events(view, plain)
    for attribution in view.attributions:
        parts += [Text(), draw_attribution(attribution, width, plain=plain, everything=everything)]
    return Group(*parts)


def _header(view: TraceView, width: int, lines: int) -> RenderableType:
    first = Text.assemble((view.model, "bold"), ("  " + view.sizes, "dim"))
    tokens = Text()
    start = 0
    for text, count in join_bytes([token.token for token in view.tokens]):
        here = start <= view.position < start + count
        style = "dim" if view.roles is not None and view.roles[start] is None else ""
        tokens.append_text(token_text(text, "reverse" if here else style, cells=40))
        tokens.append(f"×{count} " if count > 1 else " ", style="dim")  # number of tokens that form this character
        start += count
    tokens.rstrip()
    count = max(lines, _fitting(view.prediction, width - 2))
    predicted = Text.assemble("→ ", candidates_text(view.prediction, count, view.target.id))
    parts = [first, Text(), tokens, *_roles(view), predicted]
    if view.without_edits is not None:
        edited = Text.assemble(("edited  ", "bold"), ", ".join(view.edits))
        count = max(lines, _fitting(view.without_edits, width - 10))
        before = Text.assemble(("without → ", "dim"), candidates_text(view.without_edits, count, None))
        parts += [edited, before]
    return Group(*parts, Text())


def _roles(view: TraceView) -> list[Text]:
    """List, for a conversation, the positions of the tokens of each role (user, assistant, ...)."""
    if view.roles is None:
        return []
    turns: list[str] = []
    start = 0
    for role, group in groupby(view.roles):
        end = start + len(list(group)) - 1
        if role is not None:
            turns.append(f"{role} {start}" + (f" to {end}" if end > start else ""))
        start = end + 1
    return [Text.assemble(("roles  ", "bold"), ", ".join(turns), ("; the other tokens are the chat template's", "dim"))]


def _fitting(candidates: Sequence[Candidate], width: int) -> int:
    """Return the number of candidates that fit in one line, at least one."""
    counts = range(1, len(candidates) + 1)
    return max((n for n in counts if candidates_text(candidates, n, None).cell_len <= width), default=1)


def _findings(view: TraceView, plain: bool) -> list[RenderableType]:
    """List the findings, most important first."""
    rows = [(Text("•", style=ACCENT), one.sentence) for one in view.findings]
    return [_with_symbols(rows, plain), Text()] if rows else []


def _events(view: TraceView, plain: bool) -> list[RenderableType]:
    """Describe the events (saturation, elimination) in sentences, each with its symbol from the table of layers."""
    rows = [
        (Text(SIGNS.get(event.kind, ""), style=EVENT_STYLE.get(event.kind, "")), event.sentence)
        for layer in view.layers
        for event in layer.events
    ]
    return [Text(), _with_symbols(rows, plain)] if rows else []


def _with_symbols(rows: Sequence[tuple[Text, str]], plain: bool) -> Table:
    """List sentences, each next to its symbol; in plain output, the sentences alone."""
    table = Table.grid(padding=(0, 1, 0, 0))
    if not plain:
        table.add_column(width=1)
    table.add_column()
    for symbol, sentence in rows:
        table.add_row(*([] if plain else [symbol]), Text(sentence))
    return table


def _described(view: TraceView) -> list[RenderableType]:
    """Draw a line for each memory with a description that promotes the target."""
    if not view.described:
        return []
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    places = decimals_of(row.effect for row in view.described)
    for row in view.described:
        table.add_row(row.name, signed_text(row.effect, places), visible_rich(row.description, prose=True))
    title = Text.assemble(("Memories that promote ", "bold"), token_text(view.target.token, ACCENT, cells=24))
    note = "by effect on its logit over the average token's"
    of_lens = view.provenance["notes"].get("descriptions")
    remark = [] if of_lens is None else [Text(f"{of_lens[0].upper()}{of_lens[1:]}.", style="dim")]
    return [title.append(f"   {note}", style="dim"), table, *remark, Text()]
