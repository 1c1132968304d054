"""Section 5.1 and appendix A.5: saturation and elimination, and how sub-updates score the token (Tab. 4, 9, 10)."""

from __future__ import annotations

from typing import Any

from unembed.corpus import Segment
from unembed.document.intervals import columns, mean_of, share_of
from unembed.document.model import Exhibit, Figure, Finding, Section
from unembed.memories.event_sample import DOMINANT, EventSample
from unembed.memories.event_scores import Kind, counted_events, event_scores, saturation_shares
from unembed.models.decoder import Decoder
from unembed.reports.geva2022 import published
from unembed.reports.geva2022.measurements import Measurements
from unembed.results import Provenance, Table

KINDS: tuple[Kind, ...] = ("saturation", "elimination")
SHOWN = 40
_SCORES = {
    "raw": "e_w . m_i v_i, basis raw",
    "frozen": "e_w . m_i v_i through the final norm, basis frozen",
    "adaptive": "log p(w | x + m_i v_i) - log p(w | x) in nats, x before the FFN: linear scores of an adaptive softmax "
    "compare only within a band of words",
}


def section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """Tables, figures and findings."""
    sample, basis, provenance = m.sample, m.options.basis, m.provenance
    scores = _table_4(m)
    shares = _saturation_table(m)
    text = (
        "An example is a random prefix of a random sentence; the prediction is the most likely token after it. A "
        "saturation is the first layer from which on the prediction is first after every FFN; it is the FFN's if the "
        "token was not first before it. An elimination is the update that pushes its own top candidate furthest down. "
        "Both are found by full ranks in the model's own readout.",
        f"Scores are those of the reference token by the 10 dominant sub-updates ({_SCORES[basis]}); max, mean and min "
        "over the ten, averaged over events. As in the paper, saturations count if the FFN made them before the last "
        "layer. Its other numbers of Tab. 4 could not be confirmed and are left out.",
        *_fewer_than_ten(sample),
        published.CONTRADICTION,
    )
    figures = (
        Figure(
            "saturation",
            "Where predictions settle",
            "bar",
            "saturation_by_layer",
            "layer",
            ("share", "by_ffn"),
            ("all", "made by the FFN"),
            x_label="layer",
            y_label="share of examples",
            percent=True,
            references=() if published.for_model(sample.n_layers) else published.saturation_lines(),
        ),
    )
    exhibits = (
        Exhibit("event_counts", _counts(sample, provenance), f"Published: of {published.EXAMPLES:,} examples.",
                ("share", "published_gpt2_medium", "published_wikilm")),
        Exhibit("tab4", scores),
        Exhibit("saturation_by_layer", shares, "Published where the depth is WikiLM's (16) or GPT2 medium's (24).",
                ("share", "by_ffn")),
        Exhibit("saturation_published", _published_saturation(provenance), "Tab. 9-10, layers from 0.",
                ("wikilm", "gpt2"), folded=True),
        Exhibit("events", event_table(m.lm, sample, m.examples, provenance),
                "Open one with `unembed trace` on its prefix.", folded=True),
    )  # fmt: skip
    return Section("Saturation and elimination (Sec. 5.1)", text, exhibits, figures, findings)


def _fewer_than_ten(sample: EventSample) -> tuple[str, ...]:
    """A paragraph where some updates have fewer than ten active memories, as ReLU makes them; none elsewhere."""
    few = (sample.coefficients != 0).sum(axis=-1) < DOMINANT  # layer example
    if not few.any():
        return ()
    layers = ", ".join(f"{n} ({row.mean():.1%})" for n, row in enumerate(few) if row.any())
    return (
        f"{int(few.sum()):,} of the {few.size:,} updates, in {int(few.any(axis=0).sum()):,} of the {few.shape[1]:,} "
        f"examples, have fewer than {DOMINANT} active memories; what is missing to ten scores 0. By layer: {layers}.",
    )


