"""A Mathematical Framework for Transformer Circuits (Elhage et al. 2021), every analysis on any model.

What needs two layers of attention is left out for models of one; what is exact for attention-only models is a stated
approximation elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from unembed.attention.weights.by_offset import positions_section
from unembed.attention.weights.paper import SOURCE
from unembed.corpus import CorpusSource, open_corpus
from unembed.document.model import Report, Section
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.reports.claims import Claim, Judgement
from unembed.reports.elhage2021.findings import CLAIMS
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.elhage2021.options import Options
from unembed.reports.elhage2021.published import ORIGINS
from unembed.reports.elhage2021.sections import heads, primitive, skip_trigrams, stream
from unembed.reports.options import options_of
from unembed.reports.published import published_section
from unembed.reports.random_weights import control_judgements
from unembed.reports.section_cache import cached_sections
from unembed.reports.stages import Work


def run(lm: Decoder, corpus: CorpusSource, work: Work, **options: Any) -> Report:
    """The study as a report.

    Args:
        corpus: anything `open_corpus` takes; held-out text.

    Raises:
        InvalidInput: an option is wrong, or the corpus is too small.
    """
    chosen, text = options_of(Options, "elhage2021", options), open_corpus(corpus)
    m = Measurements(lm, text, work, chosen)
    control: Mapping[str, Judgement] = {}
    if chosen.control:
        small = chosen.of_control()
        settings = {**vars(small), "corpus": text.fingerprint, "seed": work.seed}
        control = control_judgements(
            "elhage2021",
            claims_about(lm),
            lm,
            work,
            settings,
            lambda random, own: Measurements(random, text, own, small),
        )
    return report_of(m, control)


def claims_about(lm: Decoder) -> tuple[Claim[Measurements], ...]:
    """The claims that a model of this depth is measured for: without layers, those of its direct path alone."""
    return CLAIMS if lm.n_layers else tuple(claim for claim in CLAIMS if claim.section == "zero layers")


def report_of(m: Measurements, control: Mapping[str, Judgement]) -> Report:
    """The measurements as a report; a section is stored when it is made, and a stopped run continues with the next.

    Args:
        control: judgements on random weights, by name of the claim.
    """
    sections: list[Section] = []
    parts = list(_parts(m))
    for done, (name, make) in enumerate(parts):
        m.work.progress(name, done, len(parts))
        made = partial(_sections, name, make, m)
        sections += cached_sections(m.work, name, lambda made=made: [_with_findings(s, m, control) for s in made()])
    m.work.progress("done", len(parts), len(parts))
    kind = "attention only" if all(b.feed_forward is None for b in m.lm.structure.blocks) else "with FFNs"
    kind = kind if m.lm.n_layers else "no layers"
    return Report(
        "elhage2021",
        f"Transformer circuits of {m.lm.name}",
        "Attention heads by their weights and by what they do, next to what the paper found.",
        SOURCE,
        m.provenance,
        tuple(sections),
        {
            "model": m.lm.name,
            "layers": m.lm.n_layers,
            "heads a layer": m.lm.n_heads,
            "kind": kind,
            "basis": m.basis,
            "corpus": m.corpus.name,
            "seed": m.seed,
            "intervals": "95 %, bootstrap over windows, tokens, triples or sources; all heads are measured",
        },
    )


def _sections(name: str, make: Callable[[Measurements], list[Section]], m: Measurements) -> list[Section]:
    """The sections of one part; where the architecture lacks what it measures, one that states the reason."""
    try:
        return make(m)
    except Unsupported as refused:
        return [Section(_TITLES.get(name, name.capitalize()), (f"Not available: {refused}",))]


def _parts(m: Measurements) -> Iterator[tuple[str, Callable[[Measurements], list[Section]]]]:
    """What there is to do, in reading order."""
    yield "zero layers", stream.zero_layers
    if not m.lm.n_layers:
        return
    yield "heads", heads.all_heads
    yield "positions", positions
    yield "copying", heads.copying
    yield "skip-trigrams", skip_trigrams.sections
    yield "primitive in-context learning", primitive.sections
    yield "path expansion", stream.expansion
    if m.lm.n_layers > 1:
        yield "term importance", stream.importance
        yield "composition", heads.composition
        yield "induction", heads.induction
        yield "one position", heads.one_position
    yield "in-context learning", stream.in_context
    yield "stream", stream.stream
    yield "published values", published_values


def positions(m: Measurements) -> list[Section]:
    """Scores by offset; nothing where positions have no part in any score."""
    found = positions_section(m.circuits, m.basis, m.provenance)
    return [] if found is None else [found]


def published_values(m: Measurements) -> list[Section]:
    """Where the published values come from."""
    return [published_section(ORIGINS, m.provenance)]


_TITLES = {
    "zero layers": "Zero layers: bigrams",
    "copying": "Copying",
    "skip-trigrams": "Skip-trigrams",
    "skip-trigram bugs": "Skip-trigram bugs",
    "primitive in-context learning": "Primitive in-context learning",
    "path expansion": "Path expansion",
    "term importance": "How much each order of path matters",
    "composition": "Composition",
    "induction": "Induction",
    "one position": "One position",
    "in-context learning": "In-context learning",
    "stream": "The residual stream",
}
"""The section that contains the claims of each part."""


def _with_findings(section: Section, m: Measurements, control: Mapping[str, Judgement]) -> Section:
    rows = [claim.finding(m, control.get(claim.name)) for claim in CLAIMS if _TITLES[claim.section] == section.title]
    return replace(section, findings=tuple(found for found in rows if found is not None))
