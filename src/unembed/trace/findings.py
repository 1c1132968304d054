"""The findings of a trace at a position, in at most three sentences: when, by what, and what changed most.

A finding's weight is in nats of a token's log-probability or logit; the sentences are ordered by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from unembed.models.decoder import Decoder
from unembed.models.structure.mixer_names import site_name
from unembed.results import visible
from unembed.results.number_format import two_digits
from unembed.trace.view import EventView, Finding, LayerView

if TYPE_CHECKING:
    from unembed.trace.memory_effects import MemoryEffects
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace

DEFINITIONS = {
    "saturation": "The first layer from which on the model's prediction stays first. Its weight: how much that "
    "update changes the prediction's log-probability.",
    "memory": "The sub-update of all layers that adds most to the token's logit, or to its lead over the token that it "
    "is compared with, the final norm's scale fixed. Memories that are on for nearly every token are left out.",
    "writer": "The attention or FFN that adds most to the token's logit, or to its lead over the token that it is "
    "compared with, the final norm's scale fixed.",
    "change": "The update, of attention or FFN, across which the token's log-probability changes most; the first, "
    "which starts from the embedding alone, is left out.",
    "elimination": "The first candidate that an FFN pushes furthest down. Its weight: the log-probability it loses, or "
    "at least loses where it is no longer listed after.",
}
"""By kind: the definition of the finding."""


def findings(
    trace: Trace,
    question: Question,
    effects: MemoryEffects | None,
    position: int,
    layers: Sequence[LayerView],
) -> list[Finding]:
    """The findings at a position, the one of largest weight first.

    Args:
        question: the token, and what it is compared with.
        effects: what the memories add to the question, where the model has any.
        layers: all layers at that position, with the ranks and probabilities of the target.
    """
    target = question.token
    text, *other = trace.lm.token_strings([target] if question.against is None else [target, question.against])
    lead = f"the lead of {visible(text)} over {visible(other[0])}" if other else f"the logit of {visible(text)}"
    events = {event.kind: event for layer in layers for event in layer.events}
    steps = _steps(layers)
    # The first reading is that of the embedding, which is not a prediction and precedes every update.
    change = max(list(steps)[1:], key=lambda step: abs(steps[step]), default=None)
    found: list[Finding | None] = []
    settled = events.get("saturation")
    if settled is not None:
        # Where the reader follows another token, the change of the model's own prediction is not known here.
        nats = steps.get((settled.layer, _point(settled)), 0.0) if settled.id == target else 0.0
        found.append(_of_event(settled, nats))
    found.append(_writer(trace, question, position, lead) if effects is None else _memory(trace, effects, lead))
    dropped = events.get("elimination")
    same = settled is not None and settled.id == target and change == (settled.layer, _point(settled))
    last = [] if change is None or same else [_change(trace.lm, *change, steps[change], text, layers)]
    if dropped is not None:
        last.append(_of_event(dropped, _elimination_loss(dropped, layers[dropped.layer])))
    found += sorted(last, key=_weight, reverse=True)[:1]
    return sorted((one for one in found if one is not None), key=_weight, reverse=True)


def _definition(kind: str, lm: Decoder) -> str:
    """A definition, in which attention stands for what mixes tokens, in the words of the model."""
    only_attention = all(block.mixer is None or block.mixer.is_attention for block in lm.structure.blocks)
    return DEFINITIONS[kind] if only_attention else DEFINITIONS[kind].replace("attention or FFN", "token mixer or FFN")


def _weight(finding: Finding) -> float:
    return abs(finding.nats)


def _point(event: EventView) -> str:
    return {"ffn": "resid_post", "attention": "resid_mid", "mixer": "resid_mid"}.get(event.cause, "resid_pre")


def _of_event(event: EventView, nats: float) -> Finding:
    return Finding(event.kind, event.sentence, DEFINITIONS[event.kind], nats, event.layer, _point(event), None)


def _steps(layers: Sequence[LayerView]) -> dict[tuple[int, str], float]:
    """By layer and point: the change of the target's log-probability across the update that ends there."""
    steps: dict[tuple[int, str], float] = {}
    for one in layers:
        before = one.probability_before
        points = [("resid_mid", one.probability_middle), ("resid_post", one.probability_after)]
        for point, after in points:
            if after is not None:
                steps[one.layer, point] = math.log(after / before) if before > 0 and after > 0 else 0.0
                before = after
    return steps


def _change(lm: Decoder, layer: int, point: str, nats: float, text: str, layers: Sequence[LayerView]) -> Finding:
    one = layers[layer]
    before, after = one.probability_before, one.probability_after
    if one.probability_middle is not None:
        before, after = (before, one.probability_middle) if point == "resid_mid" else (one.probability_middle, after)
    sentence = (
        f"Layer {layer} {_update(lm, one, point)} changes the probability of {visible(text)} most "
        f"(× {two_digits(math.exp(nats))}): from {two_digits(100 * before)} % to {two_digits(100 * after)} %."
    )
    return Finding("change", sentence, _definition("change", lm), nats, layer, point, None)


def _update(lm: Decoder, one: LayerView, point: str) -> str:
    """What changes the stream on its way to a point of a layer."""
    block = lm.structure.blocks[one.layer]
    only_mixer = block.feed_forward is None and not block.late_writers
    if one.mixer and (point == "resid_mid" or only_mixer):
        return one.mixer
    return "FFN" if one.probability_middle is not None or not one.mixer else "as a whole"


def _elimination_loss(event: EventView, layer: LayerView) -> float:
    """The log-probability that the eliminated token lost; a lower bound where it is no longer listed after."""
    before = next((c.probability for c in layer.middle or layer.before if c.id == event.id), 0.0)
    after = next((c.probability for c in layer.after if c.id == event.id), layer.after[-1].probability)
    return math.log(after / before) if before > 0 and after > 0 else 0.0


def _memory(trace: Trace, effects: MemoryEffects, compared: str) -> Finding | None:
    """The memory that adds most to the question, those that are always on left out."""
    if effects.most is None:
        return None
    layer, index, effect = effects.most
    name = trace.lm.memory_name(layer, index)
    sentence = f"Of {effects.memories:,} memories, {name} adds most to {compared}: {effect:+.2f}."
    return Finding("memory", sentence, DEFINITIONS["memory"], effect, layer, "resid_post", index)


def _writer(trace: Trace, question: Question, position: int, compared: str) -> Finding | None:
    """The attention, other mixer or FFN that adds most to the question."""
    attribution = trace.attribution(question.token, position, question.against)
    of = [n for n, kind in enumerate(attribution.kinds) if kind in ("attention", "mixer", "ffn")]
    counted = torch.isin(attribution.kind, torch.tensor(of))
    best = int(torch.where(counted, attribution.contribution, -torch.inf).argmax())
    contribution, layer = float(attribution.contribution[best]), int(attribution.layer[best])
    if contribution <= 0:
        return None
    kind = attribution.kinds[int(attribution.kind[best])]
    site = trace.lm.structure.blocks[layer].mixer
    name = f"the {'FFN' if kind == 'ffn' or site is None else site_name(site)} of layer {layer}"
    sentence = f"Of {int(counted.sum()):,} updates, {name} adds most to {compared}: {contribution:+.2f}."
    point = "resid_post" if kind == "ffn" else "resid_mid"
    return Finding("writer", sentence, _definition("writer", trace.lm), contribution, layer, point, None)
