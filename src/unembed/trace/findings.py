"""Write up to three sentences about a prediction: what decides it, when it settles, and which token it displaced.

To find what decides it, components of the model are removed one at a time. A lens shows when the prediction settles,
and which token was the most likely before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unembed.models.structure.mixer_names import mixer_name, site_name
from unembed.names import head_name
from unembed.results import format_number, format_probability, format_signed, visible
from unembed.stream.massive_activations import MASSIVE
from unembed.trace.settling import Settling, ranges_of
from unembed.trace.view import READERS, Finding, HeadSource, LayerView

if TYPE_CHECKING:
    from unembed.models.decoder import Decoder
    from unembed.trace.removals import Part, Removal

DEFINITIONS = {
    "part": "The parts that add most to the token's lead were removed one at a time (their output at "
    "this position set to zero); without this one the token's probability falls most. Heads that read their own "
    "position, as an FFN does, are left out. If a part comes close to the largest whose source or description is "
    "known, that part is named first.",
    "settled": "The first layer after which the token is first, and after each layer from there on, as the lens reads "
    "the stream.",
    "displaced": "The token that the lens read as the first before that.",
    "massive": f"The stream after a layer has massive activations if it is over {MASSIVE} times as long as the layer's "
    "median over the prompt (Sun et al. 2024). Lenses describe usual streams.",
}
"""The definition of each kind of finding. The kinds head, memory and layer share that of "part"."""

FEWER = 0.5
"""A component decides the prediction if, without it, the token is no longer the most likely, or its probability is at
most this share of the original one."""
LEAST = 0.3
"""A component decides the prediction only if the token's log-odds fall at least this much without it, in nats."""
CLOSE = 0.8
"""An effect counts as close to the largest one if it is at least this share of the largest."""
GAIN = 0.02
"""A finding states the rise of another token's probability only if it is at least this large."""
SHOWN = 0.005
"""For a component that does not decide the prediction, a finding states the fall of the token's probability only if
it is at least this large."""


@dataclass(frozen=True)
class Measured:
    """What was measured about the prediction at a position."""

    token: int
    """The token that is explained."""
    probability: float
    """The model's probability of `token`."""
    position: int
    """The position after which the token is predicted."""
    removals: Sequence[Removal]
    """The components that were removed, one at a time."""
    sources: Mapping[tuple[int, int], HeadSource]
    """By (layer, head): the source token from which most of the head's effect comes; for some heads only."""
    descriptions: Mapping[tuple[int, int], str]
    """By (layer, index): the memory's description in words; for some memories only."""
    left_out: Collection[tuple[int, int]] = ()
    """Heads that are not named as deciding, because most of their effect comes from their own position."""
    against: int | None = None
    """The token that the user chose to compare with."""
    difference: float | None = None
    """The model's difference of the two logits; None if `against` is None."""
    relations: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """By (layer, head): how a head's weights map one word to another, such as "country to capital"; for some heads."""
    massive: Sequence[float] = ()
    """By layer: how many times as long as usual the stream is after it, where it has massive activations, else 0."""


def findings(
    lm: Decoder, measured: Measured, settled: Settling | None, layers: Sequence[LayerView], basis: str
) -> list[Finding]:
    """Return the findings at a position, the most important first.

    Args:
        settled: when the token settles, as read from `layers`; None if it is not first after the last layer.
        layers: all layers at that position, with the ranks and probabilities of the token.
        basis: how the stream was read as tokens.
    """
    reader, name = READERS[basis], _named(lm, measured.token)
    found = [_part(lm, measured)]
    massive = _massive(measured)
    if settled is None:
        found.append(_never_first(name, layers, reader))
    else:
        found.append(_settled(lm, name, settled, len(layers), reader))
        found.append(None if massive else _displaced(lm, settled, reader))
    return [one for one in (*found, massive) if one is not None]


