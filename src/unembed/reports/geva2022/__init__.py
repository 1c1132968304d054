"""Geva et al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the Vocabulary Space".

Sections 4 to 6 and the appendix on any decoder with dense feed-forward layers; gated, RMS-normed and sandwich-normed
ones are covered, as each section states. What the paper leaves open is an option; see `Options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unembed.corpus import CorpusSource, open_corpus
from unembed.document.model import Report
from unembed.models.decoder import Decoder
from unembed.reports.claims import Judgement, findings_by_section
from unembed.reports.geva2022.findings import CLAIMS
from unembed.reports.geva2022.measurements import Measurements, measure
from unembed.reports.geva2022.options import Options
from unembed.reports.geva2022.published import CONTRADICTION, ORIGINS
from unembed.reports.geva2022.sections import appendix, applications, concepts, events, layers
from unembed.reports.options import facts_of_memories, options_of
from unembed.reports.published import published_section
from unembed.reports.random_weights import control_judgements
from unembed.reports.stages import Work

SOURCE = (
    "Geva, Caciularu, Wang, Goldberg: Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the "
    "Vocabulary Space. EMNLP 2022."
)


def run(lm: Decoder, corpus: CorpusSource, work: Work, **options: Any) -> Report:
    """The study as a report.

    Args:
        corpus: what `unembed.open_corpus` takes; sentences, as in the paper.

    Raises:
        InvalidInput: an option is wrong, the corpus is too small, or the model has no tokenizer.
        Unsupported: the model has no memories.
    """
    chosen, text = options_of(Options, "geva2022", options), open_corpus(corpus)
    m = measure(lm, text, work, chosen)
    control: dict[str, Judgement] = {}
    if chosen.control:
        small = chosen.of_control()
        settings = {**vars(small), "corpus": text.fingerprint, "seed": work.seed}
        control = control_judgements(
            "geva2022", CLAIMS, lm, work, settings, lambda random, own: measure(random, text, own, small)
        )
    return report_of(m, control)


def report_of(m: Measurements, control: Mapping[str, Judgement]) -> Report:
    """The measurements as a report.

    Args:
        control: judgements on random weights, by name of the claim.
    """
    findings = findings_by_section(CLAIMS, m, control)
    sections = (
        concepts.section(m, findings["concepts"]),
        events.section(m, findings.get("events", ())),
        layers.section(m, findings.get("layers", ())),
        *applications.sections(m, findings),
        appendix.norm_section(m, findings["norm"]),
        appendix.contribution_section(m, findings["contribution"]),
        published_section(ORIGINS, m.provenance, CONTRADICTION),
    )
    return Report(
        "geva2022",
        f"What the sub-updates of {m.lm.name} promote",
        "Concepts in values, events, and extreme sub-updates, next to what the paper found. Layers count from 0 here "
        "and from 1 in the paper.",
        SOURCE,
        m.provenance,
        sections,
        {
            **facts_of_memories(m.lm),
            "examples": len(m.sample),
            "corpus": m.corpus.name,
            "basis of scores": m.options.basis,
            "clusters of values": m.clusters.n_clusters,
            "tokens left out": 0 if m.hidden is None else int(m.hidden.sum()),
            "seed": m.seed,
            "intervals": "95 %: exact for shares of examples, bootstrap over examples, vectors or prefixes otherwise",
        },
    )
