"""Run all measurements of the study of Geva et al. 2022; an interrupted run continues after the last stored step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.annotation.files import Annotation
from unembed.annotation.judge import judge_annotation, require_judge
from unembed.concepts.value_concepts import VectorConcepts, sample_memories, vector_concepts
from unembed.corpus import Corpus, CorpusSource, Segment, open_corpus
from unembed.corpus.segmentation import leading
from unembed.errors import InvalidInput
from unembed.jacobian import reading_by
from unembed.lens import comparable_basis
from unembed.memories.clustering.dendrogram import Dendrogram
from unembed.memories.clustering.value_clusters import ValueClusters, cluster_values
from unembed.memories.event_sample import EventRecorder, EventSample, record_events
from unembed.memories.event_scores import ExtremeSubUpdates, extreme_sub_updates
from unembed.memories.norm_overlap import value_norm_overlaps, vectors_like
from unembed.memories.prefix_sampling import draw_examples
from unembed.memories.probability_changes import ProbabilityChanges, probability_changes
from unembed.memories.value_signs import CoefficientSums, signs_by_run
from unembed.memories.values import values_of, written_values
from unembed.models.decoder import Decoder
from unembed.names import Basis
from unembed.reports.geva2022.applications import Applications, measure_applications
from unembed.reports.geva2022.options import Options
from unembed.reports.options import hidden_tokens, open_like, require_memories
from unembed.reports.stages import Work
from unembed.results import Provenance
from unembed.stream.massive_activations import LEFT_OUT, massive_positions
from unembed.stream.run import run

VALUES, RANDOM, UPDATES = "sub-updates", "random vectors", "updates"
NEGATED = "sub-updates, negated"
"""Name of a kind of vector: value vectors of gated memories, times the opposite of the sign in `Measurements.signs`."""
_STAGES = 6
PAPER_CLUSTERS = 10_000
FEWEST_VALUES = 65_536
"""Number of value vectors in the smaller of the paper's two models, WikiLM (the other is GPT2 medium)."""

Signs = tuple[Float[Tensor, " _"], ...]
"""For each layer, the sign (1 or -1) of each value vector; layers may differ in their number of value vectors."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """The measurements from which the report's sections and findings are made.

    A sub-update is what one memory (FFN neuron) adds to the residual stream: its coefficient times its value vector.

    Attributes:
        examples: random prefixes, without those whose last position has massive activations.
        left_out: the number of prefixes that were left out for this reason.
        sample: where the top token changes in these prefixes (saturations and eliminations), and the scores of
            sub-updates.
        signs: for each layer, 1 or -1 for each memory: the sign by which to multiply its value vector. For a gated
            memory it is the direction in which the memory writes on balance at the ends of the examples, because the
            sign in its weights is only a convention. It is 1 for ungated layers.
        changes: how single sub-updates change probabilities, at some of the examples; None if this was not measured,
            or if the architecture does not allow it.
        concepts: the concepts in the top tokens of value vectors, random vectors, whole FFN updates and, for gated
            layers, negated value vectors.
        concepts_by_lens: the same, with vectors decoded by the model's fitted lens; None without a lens.
        update_prefixes: for each whole FFN update in `concepts`, the number of the prefix on which it was computed.
        judged: the concepts that a judge finds for the same value vectors; None without a judge.
        clusters: clusters of all value vectors.
        token_counts: how often each token occurs in the corpus, or in the text of the option `frequency_text`.
        overlaps: arrays (layer, vector) with the overlap of a vector's top tokens with and without the final norm, for
            value vectors ("values") and for random vectors ("random"); and the overlap between two vectors:
            "value_with_random" (the norm on the random vector only) and "random_with_value" (on the value vector only).
        extreme: the sub-updates with extreme scores in the examples.
        applications: the results of section 6.
        applications_by_lens: the results of section 6 that depend on how vectors are decoded, with the model's fitted
            lens; None without a lens.
        basis: how vectors are decoded to tokens.
    """

    lm: Decoder
    options: Options
    corpus: Corpus
    examples: list[Segment]
    left_out: int
    sample: EventSample
    signs: Signs
    changes: ProbabilityChanges | None
    concepts: dict[str, VectorConcepts]
    concepts_by_lens: dict[str, VectorConcepts] | None
    update_prefixes: Int[np.ndarray, " update"]
    judged: Annotation | None
    clusters: ValueClusters
    token_counts: Int[np.ndarray, " d_vocab"]
    overlaps: dict[str, np.ndarray]
    extreme: ExtremeSubUpdates
    applications: Applications
    applications_by_lens: Applications | None
    basis: Basis
    seed: int

    @property
    def hidden(self) -> Bool[Tensor, " d_vocab"] | None:
        """A mask of the tokens to leave out of rankings; None for no tokens."""
        return hidden_tokens(self.lm, self.options.include_unlearned)

    @property
    def unseen(self) -> float:
        """The share of the vocabulary whose count in `token_counts` is 0; tokens left out of rankings are ignored."""
        counts = self.token_counts if self.hidden is None else self.token_counts[~self.hidden.cpu().numpy()]
        return float((counts == 0).mean())

    @property
    def text_lengths(self) -> Int[np.ndarray, " example"]:
        """The number of text tokens of each example's prefix, without special tokens in front."""
        return self.sample.length - len(leading(self.lm))

    @property
    def provenance(self) -> Provenance:
        """The provenance of every table: model, text, basis, seed, and what was left out."""
        left_out = 0 if self.hidden is None else int(self.hidden.sum())
        notes = {"top": 30, "unlearned tokens left out": left_out, LEFT_OUT: self.left_out}
        basis = self.options.basis
        return self.lm.provenance(corpus=self.corpus.fingerprint, basis=basis, seed=self.seed, notes=notes)