def _part(lm: Decoder, measured: Measured) -> Finding | None:
    """Return the finding that names the component which decides: a head or memory, else a layer's attention or FFN."""
    small = [one for one in measured.removals if one.part.index is not None and not _is_left_out(one.part, measured)]
    best = _most(small)
    layer = _most([one for one in measured.removals if one.part.index is None])
    if best is not None and _decides(best, measured):
        return _deciding(lm, _explained(best, small, measured), best, measured)
    if layer is not None and _decides(layer, measured):
        called, without = _capital(_called(lm, layer.part, measured)), _without(lm, layer, measured)
        sentence = f"{called} decides{_over(lm, measured)} as a whole: without what it writes here {without}."
        if best is not None:
            sentence += _not_alone(lm, small, best, measured)
        return _finding(layer, sentence, measured)
    if best is None:
        return None
    called, without = _called(lm, best.part, measured), _fall(lm, best, measured)
    sentence = f"Of {_count(small, measured)} none decides alone; {called} matters most: without it {without}."
    if len(small) == 1:
        sentence = f"{_capital(called)} alone does not decide: without it {without}."
    return _finding(best, sentence, measured)


def _deciding(lm: Decoder, named: Removal, best: Removal, measured: Measured) -> Finding:
    """Return the finding of a part that decides, and of the part `best` with the largest effect if it is another."""
    called, without = _capital(_called(lm, named.part, measured)), _without(lm, named, measured)
    if named is best:
        return _finding(named, f"{called} decides{_over(lm, measured)}: without it {without}.", measured)
    both = f"{called} and {_called(lm, best.part, measured)} decide{_over(lm, measured)}"
    falls = "" if measured.difference is not None else f"{_named(lm, measured.token)} falls "
    sentence = f"{both}: without the first {without}; without the second {falls}to {_after(best, measured)}."
    return _finding(named, sentence, measured)


def _not_alone(lm: Decoder, small: Sequence[Removal], best: Removal, measured: Measured) -> str:
    """Say that no single head or memory decides, and which one matters most if its effect is large enough to state."""
    called, change = _called(lm, best.part, measured), _change(best, measured)
    if len(small) == 1:
        return f" {_capital(called)} does not alone ({change})."
    if measured.difference is None and measured.probability - best.probability < SHOWN:
        return f" Of {_count(small, measured)} none does alone."
    return f" Of {_count(small, measured)} none does alone; {called} matters most ({change})."


def _finding(removal: Removal, sentence: str, measured: Measured) -> Finding:
    part = removal.part
    source = None
    if part.kind == "head" and part.index is not None and (part.layer, part.index) in measured.sources:
        source = measured.sources[part.layer, part.index].position
    kind, point = ("layer" if part.index is None else part.kind), "resid_mid"
    if part.kind in ("memory", "ffn"):
        point = "resid_post"
    return Finding(kind, sentence, DEFINITIONS["part"], removal.effect, part.layer, point, part.index, source)


def _most(removals: Sequence[Removal]) -> Removal | None:
    """Return the removal with the largest effect; None if no effect is positive."""
    best = max(removals, key=lambda one: one.effect, default=None)
    return None if best is None or best.effect <= 0 else best


def _explained(best: Removal, removals: Sequence[Removal], measured: Measured) -> Removal:
    """Return a removal that decides with nearly the largest effect and whose component is explained, or else `best`."""
    close = sorted((one for one in removals if one.effect >= CLOSE * best.effect), key=lambda one: -one.effect)
    explained = (one for one in close if _is_explained(one.part, measured) and _decides(one, measured))
    return next(explained, best)


def _is_explained(part: Part, measured: Measured) -> bool:
    """Return True for a memory with a description, and for a head whose main source token is known.

    The first token does not count as a source: heads often attend to it when they have nothing else to read.
    """
    if part.index is None:
        return False
    place = part.layer, part.index
    if part.kind == "memory":
        return place in measured.descriptions
    return place in measured.sources and measured.sources[place].position > 0


def _is_left_out(part: Part, measured: Measured) -> bool:
    return part.kind == "head" and (part.layer, part.index) in measured.left_out


