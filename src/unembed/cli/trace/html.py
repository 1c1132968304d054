"""Write a trace as one self-contained HTML page, without scripts and external files, for light and dark mode."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from unembed.cli.trace.html_parts import attribution_section, described_section, heads_section, memories_section
from unembed.models import Candidate
from unembed.results import character_at, format_probability, visible, visible_html
from unembed.trace import READERS, EventView, LayerView, TraceView, mixer_of_all, mixers_in_words

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --card: #fff; --ink: #1d2433; --soft: #667085; --line: #e4e2dd;
  --accent: #0b7a4b; --for: #2f6fde; --against: #c2570c; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --card: #1b1f27; --ink: #e8eaf0; --soft: #98a2b3;
  --line: #2d333f; --accent: #4cc38a; --for: #6ea8fe; --against: #f29a4b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 0 0 .2rem; }
p.note { color: var(--soft); margin: 0 0 .8rem; max-width: 60rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.25rem;
  margin-top: 1.25rem; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; text-align: left; padding: .25rem .6rem; white-space: nowrap;
  font-size: .85rem; }
td { padding: .22rem .6rem; white-space: nowrap; border-top: 1px solid var(--line); }
th.n, td.n { text-align: right; } td.wrap { white-space: normal; min-width: 20rem; }
tr.new td { border-top: 2px solid var(--line); }
bdi, .id { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .92em; }
.mark { opacity: .45; } .p { color: var(--soft); font-size: .82em; margin: 0 .8em 0 .3em; }
.target bdi { color: var(--accent); font-weight: 650; }
.strip { display: flex; flex-wrap: wrap; gap: .3rem; margin: 1rem 0 .6rem; }
.strip span.token { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .15rem .5rem; }
.strip span.here { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
.strip sub { color: var(--soft); font-size: .7em; margin-left: .35em; }
.answer { font-size: 1.1rem; }
.grid td { border: 1px solid var(--card); padding: .3rem .5rem; font-size: .92em; }
.grid td { background: color-mix(in srgb, var(--accent) calc(var(--share) * 62%), transparent); }
.grid td.massive { color: var(--soft); font-style: italic; }
.grid th.layer { position: sticky; left: 0; background: var(--card); }
.grid .here { box-shadow: inset 2px 0 var(--accent), inset -2px 0 var(--accent); }
.bar { display: inline-grid; grid-template-columns: 1fr 1fr; width: 11rem; height: .8em; vertical-align: -.05em; }
.bar.one { grid-template-columns: 1fr; border-left: 1px solid var(--soft); }
.bar.wide { width: min(34rem, 50vw); }
.bar i { height: 100%; display: block; border-radius: 2px; }
.bar .l { border-right: 1px solid var(--soft); } .bar .l i { margin-left: auto; background: var(--against); }
.bar .r i { background: var(--for); }
.event { margin: .15rem 0; } .saturation { color: var(--accent); } .elimination { color: var(--against); }
.proof { color: var(--soft); margin: .8rem 0 0; } footer { color: var(--soft); font-size: .85rem; margin-top: 1.5rem; }
"""
_SIGNS = {"saturation": "◆", "elimination": "✕"}


