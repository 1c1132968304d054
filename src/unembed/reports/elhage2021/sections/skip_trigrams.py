"""Sections about skip-trigrams: what the heads of a layer raise most, how often it occurs, and their bugs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unembed.attention.circuits import Circuits
from unembed.attention.text.skip_trigrams import CorpusCounts, skip_trigram_section
from unembed.document.model import Exhibit, Section
from unembed.reports.elhage2021.measurements import BugTables, HeadSkipTrigrams, Measurements
from unembed.results import Provenance, Table


def sections(m: Measurements) -> list[Section]:
    """Skip-trigrams of the first heads in the corpus, those of the two heads that it confirms most, and their bugs."""
    shown = [r for r in sorted(m.skip_trigrams, key=lambda r: -r.likelier) if r.triples][:2]
    made = [overview_section(m.first_layer, m.skip_trigrams, m.provenance)]
    made += [skip_trigram_section(m.circuits, m.first_layer, r.head, r.triples, m.provenance, r.counts) for r in shown]
    return made if m.bugs is None else [*made, bug_section(m.circuits, m.bugs, m.provenance)]


def overview_section(layer: int, found: Sequence[HeadSkipTrigrams], provenance: Provenance) -> Section:
    """Every head of the layer: how many of its top triples the corpus holds, and how much the source matters there."""
    times = [sum(c.output_with_source for c in r.counts) for r in found]
    expected = [sum(c.with_source * c.rate_without for c in r.counts if c.without_source) for r in found]
    shuffled = [_likelier(r.shuffled) for r in found]
    columns = {
        "head": [f"L{layer}H{r.head}" for r in found],
        "triples": [len(r.triples) for r in found],
        "copy_the_source": [sum(t.source == t.output for t in r.triples) for r in found],
        "in_the_corpus": [r.occurring for r in found],
        "likelier_after_source": [r.likelier for r in found],
        "likelier_share": [_likelier(r.counts) for r in found],
        "likelier_share_shuffled": shuffled,
        "times": times,
        "times_expected": expected,
    }
    text = (
        "A triple is a source, a destination that attends to it, and an output that the head then raises: `source ... "
        "destination` and then `output`. For every head its largest triples, and how often they occur in the corpus: "
        "for how many the output does follow, and for how many of those more often than after the same destination "
        "without the source. Likelier share: of all triples whose destination occurs both with and without the source; "
        "shuffled: of the same triples with the sources of one another, the control. Times: how often in all; "
        "expected: how often if the source made no difference.",
    )
    table = Table(f"Skip-trigrams of the heads of layer {layer}", columns, provenance)
    percent = ("likelier_share", "likelier_share_shuffled")
    return Section("Skip-trigrams", text, (Exhibit("skip_trigrams", table, percent=percent),))


def _likelier(counts: Sequence[CorpusCounts]) -> float | None:
    """The share of triples whose output follows the destination more often with the source than without."""
    known = [c for c in counts if c.with_source and c.without_source]
    return sum(c.rate_with > c.rate_without for c in known) / len(known) if known else None


def bug_section(circuits: Circuits, bugs: BugTables, provenance: Provenance, top: int = 20) -> Section:
    """Pairs that a head raises after a source although they never occur: both halves do, in other pairs.

    Of the sources tried, the one with most of them is shown.
    """
    lm, tables = circuits.lm, bugs.tables
    names = lm.token_strings(torch.tensor([t.source for t in tables], dtype=torch.long))
    counts = Table(
        f"Sources tried for head L{bugs.layer}H{bugs.head}",
        {
            "source_token": names,
            "raised_pairs": [int((t.score > 0).sum()) for t in tables],
            "occurring": [t.occurring for t in tables],
            "occurring_by_chance": list(bugs.chance_occurring),
            "crossed": [len(t.pairs) for t in tables],
            "crossed_by_chance": list(bugs.chance_crossed),
        },
        provenance,
    )
    best = max(range(len(tables)), key=lambda i: len(tables[i].pairs))
    pairs = tables[best].pairs[:top]
    crossed = Table(
        f"Crossed pairs of head L{bugs.layer}H{bugs.head}",
        {
            "source_token": [names[best]] * len(pairs),
            "destination_token": lm.token_strings(torch.tensor([d for d, _, _ in pairs], dtype=torch.long)),
            "output_token": lm.token_strings(torch.tensor([o for _, o, _ in pairs], dtype=torch.long)),
            "score": [s for _, _, s in pairs],
        },
        provenance,
    )
    text = (
        "After a source a head raises every output it writes at every destination that attends there: it cannot raise "
        "the one without the other, because where it attends and what it writes are separate circuits. Of the 20 "
        "destinations and 20 outputs it raises most, a pair is crossed if destination and output each occur in another "
        "of these pairs in the corpus, and never in this one. By chance: means over tables of random tokens of the "
        f"same frequencies. Shown is `{names[best]}`, of the sources tried the one with the most.",
    )
    return Section(
        "Skip-trigram bugs", text, (Exhibit("skip_trigram_sources", counts), Exhibit("skip_trigram_bugs", crossed))
    )