def with_known_bases(lm: Decoder, options: Options) -> Options:
    """Return the options; a model with an adaptive softmax gets the basis "adaptive".

    For such a model the linear scores e_w . m_i v_i can be compared only within one band (words of similar frequency).

    Raises:
        InvalidInput: the basis is "adaptive", but the model has no adaptive softmax.
    """
    if comparable_basis(lm) == "final":
        return replace(options, basis="adaptive")
    if options.basis == "adaptive":
        raise InvalidInput("basis 'adaptive'", why=f"{lm.name} has no adaptive softmax")
    return options


def measure(lm: Decoder, corpus: CorpusSource, work: Work, options: Options) -> Measurements:
    """Run the study.

    Raises:
        Unsupported: the model has no memories.
        InvalidInput: the corpus is too small, or the model has no tokenizer.
    """
    require_memories(lm, "geva2022")
    corpus, options = open_corpus(corpus), with_known_bases(lm, options)
    hidden = hidden_tokens(lm, options.include_unlearned)
    work.progress("examples", 0, _STAGES)
    examples = draw_examples(lm, corpus, options.examples, work.seed)
    work.progress("events", 1, _STAGES)
    every, by_layer = work.stage("events", lambda: _events(lm, examples, work.seed, hidden))
    massive = massive_positions(every.stream_length)
    sample, examples = every.only(~massive), [e for e, left in zip(examples, massive, strict=True) if not left]
    changes = _changes(lm, examples, work, options, hidden)
    work.progress("concepts", 2, _STAGES)
    signs = tuple(found.to(lm.device) for found in by_layer)
    basis = comparable_basis(lm)
    concepts, prefixes = _concepts(lm, examples, signs, options.per_layer, work.seed, hidden, basis)
    lensed = None
    if work.lens is not None and basis == "raw":
        with reading_by(lm, work.lens):
            lensed = _concepts(lm, examples, signs, options.per_layer, work.seed, hidden, "jacobian")[0]
    judged = None if options.judge is None else judged_values(concepts[VALUES], options.judge, work)
    work.progress("clusters", 3, _STAGES)
    clusters = _clusters(lm, work, options.clusters, signs)
    frequencies = corpus if options.frequency_text is None else open_like(options.frequency_text, corpus)
    counted = replace(work, key={**work.key, "frequencies": frequencies.fingerprint})
    counts = work.once_for_text(
        f"token counts of {frequencies.fingerprint}",
        lambda: counted.stage("token_counts", lambda: token_counts(lm, frequencies)),
    )
    work.progress("norms", 4, _STAGES)
    overlaps = work.stage("norms", lambda: _norms(lm, options.norm_values, work.seed, hidden, signs))
    work.progress("section 6", 5, _STAGES)
    applications, applications_by_lens = measure_applications(lm, corpus, work, options, clusters=clusters), None
    if work.lens is not None and basis == "raw":
        work.progress("section 6, read by the fitted lens", 5, _STAGES)
        with reading_by(lm, work.lens):
            applications_by_lens = measure_applications(lm, corpus, work, options, "jacobian", clusters)
    extreme = extreme_sub_updates(sample, options.threshold, basis=options.basis)
    work.progress("done", _STAGES, _STAGES)
    return Measurements(
        lm,
        options,
        corpus,
        examples,
        int(massive.sum()),
        sample,
        signs,
        changes,
        concepts,
        lensed,
        prefixes,
        judged,
        clusters,
        counts,
        overlaps,
        extreme,
        applications,
        applications_by_lens,
        basis,
        work.seed,
    )