def page(view: TraceView, provenance_line: str) -> str:
    """Return the HTML page of a trace."""
    title = f"{visible(view.prompt, prose=True)} · {view.model}"
    body = "".join(
        [
            _header(view),
            _grid(view),
            heads_section(view),
            described_section(view),
            memories_section(view),
            _layers(view),
            *(attribution_section(attribution) for attribution in view.attributions),
            f"<footer>{visible_html(provenance_line, prose=True)}</footer>",
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _header(view: TraceView) -> str:
    strip = "".join(
        f'<span class="token{" here" if token.position == view.position else ""}">{visible_html(token.token)}'
        f"<sub>{token.position}</sub></span>"
        for token in view.tokens
    )
    edited = ""
    if view.without_edits is not None:
        edited = (
            f'<p class="note">Edited: {escape(", ".join(view.edits))}. Without: '
            f"{_candidates(view.without_edits, None)}</p>"
        )
    return (
        f"<h1>{escape(view.model)}</h1><p class='note'>{escape(view.sizes)}</p><div class='strip'>{strip}</div>"
        f'<p class="answer">→ {_candidates(view.prediction, view.target.id)}</p>{edited}{_findings(view)}'
    )


def _findings(view: TraceView) -> str:
    rows = "".join(f'<li title="{escape(one.definition)}">{escape(one.sentence)}</li>' for one in view.findings)
    return f"<ol>{rows}</ol>" if rows else ""


def _candidates(candidates: Sequence[Candidate], target: int | None) -> str:
    return " ".join(
        f"<span{' class=target' if candidate.id == target else ''}>{visible_html(candidate.token)}</span>"
        f'<span class="p">{format_probability(candidate.probability)}</span>'
        for candidate in candidates
    )


def _grid(view: TraceView) -> str:
    if view.grid is None:
        return ""
    head = "".join(f"<th>{visible_html(token.token)}</th>" for token in view.tokens)
    rows = ""
    for layer, cells in zip(view.grid.layers, view.grid.rows, strict=True):
        of_layer = {i for i, layers in view.grid.massive.items() if layer in layers}
        drawn = "".join(_grid_cell(view, i, cell, i in of_layer) for i, cell in enumerate(cells))
        rows += f'<tr><th class="layer n">{layer}</th>{drawn}</tr>'
    massive = ""
    if view.grid.massive:
        massive = " In italics: massive activations (over 10 times the usual length), where a lens reads little."
    return (
        "<section><h2>Every layer, every position</h2>"
        f"<p class='note'>The first token that {escape(view.reader)} reads at {escape(view.grid.point)}; the stronger "
        f"the colour, the more probable. Hover for the rest.{massive}</p>"
        f"<table class='grid'><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
    )


def _grid_cell(view: TraceView, position: int, cell: Sequence[Candidate], is_massive: bool) -> str:
    first, share = cell[0], 0.0 if is_massive else cell[0].probability
    marks = {"target": first.id == view.target.id, "here": position == view.position, "massive": is_massive}
    classes = " ".join(name for name, holds in marks.items() if holds)
    hover = "\n".join(f"{visible(candidate.token)}  {format_probability(candidate.probability)}" for candidate in cell)
    return f'<td class="{classes}" style="--share:{share:.3f}" title="{escape(hover)}">{visible_html(first.token)}</td>'


def _layers(view: TraceView) -> str:
    has_middle = any(layer.middle is not None for layer in view.layers)
    rows = "".join(_layer_row(layer, view.target.id, has_middle) for layer in view.layers)
    names = ["before", f"after {mixer_of_all(view.layers)}", "after FFN"] if has_middle else ["before", "after"]
    by = "" if view.basis == "final" else f" by {READERS['final']}"
    events = "".join(_event(event, view.target.id, by) for layer in view.layers for event in layer.events)
    target = f'<span class="target">{visible_html(view.target.token)}</span>'
    hidden = (
        f" {view.hidden:,} tokens (bytes, or never learned) are not listed; ranks count them." if view.hidden else ""
    )
    here = character_at([token.token for token in view.tokens], view.position)
    mixers = mixers_in_words(view.layers)
    mixers = f" {escape(mixers[0].upper() + mixers[1:])}." if mixers else ""
    return (
        f"<section><h2>Layers at position {view.position} {visible_html(here)}</h2>"
        f"<p class='note'>Read by {escape(view.reader)}.{hidden}{mixers}</p>"
        f"<table><thead><tr><th class='n'>layer</th><th class='n'>rank of {target}</th>"
        f"{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr></thead><tbody>{rows}</tbody></table>{events}"
        "</section>"
    )


def _layer_row(layer: LayerView, target: int, has_middle: bool) -> str:
    middle = f"<td>{_candidates(layer.middle or [], target)}</td>" if has_middle else ""
    ranks = [layer.rank_before, layer.rank_middle, layer.rank_after]
    shown = " → ".join(f"{rank:,}" for rank in ranks if rank is not None)
    return (
        f"<tr><td class='n'>{layer.layer}</td><td class='n'>{shown}</td>"
        f"<td>{_candidates(layer.before[:1], target)}</td>{middle}<td>{_candidates(layer.after, target)}</td></tr>"
    )


def _event(event: EventView, target: int, by: str) -> str:
    """Return an event as HTML.

    Args:
        target: the id of the token that is highlighted.
        by: names the lens that found the event, such as " by the logit lens"; empty if the table uses the same lens.
    """
    token = f"<span{' class=target' if event.id == target else ''}>{visible_html(event.token)}</span>"
    kind = f'<span class="{event.kind}">{_SIGNS[event.kind]} {event.kind}</span>{by}'
    return f'<p class="event">{kind}, {escape(event.place)}: {token} {escape(event.happened)}</p>'
