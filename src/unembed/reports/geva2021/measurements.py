"""Run all measurements of the study. Each finished step is stored, so that an interrupted run can continue after it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from unembed.corpus import CorpusSource, Segment, open_corpus
from unembed.corpus.batches import bucketed
from unembed.corpus.token_stream import TokenizedCorpus, TokenStream
from unembed.errors import InvalidInput
from unembed.index import Index
from unembed.lens import comparable_basis
from unembed.models.decoder import Decoder
from unembed.reports.geva2021 import annotator_agreement, pattern_search, perturbation, values
from unembed.reports.geva2021.examples import DECODED, CoefficientSizes, Examples, draw_positions
from unembed.reports.geva2021.massive_triggers import massive_in_text
from unembed.reports.geva2021.options import Options
from unembed.reports.geva2021.paper import first_upper
from unembed.reports.geva2021.triggers import KeyTriggers, reducer
from unembed.reports.options import hidden_tokens, open_like, require_memories
from unembed.reports.stages import STAGES, Work
from unembed.results import Provenance
from unembed.stream.massive_activations import LEFT_OUT, massive_positions, stream_lengths
from unembed.sweeps import Progress, sweep
from unembed.sweeps.forward import feed_reducers

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Measurements:
    """The measurements from which the report's sections are made.

    Attributes:
        corpus_fingerprint: a hash of the text and of how it is cut into segments.
        text: the tokens of the corpus from which the triggers come.
        example_text: the tokens of the corpus from which the examples come; the same corpus unless the options name
            another one for triggers.
        triggers: the prefixes with the largest coefficients (the triggers), for each key, without those that end at a
            position with massive activations.
        positions: the last token position of each example in `example_text`.
        examples: results of the reducer `Examples`, arrays (layer, example).
        left_out: the number of drawn examples that are left out, because the position has massive activations.
        agreement: the top token of each value vector, compared with the tokens that follow the triggers.
        changes: relative change of a key's coefficient if a token is removed from a trigger; array (key, trigger, kind
            of token).
        perturbed: layer and key number of each key in `changes`; array (key, 2).
        patterns: for sampled keys and for sets of random prefixes, the share of prefixes with each kind of pattern.
        judged: the patterns that a judge finds in the same prefixes; empty without a judge.
        people: agreement of the rules with people's labels in the index; empty without an index.
        index_settings: the settings of the index from which the triggers come; None without an index.
        shortened_left_out: the number of shortened triggers left out of `changes` because of massive activations.
        triggers_left_out: the number of triggers left out because of massive activations.
    """

    lm: Decoder
    options: Options
    corpus_name: str
    corpus_fingerprint: str
    text: TokenStream
    example_text: TokenStream
    triggers: KeyTriggers
    positions: np.ndarray
    examples: Arrays
    left_out: int
    agreement: values.Agreement
    changes: np.ndarray
    perturbed: np.ndarray
    patterns: Arrays
    judged: Mapping[str, Any]
    people: Mapping[str, Any]
    seed: int
    index_settings: Mapping[str, Any] | None = None
    shortened_left_out: int = 0
    triggers_left_out: int = 0

    @property
    def hidden(self) -> Bool[Tensor, " d_vocab"] | None:
        """A mask of the tokens to leave out of rankings; None for no tokens."""
        return hidden_tokens(self.lm, self.options.include_unlearned)

    @property
    def n_layers(self) -> int:
        """The number of layers of the model."""
        return self.triggers.n_layers

    @property
    def upper(self) -> int:
        """The index of the first of the "upper layers"; see `first_upper`."""
        return first_upper(self.n_layers)

    @property
    def provenance(self) -> Provenance:
        """The provenance of every table: model, corpus, basis, seed, and the options that change numbers."""
        o = self.options
        names = ("draw", "triggers", "target", "values_basis", "fraction", "semantic")
        notes: dict[str, Any] = {name: getattr(o, name) for name in names}
        notes["unlearned tokens left out"] = 0 if self.hidden is None else int(self.hidden.sum())
        notes[LEFT_OUT] = self.left_out
        if self.triggers_left_out:
            notes["triggers left out for massive activations"] = self.triggers_left_out
        if self.shortened_left_out:
            notes["shortened triggers left out for massive activations"] = self.shortened_left_out
        corpus = f"{self.corpus_name} {self.corpus_fingerprint}"
        return self.lm.provenance(corpus=corpus, basis=o.basis, seed=self.seed, notes=notes)

    def prefix_text(self, position: int, *, example: bool = False) -> str:
        """Return the text of the prefix that ends at `position`; "" for a negative position.

        Of a long text, only the last `SNIPPET` characters are returned.

        Args:
            position: token position in the corpus of the triggers.
            example: take the position in the corpus of the examples instead.
        """
        if position < 0:
            return ""
        body = (self.example_text if example else self.text).prefix(position, special=False)
        text = self.lm.decode(body.tolist())
        return text if len(text) <= SNIPPET else "… " + text[-SNIPPET:]


SNIPPET = 160
"""Largest number of characters of a prefix in a table."""


CONTROL_SENTENCES = 2000
"""Number of segments of the text on which the control with random weights is measured."""


def control_corpus(m: Measurements) -> TokenizedCorpus:
    """Return random segments of the study's text, already tokenised; each segment counts as a text of its own."""
    random = np.random.default_rng([m.seed, 13])
    n = min(CONTROL_SENTENCES, m.example_text.n_segments)
    chosen = set(random.choice(m.example_text.n_segments, n, replace=False).tolist())
    stream = TokenStream.of(_alone(s for number, s in enumerate(m.example_text.segments()) if number in chosen))
    digest = hashlib.sha256(np.ascontiguousarray(stream.token).tobytes()).hexdigest()[:16]
    return TokenizedCorpus(f"{n:,} segments of {m.corpus_name}", digest, stream)