def _count(small: Sequence[Removal], measured: Measured) -> str:
    """Return how many heads and memories were removed, in words that leave out the heads that are not counted."""
    kinds = {one.part.kind for one in small}
    if kinds == {"memory"}:
        return f"{len(small)} memories"
    left_out = any(_is_left_out(one.part, measured) for one in measured.removals)
    if left_out:
        return f"{len(small)} {'memories and ' if 'memory' in kinds else ''}heads that read other tokens"
    return f"{len(small)} {'heads and memories' if 'memory' in kinds else 'heads'}"


def _decides(removal: Removal, measured: Measured) -> bool:
    if measured.difference is not None:
        return removal.effect >= max(LEAST, FEWER * measured.difference)
    p = removal.probability
    return p <= FEWER * measured.probability or (removal.first != measured.token and removal.effect >= LEAST)


def _called(lm: Decoder, part: Part, measured: Measured) -> str:
    """Name a component in words, with its source token or description if known."""
    if part.index is None:
        block = lm.structure.blocks[part.layer]
        what = "FFN" if part.kind == "ffn" or block.mixer is None else site_name(block.mixer)
        return f"the {what} of layer {part.layer}"
    place = part.layer, part.index
    if part.kind == "memory":
        description = measured.descriptions.get(place)
        return f"memory {lm.memory_name(*place)}" + (f" ({visible(description, prose=True)})" if description else "")
    source = measured.sources.get(place)
    role = measured.relations.get(place)
    name = f"head {head_name(*place)}" + ("" if role is None else f" (maps {role})")
    if source is None:
        return name
    itself = " itself" if source.position == measured.position else ""
    return f"{name}, reading {_quoted(source.token)}{itself},"


def _fall(lm: Decoder, removal: Removal, measured: Measured) -> str:
    """Say how the token's probability (or logit difference) falls without a component."""
    falls = "the difference of their logits" if measured.difference is not None else _named(lm, measured.token)
    return f"{falls} falls from {_change(removal, measured)}"


def _without(lm: Decoder, removal: Removal, measured: Measured) -> str:
    """Say how the token's probability (or logit difference) falls without a component, and which token gains most."""
    fallen = _fall(lm, removal, measured)
    if measured.difference is not None or removal.gained_to - removal.gained_from < GAIN:
        return fallen
    before, after = _from_to(removal.gained_from, removal.gained_to)
    return f"{fallen} and {_named(lm, removal.gained)} rises from {before} to {after}"


def _change(removal: Removal, measured: Measured) -> str:
    """Write the token's probability (or the logit difference) with and without a component."""
    if measured.difference is not None:
        return f"{format_signed(measured.difference)} to {_after(removal, measured)}"
    return " to ".join(_from_to(measured.probability, removal.probability))


def _after(removal: Removal, measured: Measured) -> str:
    """Write the token's probability (or the logit difference) without a component."""
    if measured.difference is not None:
        return format_signed(measured.difference - removal.effect)
    return _from_to(measured.probability, removal.probability)[1]


def _over(lm: Decoder, measured: Measured) -> str:
    """Name the two tokens that are compared; empty if the user chose no second token."""
    if measured.against is None:
        return ""
    return f" for {_named(lm, measured.token)} over {_named(lm, measured.against)}"


def _settled(lm: Decoder, name: str, settled: Settling, n_layers: int, reader: str) -> Finding:
    nats = _log_ratio(settled.probability_after, settled.probability_before)
    place, ten = _update(lm, settled), settled.first_ten
    if settled.cause == "embedding":
        clause = "is first from the embedding on, before any layer"
    elif settled.layer < n_layers - 1 or n_layers == 1:
        clause = f"is first{_earlier(settled)} from {place} on"
    else:
        clause = f"is first{_earlier(settled) or ' only'} after {place}, the last"
        clause += "" if ten is None or settled.first_earlier else f", and among the first ten from layer {ten} on"
    sentence = f"By {reader}, {name} {clause}."
    return Finding("settled", sentence, DEFINITIONS["settled"], nats, settled.layer, _point(settled), None)


