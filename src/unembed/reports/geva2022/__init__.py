"""Feed-forward layers build predictions by promoting concepts (Geva et al. 2022), sections 4 to 6 and the appendix.

Made for dense feed-forward layers with memories; gated, RMS-normed and sandwich-normed ones are covered, as each
section says. Options: `examples` (2,000), `per_layer` (10 vectors for concepts), `clusters` (of all values; a tenth of
them), `threshold` (of extreme sub-updates; else the outermost 0.5 %), `norm_values` (values of each layer for App. A.1;
1,000), `basis` ("raw" or "frozen", of the scores), `exit_examples` (600, for section 6.2; 0: none), `prompts`
and `words` (files for section 6.1: prompts to continue, banned words; without prompts it is left out), `judge` (an
object that names concepts beside the program, such as a language model; see `unembed.concepts.annotation.judge`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unembed.concepts.annotation.judge import require_judge
from unembed.corpus import Corpus, open_corpus
from unembed.errors import InvalidInput, Unsupported
from unembed.memories.clustering.dendrogram import Dendrogram
from unembed.memories.clustering.value_clusters import ValueClusters, cluster_values
from unembed.memories.event_sample import SCORE_BASES, EventRecorder, EventSample, record_events
from unembed.memories.event_scores import extreme_sub_updates
from unembed.memories.norm_overlap import value_norm_overlap
from unembed.memories.prefix_sampling import draw_examples
from unembed.models.decoder import Decoder
from unembed.reports.document.model import Report
from unembed.reports.geva2022.sections import appendix as appendix_section
from unembed.reports.geva2022.sections import concepts as concepts_section
from unembed.reports.geva2022.sections import control as control_section
from unembed.reports.geva2022.sections import events as events_section
from unembed.reports.geva2022.sections import layers as layers_section
from unembed.reports.stages import Work

PAPER = (
    "Geva, Caciularu, Wang, Goldberg: Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the "
    "Vocabulary Space. EMNLP 2022."
)
DEFAULTS: Mapping[str, Any] = {
    "examples": 2000,
    "per_layer": 10,
    "clusters": None,
    "threshold": None,
    "norm_values": 1000,
    "basis": "raw",
    "exit_examples": 600,
    "prompts": None,
    "words": None,
    "judge": None,
}
_STAGES = 5


def run(lm: Decoder, corpus: Any, work: Work, **options: Any) -> Report:
    """Every measurement of the paper on one model.

    Args:
        lm: the model.
        corpus: what `unembed.open_corpus` takes; sentences, as in the paper.
        work: folder, seed and progress.
        options: see the module.

    Raises:
        InvalidInput: an unknown option or a value that cannot be.
        Unsupported: the model has no memories.
    """
    if unknown := sorted(set(options) - set(DEFAULTS)):
        raise InvalidInput(f"option {unknown[0]!r}", why="geva2022 has no such", instead=f"Use {', '.join(DEFAULTS)}")
    chosen = {**DEFAULTS, **options}
    basis = str(chosen["basis"])
    if basis not in SCORE_BASES:
        raise InvalidInput(f"basis {basis!r}", why=f"scores are kept in {' and '.join(SCORE_BASES)}")
    if not lm.d_mlp:
        raise Unsupported(f"geva2022 on {lm.name}", why="it has no feed-forward memories")
    lm.vocabulary  # noqa: B018  says at once that a tokenizer is missing
    if chosen["judge"] is not None:
        require_judge(chosen["judge"])
    text = open_corpus(corpus)
    provenance = lm.provenance(corpus=text.fingerprint, basis=basis, seed=work.seed, notes={"top": 30})
    work.progress("examples", 0, _STAGES)
    examples = draw_examples(lm, text, int(chosen["examples"]), work.seed)
    work.progress("events", 1, _STAGES)
    sample = EventSample.from_arrays(work.stage("events", lambda: _events(lm, examples, work.seed)))
    work.progress("concepts", 2, _STAGES)
    concepts = concepts_section.three_kinds(lm, examples, int(chosen["per_layer"]), work.seed)
    judge = chosen["judge"]
    said = None if judge is None else concepts_section.judged_values(concepts["sub-updates"], judge, work)
    work.progress("clusters", 3, _STAGES)
    clusters = _clusters(lm, work, chosen["clusters"])
    counts = work.stage("token_counts", lambda: {"counts": token_counts(lm, text)})["counts"]
    work.progress("norms", 4, _STAGES)
    overlaps = work.stage("norms", lambda: _norms(lm, int(chosen["norm_values"]), work.seed))
    threshold = None if chosen["threshold"] is None else float(chosen["threshold"])
    extreme = extreme_sub_updates(sample, threshold, basis=basis)
    sections = (
        concepts_section.section(concepts, provenance, said),
        events_section.section(lm, sample, examples, basis, provenance),
        layers_section.section(lm, sample, extreme, clusters, counts, provenance),
        *control_section.sections(
            lm,
            text,
            work,
            n=int(chosen["exit_examples"]),
            prompts=chosen["prompts"],
            words=chosen["words"],
        ),
        appendix_section.norm_section(overlaps, provenance),
        appendix_section.contribution_section(lm, sample, provenance),
    )
    work.progress("done", _STAGES, _STAGES)
    return Report(
        "geva2022",
        f"What the sub-updates of {lm.name} promote",
        "Concepts in values, events, and extreme sub-updates, beside what the paper found.",
        PAPER,
        provenance,
        sections,
        {
            "model": lm.name,
            "layers": lm.n_layers,
            "memories a layer": lm.d_mlp,
            "examples": len(sample),
            "corpus": text.name,
            "basis of scores": basis,
            "clusters of values": clusters.n_clusters,
            "seed": work.seed,
            "intervals": "95 %, bootstrap over examples or vectors",
        },
    )


def _events(lm: Decoder, examples: list, seed: int) -> dict[str, np.ndarray]:
    recorder = EventRecorder(seed)
    recorder.start(lm)
    return record_events(lm, examples, recorder).to_arrays()


def _norms(lm: Decoder, per_layer: int, seed: int) -> dict[str, np.ndarray]:
    rows = [value_norm_overlap(lm, n, per_layer, seed=seed + n) for n in range(lm.n_layers)]
    real, random = (np.stack([row[i].cpu().numpy() for row in rows]) for i in (0, 1))
    return {"real": real, "random": random}


def _clusters(lm: Decoder, work: Work, asked: int | None) -> ValueClusters:
    """The tree of all values, kept as a stage, cut into the clusters asked for (a tenth of the values)."""
    made: list[ValueClusters] = []
    n_values = lm.n_layers * lm.d_mlp
    n_clusters = max(1, n_values // 10) if asked is None else int(asked)

    def compute() -> dict[str, np.ndarray]:
        made.append(cluster_values(lm, n_clusters))
        tree = made[0].tree
        return {
            "children": tree.children,
            "heights": tree.heights,
            "sizes": tree.sizes,
            "memory": made[0].memory,
        }

    stored = work.stage("clusters", compute)
    if made:
        return made[0]
    tree = Dendrogram(len(stored["memory"]), stored["children"], stored["heights"], stored["sizes"])
    return ValueClusters(lm, tuple(range(lm.n_layers)), tree, stored["memory"], tree.cut(n_clusters), "average")


def token_counts(lm: Decoder, corpus: Corpus) -> np.ndarray:
    """How often each token occurs in a corpus."""
    counts = np.zeros(lm.d_vocab, dtype=np.int64)
    for segment in corpus.segments(lm):
        counts += np.bincount(segment.tokens[max(segment.skip, segment.lead) :].numpy(), minlength=lm.d_vocab)
    return counts