def _alone(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield each segment as a document of its own, without the tokens that it repeats from the segment before."""
    at = 0
    for number, segment in enumerate(segments):
        tokens = torch.cat([segment.tokens[: segment.lead], segment.tokens[max(segment.lead, segment.skip) :]])
        yield Segment(number, number, 0, at, 0, segment.lead, tokens, segment.next_token)
        at += len(tokens)


def with_known_bases(lm: Decoder, options: Options) -> Options:
    """Return the options, with "raw" replaced by "final" for a model with an adaptive softmax.

    An adaptive softmax has no single matrix E whose scores can be compared over the whole vocabulary. For such a model
    the basis is therefore "final": the model's own log-probabilities, as in the released code. WikiLM, the paper's
    model, has no final norm, so that "final" adds none.
    """
    return options if comparable_basis(lm) == "raw" else replace(options, basis="final", values_basis="final")


def measure(lm: Decoder, corpus: CorpusSource | TokenizedCorpus, work: Work, options: Options) -> Measurements:
    """Run the study.

    Raises:
        InvalidInput: neither corpus nor index, or too little text for the sample.
        IndexFault: the index is damaged, or of another model.
        Unsupported: the model has no memories.
    """
    require_memories(lm, "geva2021")
    options = with_known_bases(lm, options)
    index = None if options.index is None else Index.open(options.index, lm)
    if index is None and corpus is None:
        raise InvalidInput(
            "neither a corpus nor an index",
            why="triggers, the prefixes with the largest coefficients, are found in a text",
            instead="Give --corpus FILE (or --corpus shipped for the WikiText sample), or --index DIR",
        )
    if index is not None:
        name, fingerprint = f"index {index.path}", str(index.provenance.corpus)
        text = example_text = index.passages
        options = with_index_settings(options, index)
    elif isinstance(corpus, TokenizedCorpus):
        name, fingerprint, text = corpus.name, corpus.fingerprint, corpus.stream
        example_text = text
    else:
        opened = open_corpus(corpus)
        name, fingerprint = opened.name, opened.fingerprint
        work.progress("reading the corpus", 0, 1)
        text = example_text = TokenStream.of(opened.segments(lm))
        if options.trigger_corpus is not None:
            of_triggers = open_like(options.trigger_corpus, opened)
            work = replace(work, key={**work.key, "trigger corpus": of_triggers.fingerprint})
            name, fingerprint = f"{name}, triggers from {of_triggers.name}", f"{fingerprint}+{of_triggers.fingerprint}"
            text = TokenStream.of(of_triggers.segments(lm))
    positions = draw_positions(example_text, options.examples, options.draw, work.seed, name)
    together = index is None and text is example_text  # triggers and examples are found in one pass over the text
    if index is not None:
        triggers, found = KeyTriggers.of_index(index, lm, options.top), {}
    else:
        source = TokenizedCorpus(name, fingerprint, text)
        triggers, found = _from_corpus(lm, source, positions if together else None, work, options)
    if not together:
        found = _examples_of(lm, example_text, _examples(lm, example_text, positions, work, options), work, options)
    massive = massive_positions(found["stream_length"])
    lengths = example_text.prefix_lengths(positions)
    excluded = _massive_in_text(lm, text, lengths, found["stream_length"], work, options)
    every, triggers = int((triggers.positions >= 0).sum()), triggers.without(excluded)
    agreed = _agreement(lm, text, triggers, work, options)
    keys, shortened = _perturbed(lm, text, triggers, work, options)
    return Measurements(
        lm,
        options,
        name,
        fingerprint,
        text,
        example_text,
        triggers,
        positions[~massive],
        {name: array[..., ~massive] for name, array in found.items()},
        int(massive.sum()),
        agreed,
        shortened.relative,
        keys,
        pattern_search.by_rule(lm, text, triggers, excluded, work, options),
        {} if options.judge is None else pattern_search.by_judge(lm, text, triggers, excluded, work, options),
        {} if index is None else _people(index, lm, text, triggers, excluded, work, options),
        work.seed,
        None if index is None else index.manifest.settings,
        shortened.left_out,
        every - int((triggers.positions >= 0).sum()),
    )


def by_lens(m: Measurements, work: Work) -> Measurements | None:
    """Return the measurements with value vectors, updates and the residual stream decoded by the fitted lens.

    None if `values_basis` is not "raw".
    """
    if m.options.values_basis != "raw":
        return None
    agreed = values.agreement(m.lm, m.text, m.triggers, basis="jacobian", target=m.options.target, hidden=m.hidden)
    read_by_lens = Examples(m.positions.tolist(), "jacobian", m.options.fraction, m.hidden)
    found = _examples_of(m.lm, m.example_text, read_by_lens, work, m.options, "examples, read by the fitted lens")
    return replace(m, agreement=agreed, examples={**m.examples, **{name: found[name] for name in DECODED}})


def with_index_settings(options: Options, index: Index) -> Options:
    """Return the options, with the index's own settings for how triggers were chosen and how many there are.

    Raises:
        InvalidInput: the index has fewer triggers for each key than `options.shown`.
    """
    stored = int(index.manifest.settings["top"])
    if stored < options.shown:
        raise InvalidInput(
            f"{options.shown} triggers for each key from {index.path}",
            why=f"the index has {stored} for each key",
            instead=f"Build one with --top {options.shown}, or give --option shown={stored}",
        )
    return replace(options, top=min(options.top, stored), triggers="prefixes")


USUAL = 200
"""Number of examples over which the root mean square of each gated memory's coefficient is taken."""


def _examples(lm: Decoder, text: TokenStream, positions: np.ndarray, work: Work, options: Options) -> Examples:
    """Return the reducer that measures the examples.

    If coefficients can be negative, their root mean squares, which the reducer needs, are measured first.
    """
    usual = None
    if any(lm.is_signed(n) for n in range(lm.n_layers)):
        usual = _usual_sizes(lm, text, positions, work, options)
    hidden = hidden_tokens(lm, options.include_unlearned)
    return Examples(positions.tolist(), options.basis, options.fraction, hidden, usual)


def _usual_sizes(
    lm: Decoder, text: TokenStream, positions: np.ndarray, work: Work, options: Options
) -> list[np.ndarray]:
    """Return the root mean square of each memory's coefficient over some of the examples, layer by layer.

    Positions with massive activations are left out.
    """
    random = np.random.default_rng([work.seed, 7])
    drawn = np.sort(random.choice(positions, min(USUAL, len(positions)), replace=False))

    def compute() -> list[np.ndarray]:
        massive = massive_positions(stream_lengths(lm, map(text.prefix, drawn.tolist())))
        sizes = CoefficientSizes(drawn[~massive].tolist())
        sizes.start(lm)
        with feed_reducers(lm, [sizes]) as feed:
            for batch in bucketed(text.segments_up_to(drawn), options.tokens_per_batch, 64):
                feed(batch)
        return [found.numpy() for found in sizes.result()]

    return work.stage("usual sizes", compute)


def _from_corpus(
    lm: Decoder, corpus: TokenizedCorpus, positions: np.ndarray | None, work: Work, options: Options
) -> tuple[KeyTriggers, Arrays]:
    """Collect triggers in one pass over the corpus and, if positions are given, measure examples in the same pass."""
    name, what = ("triggers", "triggers") if positions is None else ("sweep", "triggers and examples")
    of = "their corpus" if positions is None else "the corpus"

    examples = [] if positions is None else [_examples(lm, corpus.stream, positions, work, options)]

    def compute() -> tuple[KeyTriggers, Arrays]:
        def note(progress: Progress) -> None:
            work.progress(f"one sweep for {what} (% of {of})", round(100 * progress.share), 100)

        (work.out / STAGES).mkdir(exist_ok=True)
        lists, *found = sweep(
            lm,
            corpus,
            [reducer(options.triggers, options.top), *examples],
            checkpoint=work.path(name, "checkpoint"),
            tokens_per_batch=options.tokens_per_batch,
            progress=note,
        )
        return KeyTriggers.of_sweep(lists), found[0] if found else {}

    return work.stage(name, compute)


def _examples_of(
    lm: Decoder, text: TokenStream, seen: Examples, work: Work, options: Options, stage: str = "examples"
) -> Arrays:
    """Measure the examples, in one pass over only the segments that contain them."""

    def compute() -> Arrays:
        positions = np.array(seen.positions, dtype=np.int64)
        seen.start(lm)
        with feed_reducers(lm, [seen]) as feed:
            for batch in bucketed(text.segments_up_to(positions), options.tokens_per_batch, 64):
                feed(batch)
                done = int(seen.result()["done"].sum())
                work.progress(f"one pass for the {stage}", done, len(positions))
        return seen.result()

    return work.stage(stage, compute)


def _massive_in_text(
    lm: Decoder, text: TokenStream, lengths: np.ndarray, streams: np.ndarray, work: Work, options: Options
) -> np.ndarray:
    """Return the positions of the triggers' text with massive activations; see `massive_in_text`."""

    def compute() -> np.ndarray:
        work.progress("positions with massive activations", 0, 1)
        return massive_in_text(lm, text, lengths, streams, options.tokens_per_batch)

    return work.stage("massive positions", compute)


def _agreement(lm: Decoder, text: TokenStream, triggers: KeyTriggers, work: Work, options: Options) -> values.Agreement:
    basis, target, hidden = options.values_basis, options.target, hidden_tokens(lm, options.include_unlearned)

    def compute() -> values.Agreement:
        work.progress("reading all values", 0, 1)
        return values.agreement(lm, text, triggers, basis=basis, target=target, hidden=hidden)

    return work.stage("values", compute)


def _perturbed(
    lm: Decoder, text: TokenStream, triggers: KeyTriggers, work: Work, options: Options
) -> tuple[np.ndarray, perturbation.Changes]:
    """Remove tokens from triggers of sampled keys, and measure how the keys' coefficients change.

    Returns the layer and number of each key, and the changes.
    """
    keys = triggers.sampled(options.perturbed_keys, 1, work.seed, "perturbation")

    def compute() -> perturbation.Changes:
        return perturbation.changes(
            lm,
            text,
            triggers,
            keys,
            seed=work.seed,
            most=options.perturbed_triggers,
            tokens_per_batch=options.tokens_per_batch,
            progress=lambda done, total: work.progress("shortening triggers (passes)", done, total),
        )

    return np.array(keys, dtype=np.int64).reshape(-1, 2), work.stage("perturbation", compute)


def _people(
    index: Index,
    lm: Decoder,
    text: TokenStream,
    triggers: KeyTriggers,
    excluded: np.ndarray,
    work: Work,
    options: Options,
) -> dict[str, list[Any]]:
    """Measure how well the rules that find patterns agree with the labels that people stored in the index."""
    rows = [row for row in index.labels().rows() if row["kind"] == "key"]
    if not rows:
        return {}
    rules = pattern_search.finder(lm, text, excluded, work.seed, options)
    return annotator_agreement.compared(rows, rules, text, triggers)