def _earlier(settled: Settling) -> str:
    """Say after which layers the token was already first, before another displaced it; empty if after none."""
    if not settled.first_earlier:
        return ""
    return f" after {_layers(settled.first_earlier)}, and again"


def _layers(ranges: Sequence[range]) -> str:
    """Name the layers of some ranges, such as "layers 3 and 5 to 7"; of more than two ranges, only the first two."""
    spans = [f"{one.start}" if len(one) == 1 else f"{one.start} to {one[-1]}" for one in ranges]
    listed = " and ".join(spans) if len(spans) < 3 else f"{spans[0]}, {spans[1]} and others"
    return f"layer{'s' if sum(map(len, ranges)) > 1 else ''} {listed}"


def _displaced(lm: Decoder, settled: Settling, reader: str) -> Finding | None:
    other = settled.displaced
    # Lenses read a lone space where they read nothing about the prompt.
    if other is None or lm.token_strings([other.id])[0] == " ":
        return None
    since = "" if settled.displaced_since is None else f", since layer {settled.displaced_since}"
    sentence = f"Until then {reader} has {_named(lm, other.id)} first ({_percent(other.probability)}){since}."
    nats = _log_ratio(settled.probability_after, other.probability)
    return Finding("displaced", sentence, DEFINITIONS["displaced"], nats, settled.layer, _point(settled), None)


def _never_first(name: str, layers: Sequence[LayerView], reader: str) -> Finding:
    best = min(layers, key=lambda one: (one.rank_after, -one.layer))
    last = layers[-1]
    clause = f"is never first; its best rank is {best.rank_after:,}, after layer {best.layer}"
    clause += "" if best is last else f", and {last.rank_after:,} after the last"
    nats = _log_ratio(best.probability_after, best.probability_before)
    sentence = f"By {reader}, {name} {clause}."
    return Finding("settled", sentence, DEFINITIONS["settled"], nats, best.layer, "resid_post", None)


def _massive(measured: Measured) -> Finding | None:
    """Return the finding that the stream has massive activations at the position; None if it has none."""
    layers = [layer for layer, times in enumerate(measured.massive) if times]
    if not layers:
        return None
    times = format_number(max(measured.massive), decimals=0)
    sentence = (
        f"After {_layers(ranges_of(layers))} the stream here is up to {times} times as long as usual (massive "
        "activations): the tokens that a lens reads there say little."
    )
    return Finding("massive", sentence, DEFINITIONS["massive"], 0.0, layers[0], "resid_post", None)


def _update(lm: Decoder, settled: Settling) -> str:
    """Name the layer, or its attention or FFN, after which the prediction settles."""
    block = lm.structure.blocks[settled.layer]
    if settled.cause == "layer" and block.feed_forward is not None and block.mixer is not None:
        return f"layer {settled.layer}"
    is_ffn = settled.cause == "ffn" or block.mixer is None
    return f"the {'FFN' if is_ffn else mixer_name(block)} of layer {settled.layer}"


def _point(settled: Settling) -> str:
    return {"mixer": "resid_mid", "embedding": "resid_pre"}.get(settled.cause, "resid_post")


def _log_ratio(after: float, before: float) -> float:
    return math.log(after / before) if before > 0 and after > 0 else 0.0


def _percent(probability: float, places: int | None = None) -> str:
    return "under 0.1%" if probability < 0.001 else format_probability(probability, places)


def _from_to(before: float, after: float) -> tuple[str, str]:
    """Write two probabilities as percentages; with one decimal if they would otherwise look equal."""
    shown = _percent(before), _percent(after)
    return (_percent(before, 1), _percent(after, 1)) if shown[0] == shown[1] else shown


def _named(lm: Decoder, token: int) -> str:
    return _quoted(lm.token_strings([token])[0])


def _quoted(text: str) -> str:
    """Return a token's text, in quotation marks if it is punctuation, which would look like part of the sentence."""
    shown = visible(text)
    return shown if any(letter.isalnum() for letter in text) else f"“{shown}”"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
