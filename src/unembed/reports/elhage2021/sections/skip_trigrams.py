"""Sections about skip-trigrams: what the heads of a layer raise most, how that stands in a corpus, and their bugs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unembed.attention.circuits import Circuits
from unembed.attention.skip_trigrams import CorpusCounts, SkipTrigram, count_in_corpus
from unembed.reports.document.model import Exhibit, Section
from unembed.results import Provenance, Table


@dataclass(frozen=True)
class HeadSkipTrigrams:
    """The triples that one head raises most, and how each stands in a corpus."""

    head: int
    triples: tuple[SkipTrigram, ...]
    seen: tuple[CorpusCounts, ...]

    @property
    def occurring(self) -> int:
        """Triples that occur in the corpus."""
        return sum(s.output_with_source > 0 for s in self.seen)

    @property
    def likelier(self) -> int:
        """Of these, how many whose output follows the destination more often when the source stands earlier."""
        return sum(s.output_with_source > 0 and not s.rate_with <= s.rate_without for s in self.seen)


def skip_trigrams_by_head(
    circuits: Circuits, layer: int, top: int, basis: str, corpus: Any, among: Tensor | None
) -> list[HeadSkipTrigrams]:
    """The top triples of every head of a layer, checked in one pass over the corpus; heads in their order."""
    found = [circuits.skip_trigrams(layer, h, top, basis=basis, among=among) for h in range(circuits.lm.n_heads)]
    flat = [(t.source, t.destination, t.output) for triples in found for t in triples]
    seen = iter(count_in_corpus(circuits.lm, flat, corpus))
    return [HeadSkipTrigrams(h, tuple(triples), tuple(next(seen) for _ in triples)) for h, triples in enumerate(found)]


def overview_section(layer: int, found: Sequence[HeadSkipTrigrams], provenance: Provenance) -> Section:
    """Every head of the layer: how many of its top triples the corpus holds, and how much the source matters there."""
    times = [sum(s.output_with_source for s in r.seen) for r in found]
    expected = [sum(s.with_source * s.rate_without for s in r.seen if s.without_source) for r in found]
    columns = {
        "head": [f"{layer}.{r.head}" for r in found],
        "triples": [len(r.triples) for r in found],
        "copy_the_source": [sum(t.source == t.output for t in r.triples) for r in found],
        "in_the_corpus": [r.occurring for r in found],
        "likelier_after_source": [r.likelier for r in found],
        "times": times,
        "times_expected": expected,
    }
    text = (
        "A triple is a source, a destination that attends to it, and an output that the head then raises: `source ... "
        "destination` and then `output`. For every head its largest triples, and how these stand in the corpus: in how "
        "many the output does come, and in how many of those more often than after the same destination without the "
        "source. Times: how often in all; expected: how often if the source made no difference.",
    )
    table = Table(f"Skip-trigrams of the heads of layer {layer}", columns, provenance)
    return Section("Skip-trigrams", text, (Exhibit("skip_trigrams", table),))


def skip_trigram_section(
    circuits: Circuits,
    layer: int,
    head: int,
    found: Sequence[SkipTrigram],
    provenance: Provenance,
    seen: Sequence[CorpusCounts] | None = None,
) -> Section:
    """The triples that a head raises most; with `seen`, how they stand in a corpus."""
    lm = circuits.lm
    columns: dict[str, list[Any]] = {
        f"{part}_token": lm.token_strings(torch.tensor([getattr(t, part) for t in found], dtype=torch.long))
        for part in ("source", "destination", "output")
    }
    for part in ("attention", "effect", "score"):
        columns[part] = [float(getattr(t, part)) for t in found]
    note = (
        "Attention: score of the destination for the source, above its mean over sources. Effect: logit of the output "
        "where the source is attended to, above the mean over outputs. Score: their product."
    )
    if seen is not None:
        columns["times"] = [s.output_with_source for s in seen]
        columns["rate_with_source"] = [_or_none(s.rate_with) for s in seen]
        columns["rate_without"] = [_or_none(s.rate_without) for s in seen]
        copies = [i for i, t in enumerate(found) if t.source == t.output]
        if copies:
            plausible = sum(seen[i].output_with_source + seen[i].output_without_source > 0 for i in copies)
            note += (
                f" {len(copies)} of the {len(found)} triples copy the source; {plausible} of them to a place where the "
                "corpus has it follow the destination, which is primitive in-context learning."
            )
    title = f"Skip-trigrams of head {layer}.{head}: source ... destination, then output"
    percent = ("rate_with_source", "rate_without") if seen is not None else ()
    return Section(
        f"Skip-trigrams of head {layer}.{head}",
        (note,),
        (Exhibit(f"skip_trigrams_{layer}_{head}", Table(title, columns, provenance), percent=percent),),
    )


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def bug_section(
    circuits: Circuits,
    layer: int,
    head: int,
    sources: Sequence[int],
    basis: str,
    provenance: Provenance,
    corpus: Any,
    among: Tensor | None = None,
) -> Section:
    """Pairs that a head raises after a source although they never occur: both halves do, in other pairs.

    Of the sources given, the one with most of them is shown.
    """
    lm = circuits.lm
    tried = [circuits.skip_trigram_bugs(layer, head, s, corpus, basis=basis, among=among) for s in sources]
    names = lm.token_strings(torch.tensor(list(sources), dtype=torch.long))
    counts = Table(
        f"Sources tried for head {layer}.{head}",
        {
            "source_token": names,
            "raised_pairs": [int((b.score > 0).sum()) for b in tried],
            "occurring": [int(((b.seen > 0) & (b.score > 0)).sum()) for b in tried],
            "crossed": [len(b.pairs) for b in tried],
        },
        provenance,
    )
    best = max(range(len(tried)), key=lambda i: len(tried[i].pairs))
    pairs = tried[best].pairs[:20]
    crossed = Table(
        f"Crossed pairs of head {layer}.{head}",
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
        "the one without the other, because where it looks and what it writes are separate circuits. Of the 20 "
        "destinations and 20 outputs it raises most, a pair is crossed if destination and output each occur in another "
        f"of these pairs in the corpus, and never in this one. Shown is `{names[best]}`, of the sources tried the one "
        "with the most.",
    )
    return Section(
        "Skip-trigram bugs", text, (Exhibit("skip_trigram_sources", counts), Exhibit("skip_trigram_bugs", crossed))
    )