def by_lens(m: Measurements, work: Work) -> Measurements | None:
    """Return the measurements, with the residual stream and all vectors decoded to tokens by the model's fitted lens.

    None where there is no lens, or where the model has an adaptive softmax.
    """
    if m.concepts_by_lens is None or m.applications_by_lens is None:
        return None
    recorder = EventRecorder(m.seed, m.hidden, "jacobian")
    recorder.start(m.lm)
    sample = record_events(m.lm, m.examples, recorder)
    return replace(
        m,
        concepts=m.concepts_by_lens,
        concepts_by_lens=None,
        judged=None,
        sample=sample,
        extreme=extreme_sub_updates(sample, m.options.threshold, basis=m.options.basis),
        changes=None if m.changes is None else _changes(m.lm, m.examples, work, m.options, m.hidden, "jacobian"),
        applications=m.applications_by_lens,
        applications_by_lens=None,
        basis="jacobian",
    )


def _events(lm: Decoder, examples: list[Segment], seed: int, hidden: Tensor | None) -> tuple[EventSample, Signs]:
    recorder = EventRecorder(seed, hidden)
    recorder.start(lm)
    sums = CoefficientSums()
    sums.start(lm)
    found = record_events(lm, examples, recorder, 4096, sums)
    return found, tuple(signs_by_run(lm, n, total).float().cpu() for n, total in enumerate(sums.result()))


def _changes(
    lm: Decoder,
    examples: list[Segment],
    work: Work,
    options: Options,
    hidden: Tensor | None,
    basis: Basis = "final",
) -> ProbabilityChanges | None:
    """Measure how single sub-updates change probabilities (Eq. 2); None for models with several residual streams."""
    if not options.changes or lm.structure.streams is not None:
        return None
    n = min(options.changes, len(examples))
    drawn = np.sort(np.random.default_rng([work.seed, 2]).choice(len(examples), n, replace=False))
    chosen = [examples[i] for i in drawn.tolist()]
    progress = partial(work.progress, "sub-updates added one by one")
    stage = "changes" if basis == "final" else "changes, read by the fitted lens"
    return work.stage(stage, lambda: probability_changes(lm, chosen, hidden, progress, basis))


