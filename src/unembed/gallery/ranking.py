"""Rank memories (FFN neurons) by the evidence that they do something a person can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unembed.concepts.value_concepts import model_classes
from unembed.errors import InvalidInput, Unsupported
from unembed.gallery.candidates import Candidate, TriggerText, add_concepts, candidates_of, poles_of
from unembed.gallery.evidence import SIGNIFICANT, MemoryEvidence, Truth
from unembed.gallery.gallery import Gallery
from unembed.gallery.saved_progress import SavedProgress
from unembed.gallery.text_evidence import EFFECT_TRIGGERS, TextEvidence
from unembed.jacobian.basis import basis_or_default, lens_identity
from unembed.memories import reading_truth
from unembed.models.decoder import Decoder, require_decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.names import Basis, SignedMemory
from unembed.results import Provenance
from unembed.validation import positive_int, valid_seed

_AT_ONCE = 100
"""Number of memories whose effects are measured in one step; the results are saved after each step."""

Progress = Callable[[str, int, int], None]


def rank_memories(
    lm: Decoder,
    known: TriggerText | None = None,
    top: int = 200,
    *,
    layers: Sequence[int] | None = None,
    show_unlearned: bool = False,
    provenance: Provenance | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    saved: SavedProgress | None = None,
) -> Gallery:
    """Rank memories (FFN neurons) by the evidence that they do something a person can name.

    Args:
        known: the text of an index, and where memories fire most in it; when None, only concepts are measured.
        top: number of memories to return; in gated layers a memory may be returned once for each sign.
        layers: the layers to rank; all when None.
        show_unlearned: whether tokens that the model never learned may be among the promoted ones.
        provenance: the provenance of the index, to copy corpus and notes from.
        seed: the seed of the random lists that coherence is compared with.
        progress: called with the name of a step, the amount done, and the total.
        saved: stores finished steps, so that an interrupted ranking can continue.

    The effect is measured for the 2 * `top` memories that are best by the other four measures. For those returned,
    `reading_truth` measures whether adding the value vector raises the promoted tokens; if not, the description is
    replaced by a sentence that states this.

    Raises:
        InvalidInput: the model has no tokenizer, or `top` is less than 1.
        OutOfRange: a layer that the model does not have.
        Unsupported: the model has no memories.

    Memory: one layer's candidates, the best 2 * `top` of every layer, and what `coherence` and `value_readings` need.
    """
    lm, top, seed = require_decoder(lm), positive_int("top", top), valid_seed(seed)
    report, saved = progress or (lambda _what, _done, _total: None), saved or SavedProgress()
    if not lm.n_layers:
        lm.feed_forward(0)  # raises an error that gives the reason
    chosen = list(lm.memory_layers or range(lm.n_layers)) if layers is None else sorted({lm.layer(n) for n in layers})
    total = sum(lm.weights.n_memories[n] for n in chosen)
    classes = model_classes(lm, embedding=False)
    text: list[TextEvidence] = []

    def of_text() -> TextEvidence:
        """Return the object that measures evidence in the text; it is created at the first use."""
        assert known is not None
        if not text:
            text.append(TextEvidence(lm, known, classes, seed))
        return text[0]

    kept = top if known is None else 2 * top

    def judged(layer: int) -> list[Candidate]:
        found = candidates_of(lm, known, layer, show_unlearned)
        add_concepts(lm, found, classes, layer, show_unlearned, seed)
        if known is not None:
            of_text().judge(found)
        return _best(found, kept)

    best: list[Candidate] = []
    done = 0
    report("judging memories", 0, total)
    for layer in chosen:
        best = _best([*best, *saved.step(f"layer {layer}", lambda layer=layer: judged(layer))], kept)
        done += lm.weights.n_memories[layer]
        report("judging memories", done, total)
    if known is not None:
        best = sorted(_with_effects(best, of_text, saved, report), key=lambda one: -one.score)
    candidates = sum(lm.weights.n_memories[n] * len(poles_of(lm, known, n)) for n in chosen)
    notes = {"candidates": candidates, "show_unlearned": show_unlearned, "significant": SIGNIFICANT}
    notes["text"] = "none: concepts alone, from the weights" if known is None else "the index's corpus"
    notes["sampled_fingerprint"] = sampled_fingerprint(lm)
    if (lens := lens_identity(lm)) is not None:
        notes["lens"] = lens
    source = provenance or lm.provenance()
    basis: Basis = basis_or_default(lm, None, "raw")
    about = lm.provenance(corpus=source.corpus, basis=basis, seed=seed, notes={**source.notes, **notes})
    rows = [one.described(lm) for one in best[:top]]
    return Gallery(tuple(rows if known is None else _with_truth(lm, rows, seed, report)), about)


def _with_truth(lm: Decoder, rows: Sequence[MemoryEvidence], seed: int, report: Progress) -> list[MemoryEvidence]:
    """Measure whether adding each value vector raises the promoted tokens, and add the result to the rows.

    The rows are returned unchanged if the model does not allow this measurement.
    """
    places = [SignedMemory(row.layer, row.index, "negative" if row.pole == "negative" else "positive") for row in rows]
    try:
        found = reading_truth(lm, places, seed=seed, progress=report)
    except (InvalidInput, Unsupported):  # the shipped text has too few tokens, or the model has several streams
        return list(rows)
    numbers = zip(rows, found.memories, found.correlation.tolist(), strict=True)
    return [row.with_truth(Truth(r, found.bound(one.layer))) for row, one, r in numbers]


def _best(candidates: Sequence[Candidate], n: int) -> list[Candidate]:
    """Return the `n` candidates with the highest scores; of equal scores, positive signs first, then lower layers."""
    return sorted(candidates, key=lambda one: (-one.score, one.pole != "positive", one.layer, one.index))[:n]


def _with_effects(
    best: Sequence[Candidate], of_text: Callable[[], TextEvidence], saved: SavedProgress, report: Progress
) -> list[Candidate]:
    """Complete the evidence of the best candidates, including the effects of removing the memories."""
    found: list[Candidate] = []

    def measured(group: Sequence[Candidate]) -> Sequence[Candidate]:
        of_text().complete(group)
        at_least = len(found)
        of_text().add_effects(
            group, lambda done: report("removing memories", at_least + done // EFFECT_TRIGGERS, len(best))
        )
        return group

    for start in range(0, len(best), _AT_ONCE):
        group = best[start : start + _AT_ONCE]
        found += saved.step(f"effects {start}", lambda group=group: measured(group))
        report("removing memories", len(found), len(best))
    return found
