"""HTML sections of a trace's page: the heads, memories (FFN neurons) and components that contribute to a prediction."""

from __future__ import annotations

from html import escape

from unembed.cli.bars import Scale
from unembed.cli.trace.parts import times_usual
from unembed.cli.trace.tokens import sources_read
from unembed.results import (
    decimals_of,
    format_error,
    format_probability,
    format_signed,
    visible,
    visible_html,
)
from unembed.trace import AttributionView, HeadEffectView, SubUpdateView, TraceView


def described_section(view: TraceView) -> str:
    """Return the section of memories that promote the target token and have a description."""
    if not view.described:
        return ""
    rows = "".join(
        f"<tr><td>{row.name}</td><td class='n'>{format_signed(row.effect)}</td>"
        f"<td class='wrap'>{escape(visible(row.description, prose=True))}</td></tr>"
        for row in view.described
    )
    of_lens = view.provenance["notes"].get("descriptions")
    remark = "" if of_lens is None else f" {of_lens[0].upper()}{of_lens[1:]}."
    return (
        f"<section><h2>Memories that promote <span class='target'>{visible_html(view.target.token)}</span></h2>"
        "<p class='note'>Memories (FFN neurons) with a description: the effect is what the memory adds to the token's "
        f"logit over what it adds to the average token's.{remark}</p>"
        "<table><thead><tr><th>memory</th><th class='n'>effect</th><th>what it does in text</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></section>"
    )


def heads_section(view: TraceView) -> str:
    """Return the section of heads that contribute most to the explained logit or logit difference."""
    heads = view.heads
    if heads is None:
        return ""
    scale = Scale.of([row.effect for row in heads.rows], 100)
    places = decimals_of(row.effect for row in heads.rows)
    rows = "".join(
        f"<tr><td>{row.name}</td><td class='n'>{format_signed(row.effect, places)}</td>"
        f"<td>{_bar(row.effect, scale)}</td><td class='n'>{_without(row.without)}</td>"
        f"<td>{_sources(view, row)}</td></tr>"
        for row in heads.rows
    )
    target = visible_html(view.target.token)
    return (
        f"<section><h2>Heads behind <span class='target'>{target}</span>{_over(view)}</h2>"
        f"<p class='note'>{_columns(view, 'head')} reads: tokens its effect comes from, with its attention to each; "
        f"(3): position, from 0, of a token that occurs more than once. {heads.others:,} other heads together add "
        f"{format_signed(heads.others_effect)}.</p>"
        "<table><thead><tr><th>head</th><th class='n'>effect</th><th></th><th class='n'>without</th><th>reads</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></section>"
    )


def _columns(view: TraceView, kind: str) -> str:
    """Return the explanation of the columns `effect` and `without`."""
    target = visible_html(view.target.token)
    minus = "" if view.against is None else f" minus that of {visible_html(view.against.token)}"
    own = next((one.probability for one in view.prediction if one.id == view.target.id), None)
    now = "" if own is None else f" ({format_probability(own)} with it)"
    return (
        f"effect: direct effect on the logit of {target}{minus}, the largest first. without: probability of {target}"
        f"{now} when only this {kind} is ablated, indirect effects included."
    )


def _sources(view: TraceView, row: HeadEffectView) -> str:
    return " ".join(
        f'{visible_html(source.token)}{which}<span class="p">{format_probability(source.weight)}</span>'
        for source, which in sources_read(view, row)
    )


def _without(probability: float | None) -> str:
    return "" if probability is None else format_probability(probability)


def _over(view: TraceView) -> str:
    return "" if view.against is None else f" over {visible_html(view.against.token)}"


def memories_section(view: TraceView) -> str:
    """Return the section of memories that contribute most to the explained logit or logit difference."""
    memories = view.memories
    if memories is None:
        return ""
    scale = Scale.of([row.score or 0.0 for row in memories.rows], 100)
    has_triggers = any(row.trigger for row in memories.rows)
    column = "<th>fires most on</th>" if has_triggers else ""
    places = (
        decimals_of(row.coefficient for row in memories.rows),
        decimals_of(row.score or 0.0 for row in memories.rows),
    )
    rows = "".join(_memory(row, scale, has_triggers, *places) for row in memories.rows)
    on = ", ".join(f"{row.name} {format_signed(row.score or 0.0)}" for row in memories.always_on)
    apart = f"On for nearly every token: {on}. " if on else ""
    return (
        f"<section><h2>Memories behind <span class='target'>{visible_html(view.target.token)}</span>{_over(view)}</h2>"
        f"<p class='note'>{_columns(view, 'memory (FFN neuron)')} m: its coefficient; × usual: |m| over its usual size "
        "(root mean square on text). tokens: among the likeliest tokens, those that it raises most, or lowers most if "
        "its effect is negative; if this was not measured, what the lens reads in its value (promotes, suppresses).</p>"
        "<table><thead><tr><th>memory</th><th class='n'>m</th><th class='n'>× usual</th><th class='n'>effect</th>"
        f"<th></th><th class='n'>without</th><th>tokens</th>{column}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p class='note'>{apart}{memories.others:,} other active memories together add "
        f"{format_signed(memories.others_effect)}.</p></section>"
    )