@torch.no_grad()
def _concepts(
    lm: Decoder,
    examples: list[Segment],
    signs: Signs,
    per_layer: int,
    seed: int,
    hidden: Tensor | None,
    basis: Basis,
) -> tuple[dict[str, VectorConcepts], Int[np.ndarray, " update"]]:
    """Find concepts in the top tokens of value vectors, random vectors and whole FFN updates of every layer.

    Value vectors of gated memories are multiplied by `signs`. Their negatives are included too, as another kind of
    vector. Random vectors have the mean and standard deviation of the layer's value vectors in each dimension.

    Args:
        per_layer: number of vectors of each kind in each layer.

    Returns:
        The concepts by kind of vector, and for each update the number of the prefix on which it was computed.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = range(lm.n_layers)

    def of(vectors: Tensor, labels: list[str], at: list[int]) -> VectorConcepts:
        return vector_concepts(lm, vectors, labels, at, basis=basis, seed=seed, show_unlearned=hidden is None)

    chosen = sample_memories(lm, per_layer, seed)
    signed = [(n, i) for n, i in chosen if lm.feed_forward(n).is_gated]
    random = [
        vectors_like(written_values(lm, n) * signs[n][:, None].to(lm.dtype), per_layer, generator) for n in layers
    ]
    drawn = torch.randperm(len(examples), generator=generator)[:per_layer].tolist()
    updates = torch.stack(
        [run(lm, examples[i].tokens[None], "mlp_out", logits=False)["mlp_out"][:, 0, -1] for i in drawn], dim=1
    )
    numbers = [examples[i].number for i in drawn]

    def values(memories: list[tuple[int, int]], factor: int) -> VectorConcepts:
        factors = [factor * float(signs[n][i]) for n, i in memories]
        names = [
            lm.memory_name(n, i, "negative" if sign < 0 else "positive")
            for (n, i), sign in zip(memories, factors, strict=True)
        ]
        vectors = values_of(lm, memories)
        return of(vectors * torch.tensor(factors).to(vectors)[:, None], names, [n for n, _ in memories])

    found = {VALUES: values(chosen, 1)}
    if signed:
        found[NEGATED] = values(signed, -1)
    found[RANDOM] = of(
        torch.cat(random),
        [f"random {n}.{i}" for n in layers for i in range(per_layer)],
        [n for n in layers for _ in range(per_layer)],
    )
    found[UPDATES] = of(
        updates.flatten(0, 1),
        [f"update {n} of prefix {number}" for n in layers for number in numbers],
        [n for n in layers for _ in drawn],
    )
    return found, np.tile(np.array(numbers), lm.n_layers)


def judged_values(found: VectorConcepts, judge: object, work: Work) -> Annotation:
    """Return the concepts that a judge finds in the top tokens of value vectors; its answers are stored."""
    checked = require_judge(judge)

    def compute() -> Annotation:
        work.progress(f"concepts by {checked.annotator}", 0, 1)
        return judge_annotation(found, checked)

    return work.stage("judge", compute)


def _norms(lm: Decoder, per_layer: int, seed: int, hidden: Tensor | None, signs: Signs) -> dict[str, np.ndarray]:
    rows = [
        value_norm_overlaps(lm, n, per_layer, seed=seed + n, hidden=hidden, signs=signs[n]) for n in range(lm.n_layers)
    ]
    names = ("values", "random", "value_with_random", "random_with_value")
    return {name: np.stack([getattr(row, name).cpu().numpy() for row in rows]) for name in names}


def default_clusters(n_values: int) -> int:
    """Return the paper's number of clusters; for fewer than `FEWEST_VALUES` value vectors, a tenth of their number."""
    return PAPER_CLUSTERS if n_values >= FEWEST_VALUES else max(1, n_values // 10)


def _clusters(lm: Decoder, work: Work, n_clusters: int | None, signs: Signs) -> ValueClusters:
    """Cluster all value vectors, and store the tree of the clustering; see `Options.clusters` for `n_clusters`."""
    n_clusters = default_clusters(lm.n_memories) if n_clusters is None else n_clusters

    def compute() -> tuple[Dendrogram, Int[np.ndarray, "value 2"]]:
        clusters = cluster_values(lm, n_clusters, signs=signs)
        return clusters.tree, clusters.memory

    tree, memory = work.stage("clusters", compute)
    every, labels = torch.cat(signs).cpu().numpy(), tree.cut(n_clusters)
    return ValueClusters(lm, tuple(range(lm.n_layers)), tree, memory, labels, "average", every)


def token_counts(lm: Decoder, corpus: Corpus) -> Int[np.ndarray, " d_vocab"]:
    """Count how often each token occurs in a corpus."""
    counts = np.zeros(lm.d_vocab, dtype=np.int64)
    for segment in corpus.segments(lm):
        counts += np.bincount(segment.tokens[max(segment.skip, segment.lead) :].numpy(), minlength=lm.d_vocab)
    return counts
