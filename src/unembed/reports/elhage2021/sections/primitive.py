"""Primitive in-context learning: heads of the first layer with attention raise what occurred earlier."""

from __future__ import annotations

from unembed.document.intervals import columns, mean_of
from unembed.document.model import Exhibit, Section
from unembed.reports.elhage2021.measurements import Measurements
from unembed.results import Table


def sections(m: Measurements) -> list[Section]:
    """By how much the first layer's heads lower the loss on repeated and on new tokens, and which triples copy."""
    found = m.term_importance
    gains = [mean_of(side.numpy(), seed=m.seed) for side in (found.repeated_gain, found.new_gain)]
    losses = Table(
        f"What the single heads of layer {m.first_layer} take off the loss of the direct path, nats a token",
        {"next_token_text": ["occurred earlier in the window", "is new in the window"], **columns("gain", gains)},
        m.provenance,
    )
    rows = [(r, [i for i, t in enumerate(r.triples) if t.source == t.output]) for r in m.skip_trigrams]
    follows = [
        sum(r.counts[i].output_with_source + r.counts[i].output_without_source > 0 for i in copies)
        for r, copies in rows
    ]
    heads = Table(
        f"Triples of layer {m.first_layer} that copy their source",
        {
            "head": [f"L{m.first_layer}H{r.head}" for r, _ in rows],
            "triples": [len(r.triples) for r, _ in rows],
            "copy_the_source": [len(copies) for _, copies in rows],
            "where_it_follows_in_the_corpus": follows,
        },
        m.provenance,
    )
    text = (
        "A head that copies raises a token because it occurred earlier, so that a model of one layer learns a little "
        "from its context. Patterns are those of the model's own run; the mean over a window's positions is taken "
        "first, and intervals are over windows. A copy is plausible where the token follows the "
        "destination in the corpus.",
    )
    return [
        Section("Primitive in-context learning", text, (Exhibit("repeated_tokens", losses), Exhibit("copied", heads)))
    ]
