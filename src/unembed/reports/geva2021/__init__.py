"""Geva et al. 2021, "Transformer Feed-Forward Layers Are Key-Value Memories": its experiments on any decoder.

One sweep for triggers and examples together, one reading of all values, shortened triggers of a sample of keys. What
the paper leaves open, or its released code does differently, is an option; see `Options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unembed.corpus import CorpusSource
from unembed.document.model import Report
from unembed.models.decoder import Decoder
from unembed.reports.claims import Judgement, findings_by_section
from unembed.reports.geva2021.findings import CLAIMS
from unembed.reports.geva2021.formatting import provenance_of
from unembed.reports.geva2021.measurements import Measurements, control_corpus, measure
from unembed.reports.geva2021.options import Options
from unembed.reports.geva2021.published import ORIGINS
from unembed.reports.geva2021.sections.aggregation import active_section, composition_section
from unembed.reports.geva2021.sections.keys import patterns_section, perturbation_section
from unembed.reports.geva2021.sections.poles import poles_sections
from unembed.reports.geva2021.sections.refinement import last_layer_section, refinement_section
from unembed.reports.geva2021.sections.settings import settings_section
from unembed.reports.geva2021.sections.values import values_section
from unembed.reports.options import facts_of_experts, options_of
from unembed.reports.published import published_section
from unembed.reports.random_weights import control_judgements
from unembed.reports.stages import Work

SOURCE = (
    "Mor Geva, Roei Schuster, Jonathan Berant, Omer Levy: Transformer Feed-Forward Layers Are Key-Value Memories. "
    "EMNLP 2021 (arXiv 2012.14913). Their model: WikiLM, 16 layers of 4,096 memories, 267,744 words, WikiText-103."
)


def run(lm: Decoder, corpus: CorpusSource, work: Work, **options: Any) -> Report:
    """The study as a report; options as in `Options`.

    Raises:
        InvalidInput: an option is wrong, neither corpus nor index is given, or there is too little text.
        IndexFault: the index is damaged, or of another model.
        Unsupported: the model has no FFN memories.
    """
    chosen = options_of(Options, "geva2021", options)
    m = measure(lm, corpus, work, chosen)
    control: dict[str, Judgement] = {}
    if chosen.control:
        small, text = chosen.of_control(), control_corpus(m)
        settings = {**vars(small), "corpus": text.fingerprint, "seed": work.seed}
        control = control_judgements(
            "geva2021", CLAIMS, lm, work, settings, lambda random, own: measure(random, text, own, small)
        )
    return report_of(m, control)


def report_of(m: Measurements, control: Mapping[str, Judgement]) -> Report:
    """The measurements as a report.

    Args:
        control: judgements on random weights, by name of the claim.
    """
    findings = findings_by_section(CLAIMS, m, control)
    sections = (
        patterns_section(m, findings["patterns"]),
        perturbation_section(m, findings.get("perturbation", ())),
        values_section(m, findings["values"]),
        *poles_sections(m),
        active_section(m, findings["active"]),
        composition_section(m, findings["composition"]),
        refinement_section(m, findings["refinement"]),
        last_layer_section(m, findings["last layer"]),
        settings_section(m),
        published_section(ORIGINS, provenance_of(m)),
    )
    lm = m.lm
    facts = {
        "model": lm.name,
        "layers": lm.n_layers,
        "memories (FFN neurons) a layer": lm.memories_a_layer,
        **facts_of_experts(lm),
        "vocabulary": lm.d_vocab,
        "corpus": m.corpus_name,
        "tokens": int(m.text.lengths.sum()),
        "sentences": m.text.n_segments,
        **({"tokens of the examples' text": int(m.example_text.lengths.sum())} if m.example_text is not m.text else {}),
        "examples": len(m.positions),
        "tokens left out": 0 if m.hidden is None else int(m.hidden.sum()),
        "seed": m.seed,
    }
    return Report(
        "geva2021",
        f"Feed-forward layers as key-value memories, in {lm.name}",
        "Every experiment of Geva et al. 2021 on this model and text, each number next to the published one. Layers "
        "count from 0 here and from 1 in the paper.",
        SOURCE,
        provenance_of(m),
        sections,
        facts,
    )