def _memory(row: SubUpdateView, scale: Scale, has_triggers: bool, of_m: int, of_effect: int) -> str:
    texts, verb = (row.suppressed, "suppresses (lens)") if row.lowers else (row.promoted, "promotes (lens)")
    if row.moved is not None:
        texts, verb = (row.moved.lowered, "lowers") if row.lowers else (row.moved.raised, "raises")
    tokens = f"<small>{verb}</small> {' '.join(map(visible_html, texts))}"
    return (
        f"<tr><td class='id'>{row.name}</td><td class='n'>{format_signed(row.coefficient, of_m)}</td>"
        f"<td class='n'>{escape(times_usual(row))}</td><td class='n'>{format_signed(row.score or 0.0, of_effect)}</td>"
        f"<td>{_bar(row.score or 0.0, scale)}</td><td class='n'>{_without(row.without)}</td>"
        f"<td class='wrap'>{tokens}</td>"
        f"{_trigger(row) if has_triggers else ''}</tr>"
    )


def _trigger(row: SubUpdateView) -> str:
    found = row.trigger
    if found is None:
        return "<td></td>"
    following = "" if found.next_token is None else f" <small>{visible_html(found.next_token)}</small>"
    prefix = visible_html(found.prefix, prose=True)
    return f"<td class='wrap'>{prefix} <mark>{visible_html(found.token)}</mark>{following}</td>"


def _bar(value: float, scale: Scale, wide: str = "") -> str:
    width = 0.0 if scale.largest <= 0 else 100 * min(1.0, abs(value) / scale.largest)
    left, right = (width, 0.0) if value < 0 else (0.0, width)
    negative = f'<span class="l"><i style="width:{left:.1f}%"></i></span>' if scale.is_signed else ""
    sides = "" if scale.is_signed else " one"
    return (
        f'<span class="bar{wide}{sides}" aria-hidden="true">{negative}'
        f'<span class="r"><i style="width:{right:.1f}%"></i></span></span>'
    )


def attribution_section(attribution: AttributionView) -> str:
    """Return the section that shows a logit or logit difference as a sum of contributions of components."""
    scale = Scale.of([row.contribution for row in attribution.rows], 100)
    contributions = [
        (visible_html(row.label, prose=True), row.contribution, _bar(row.contribution, scale, " wide"))
        for row in attribution.rows
    ]
    if on := attribution.always_on:
        names = ", ".join(row.label.removeprefix("memory ") for row in on)
        contributions.append((f"always on: {escape(names)}", sum(row.contribution for row in on), ""))
    if attribution.others:
        # The row for all components that are not listed has no bar: their sum may be much larger than the largest
        # listed contribution, which sets the scale of the bars.
        contributions.append((f"{attribution.others:,} others together", attribution.others_contribution, ""))
    places = decimals_of(row.contribution for row in attribution.rows)
    rows = "".join(
        f"<tr><td>{label}</td><td class='n'>{format_signed(contribution, places)}</td><td>{bar}</td></tr>"
        for label, contribution, bar in contributions
    )
    against = "" if attribution.against is None else f" rather than {visible_html(attribution.against)}"
    what = "difference of logits" if attribution.against is not None else "logit"
    return (
        f"<section><h2>Why <span class='target'>{visible_html(attribution.token)}</span>{against}</h2>"
        f"<p class='note'>The {what}, {format_signed(attribution.logit)}, as the sum of what each "
        f"{escape(attribution.by)} adds.</p><table><tbody>{rows}</tbody></table>"
        f"<p class='proof'>Sum of contributions {format_signed(attribution.total)}, {what} "
        f"{format_signed(attribution.logit)}, relative error {format_error(attribution.error)}.</p></section>"
    )