def _counts(sample: EventSample, provenance: Provenance) -> Table:
    n = len(sample)
    rows = [
        ("saturations made by an FFN", int(sample.by_ffn().sum()), None, None),
        (
            "saturations made by an FFN before the last layer",
            len(counted_events(sample, "saturation")[0]),
            published.EVENTS["saturation"]["gpt2"],
            published.EVENTS["saturation"]["wikilm"],
        ),
        (
            "eliminations",
            len(counted_events(sample, "elimination")[0]),
            published.EVENTS["elimination"]["gpt2"],
            published.EVENTS["elimination"]["wikilm"],
        ),
    ]
    what, count, *printed = zip(*rows, strict=True)
    cells: dict[str, list[Any]] = {"event_text": list(what), **columns("share", [share_of(c, n) for c in count])}
    for model, counts in zip(("gpt2_medium", "wikilm"), printed, strict=True):
        cells[f"published_{model}"] = [None if c is None else c / published.EXAMPLES for c in counts]
    return Table("Events, as shares of the examples", cells, provenance)


def _table_4(m: Measurements) -> Table:
    sample, basis, provenance = m.sample, m.options.basis, m.provenance
    maximum = {"raw": published.SATURATION_MAX["gpt2"], "adaptive": published.SATURATION_MAX["wikilm"]}.get(basis)
    cells: dict[str, list[Any]] = {"event": [], "sub_updates": []}
    numbers: dict[str, list] = {"max": [], "mean": [], "min": []}
    for kind in KINDS:
        for random in (False, True):
            scores = event_scores(sample, kind, basis=basis, random=random)
            cells["event"].append(kind)
            cells["sub_updates"].append("random" if random else "dominant")
            known = maximum if kind == "saturation" and not random else None
            for name, per_event in (("max", scores.max), ("mean", scores.mean), ("min", scores.min)):
                values = per_event(axis=1) if len(scores) else []
                numbers[name].append(mean_of(values, seed=m.seed, published=known if name == "max" else None))
    for name, measured in numbers.items():
        cells |= columns(name, measured)
    return Table("Scores of the reference token (Tab. 4)", cells, provenance)


def _saturation_table(m: Measurements) -> Table:
    sample, provenance = m.sample, m.provenance
    layers, by_ffn, n = sample.saturation, sample.by_ffn(), len(sample)
    matched = published.for_model(sample.n_layers)
    known = published.SATURATION[matched] if matched else [None] * sample.n_layers
    found = saturation_shares(sample)
    cells: dict[str, list[Any]] = {"layer": list(range(sample.n_layers))}
    cells |= columns(
        "share",
        [
            share_of(round(s * n), n, published=None if k is None else k / 100)
            for s, k in zip(found, known, strict=True)
        ],
    )
    cells |= columns("by_ffn", [share_of(int(((layers == i) & by_ffn).sum()), n) for i in range(sample.n_layers)])
    return Table("Saturation by layer (Tab. 9-10)", cells, provenance)


def _published_saturation(provenance: Provenance) -> Table:
    wikilm, gpt2 = published.SATURATION["wikilm"], published.SATURATION["gpt2"]
    padded = [s / 100 for s in wikilm] + [None] * (len(gpt2) - len(wikilm))
    cells = {"layer": list(range(len(gpt2))), "wikilm": padded, "gpt2": [s / 100 for s in gpt2]}
    return Table("Saturation by layer as published", cells, provenance)


def event_table(lm: Decoder, sample: EventSample, examples: list[Segment], provenance: Provenance) -> Table:
    """Some events of each kind, the farthest moves first, with the prefix to trace them by."""
    by_number = {s.number: s for s in examples}
    chosen = []
    for kind in KINDS:
        of_kind = [(i, e) for i, e in sample.events() if e.kind == kind and e.cause == "ffn"]
        of_kind.sort(key=lambda pair: -abs(pair[1].rank_after - pair[1].rank_before))
        chosen += of_kind[:SHOWN]
    cells: dict[str, list[Any]] = {
        "event": [e.kind for _, e in chosen],
        "layer": [e.layer for _, e in chosen],
        "token": lm.token_strings([e.token for _, e in chosen]),
        "rank_before": [e.rank_before for _, e in chosen],
        "rank_after": [e.rank_after for _, e in chosen],
        "position": [e.position for _, e in chosen],
        "prefix_text": [lm.decode(by_number[int(sample.segment[i])].tokens) for i, _ in chosen],
        "prediction_token": lm.token_strings([int(sample.final[i]) for i, _ in chosen]),
        "segment": [int(sample.segment[i]) for i, _ in chosen],
    }
    return Table("Examples of events", cells, provenance)
