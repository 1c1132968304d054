"""A Mathematical Framework for Transformer Circuits (Elhage et al. 2021), every analysis on any model.

What needs two layers of attention is left out for models of one; what is exact for attention-only models is a stated
approximation elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unembed.attention.circuits import Circuits, circuits
from unembed.attention.direct_path import direct_path
from unembed.attention.erasure import memory_management
from unembed.attention.geometry import subspaces, virtual_weights
from unembed.attention.head_scores import HeadScores
from unembed.attention.in_context import in_context, scores_on_text
from unembed.attention.induction import InductionEvidence, source_effects
from unembed.attention.skip_trigrams import frequent_tokens
from unembed.attention.windows import windows_of
from unembed.corpus import open_corpus
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.reports.claims import row
from unembed.reports.document.model import Exhibit, Figure, Finding, Report, Section
from unembed.reports.elhage2021 import findings as findings
from unembed.reports.elhage2021.sections.heads import (
    ROLE,
    composition_section,
    eigenvalue_section,
    heads_section,
    induction_section,
    provenance_of,
)
from unembed.reports.elhage2021.sections.skip_trigrams import (
    bug_section,
    overview_section,
    skip_trigram_section,
    skip_trigrams_by_head,
)
from unembed.reports.elhage2021.sections.stream import (
    direct_path_section,
    expansion_section,
    importance_section,
    in_context_section,
    stream_section,
)
from unembed.reports.section_cache import kept_sections
from unembed.reports.stages import Arrays, Work
from unembed.results import Provenance, Table

PAPER = "Elhage, Nanda, Olsson et al.: A Mathematical Framework for Transformer Circuits. 2021."
_NUMBERS = {"sequences": 2, "tokens": 1, "windows": 1}
"""Options that are numbers, and the least each may be."""
_HALF = 24
"""Tokens of text that the worked example repeats."""


def run(lm: Decoder, corpus: Any, work: Work, **options: Any) -> Report:
    """Every analysis of the paper on one model.

    Args:
        lm: the model.
        corpus: anything `open_corpus` takes; held-out text.
        work: folder, seed and progress.
        options: `basis` ("raw" or "folded"; "folded" where there are norms), `sequences` (of repeated random tokens,
            50), `tokens` (of text for losses by order, 10,000), `windows` (for in-context losses, 192).
    """
    if unknown := sorted(set(options) - {"basis", *_NUMBERS}):
        raise InvalidInput(f"option {unknown[0]!r}", why=f"elhage2021 has basis, {', '.join(_NUMBERS)}")
    for name, least in _NUMBERS.items():
        given = options.get(name, least)
        if not isinstance(given, int) or given < least:
            raise InvalidInput(f"option {name}={given!r}", why=f"it must be a whole number of at least {least}")
    normed = lm.structure.final_norm is not None
    basis = str(options.get("basis", "folded" if normed else "raw"))
    text = open_corpus(corpus)
    all_heads = circuits(lm)
    provenance = provenance_of(all_heads, basis, corpus=text.fingerprint, seed=work.seed)
    study = _Study(all_heads, text, work, basis, provenance, options)
    sections = []
    parts = list(study.parts())
    for done, (name, make) in enumerate(parts):
        work.progress(name, done, len(parts))
        sections += kept_sections(work, name, make)
    work.progress("done", len(parts), len(parts))
    kind = "attention only" if all(b.feed_forward is None for b in lm.structure.blocks) else "with FFNs"
    return Report(
        "elhage2021",
        f"Transformer circuits of {lm.name}",
        "Attention heads by their weights and by what they do, beside what the paper found.",
        PAPER,
        provenance,
        tuple(sections),
        {"model": lm.name, "layers": lm.n_layers, "heads a layer": lm.n_heads, "kind": kind, "basis": basis},
    )


class _Study:
    """One model's run of all analyses, each kept as it is made; scores and evidence serve several."""

    def __init__(
        self, heads: Circuits, corpus: Any, work: Work, basis: str, provenance: Provenance, options: dict[str, Any]
    ) -> None:
        self.circuits, self.corpus, self.work = heads, corpus, work
        self.basis, self.provenance = basis, provenance
        self.lm = heads.lm
        self.n_sequences = int(options.get("sequences", 50))
        self.max_tokens = int(options.get("tokens", 10_000))
        self.max_windows = int(options.get("windows", 192))

    def parts(self) -> Iterator[tuple[str, Any]]:
        """What to do, in reading order."""
        yield "zero layers", self.zero_layers
        yield "heads", self.heads
        yield "copying", self.copying
        yield "skip-trigrams", self.skip_trigrams
        yield "path expansion", self.expansion
        if self.lm.n_layers > 1:
            yield "term importance", self.importance
            yield "composition", self.composition
            yield "induction", self.induction
            yield "one position", self.one_position
        yield "in-context learning", self.in_context
        yield "the stream", self.stream

    @cached_property
    def scores(self) -> HeadScores:
        """Of every head on repeated random tokens."""

        def compute() -> Arrays:
            length = min(64, (self.lm.n_ctx or 256) // 2 - 2)
            found = self.circuits.head_scores(self.work.seed, n_sequences=self.n_sequences, length=length)
            return {"by_sequence": found.by_sequence.numpy(), "length": np.array(found.length)}

        stored = self.work.stage("head scores", compute)
        return HeadScores.of(torch.from_numpy(stored["by_sequence"]), int(stored["length"]), self.work.seed)

    @cached_property
    def evidence(self) -> list[InductionEvidence]:
        """Of induction, for every head above the first layer; none in a model of one layer."""
        if self.lm.n_layers < 2:
            return []
        names = [f.name for f in fields(InductionEvidence)]

        def compute() -> Arrays:
            found = self.circuits.induction(self.basis, self.work.seed, scores=self.scores)
            return {name: np.array([getattr(e, name) for e in found]) for name in names}

        stored = {name: array.tolist() for name, array in self.work.stage("evidence of induction", compute).items()}
        stored["partner"] = [tuple(p) for p in stored["partner"]]
        return [
            InductionEvidence(**dict(zip(names, row, strict=True)))
            for row in zip(*(stored[n] for n in names), strict=True)
        ]

    def zero_layers(self) -> list[Section]:
        """The direct path beside bigrams."""
        found = direct_path(self.lm, self.corpus)
        made = direct_path_section(self.circuits, found, self.provenance)
        return [_with(made, findings.direct_path_findings(found))]

    def heads(self) -> list[Section]:
        """Scores of every head on repeated random tokens."""
        return [heads_section(self.circuits, self.scores, self.basis, self.provenance)]

    def copying(self) -> list[Section]:
        """Eigenvalues of the heads that copy most and least."""
        scores = self.circuits.copying_scores(self.basis)
        order = scores.flatten().argsort(descending=True).tolist()
        shown = [divmod(i, self.lm.n_heads) for i in dict.fromkeys([*order[:3], *order[-1:]])]
        made = eigenvalue_section(self.circuits, shown, self.basis, self.provenance, "Copying")
        return [_with(made, findings.copying_findings(scores))]

    def skip_trigrams(self) -> list[Section]:
        """Skip-trigrams of the first layer's heads, in the corpus; those of the heads it confirms most; their bugs."""
        # The largest entries of all are of rare tokens, which a corpus of this size cannot speak about.
        among = frequent_tokens(self.lm, self.corpus)
        if len(among) < 50:
            among = frequent_tokens(self.lm, self.corpus, 1)
        found = skip_trigrams_by_head(self.circuits, 0, 25, self.basis, self.corpus, among)
        shown = [r for r in sorted(found, key=lambda r: -r.likelier) if r.triples][:2]
        made = [_with(overview_section(0, found, self.provenance), findings.skip_trigram_findings(found))]
        made += [skip_trigram_section(self.circuits, 0, r.head, r.triples, self.provenance, r.seen) for r in shown]
        if not shown:
            return made
        sources = list(dict.fromkeys(t.source for t in shown[0].triples))[:10]
        bugs = bug_section(self.circuits, 0, shown[0].head, sources, self.basis, self.provenance, self.corpus, among)
        return [*made, _with(bugs, findings.bug_findings(bugs))]

    def expansion(self) -> list[Section]:
        """One prompt's logit by path."""
        tokens = self._example()
        found = self.circuits.expand(tokens, 2 if self.lm.n_layers > 1 else 1)
        target = int(found.logits.argmax())
        made = expansion_section(self.circuits, found, target, 20, self.provenance)
        return [_with(made, findings.expansion_findings(found))]

    def importance(self) -> list[Section]:
        """How much each order of path matters on text."""
        found = self.circuits.term_importance(self.corpus, max_tokens=self.max_tokens)
        return [_with(importance_section(found, self.provenance), findings.importance_findings(found))]

    def composition(self) -> list[Section]:
        """Q-, K- and V-composition of all pairs."""
        made = composition_section(self.circuits, "qkv", 10, self.basis, self.work.seed, self.provenance)
        return [_with(made, findings.composition_findings(self.circuits, self.scores, self.basis, self.work.seed))]

    def induction(self) -> list[Section]:
        """Induction heads by weights and by behaviour."""
        on_text = scores_on_text(self.lm, self.corpus, max_windows=min(16, self.max_windows))
        made = induction_section(self.circuits, self.evidence, self.provenance, 24, on_text)
        return [_with(made, findings.induction_findings(self.evidence))]

    def one_position(self) -> list[Section]:
        """Where the strongest induction head looks at one place, and how that changes the logits."""
        best = max(self.evidence, key=lambda e: e.induction)
        tokens = self._example()
        position = tokens.shape[1] - 1
        target = int(tokens[0, position - _HALF + 1])
        found = source_effects(self.circuits, tokens, best.layer, best.head, position, target)
        names = self.lm.token_strings(tokens[0])
        table = Table(
            f"Head {best.layer}.{best.head} at position {position}",
            {
                "position": list(range(position + 1)),
                "token": names[: position + 1],
                "attention": found.attention.tolist(),
                "effect": found.effect.tolist(),
            },
            self.provenance,
        )
        text = (
            f"{_HALF} tokens of text stand twice. At the last one, `{names[position]}`, the head should look at the "
            f"token after the earlier occurrence, `{names[position - _HALF + 1]}`, and raise it; effect is what each "
            "source adds to that token's logit, above the mean of all tokens.",
        )
        figures = tuple(
            Figure(f"source_{y}", title, "bar", "source_effects", "position", (y,), x_label="source position")
            for y, title in (("attention", "Where it attends"), ("effect", "How that changes the logit"))
        )
        at = int(found.attention.argmax())
        agrees = at == position - _HALF + 1 and float(found.effect[at]) > 0
        finding = row(
            "An induction head attends to the token after an earlier occurrence and raises it.",
            f"Most attention ({float(found.attention[at]):.0%}) goes to position {at}, `{names[at]}`, which adds "
            f"{float(found.effect[at]):+.2f} to the logit of `{names[position - _HALF + 1]}`.",
            agrees,
            "Two-layer models: induction heads",
        )
        return [Section("One position", text, (Exhibit("source_effects", table, folded=True),), figures, (finding,))]

    def in_context(self) -> list[Section]:
        """Loss by position, with and without the induction heads, and without as many others."""
        whole, window = None, min(self.lm.n_ctx or 512, 512)
        while whole is None:
            try:
                whole = in_context(self.lm, self.corpus, window=window, max_windows=self.max_windows)
            except InvalidInput:
                # Documents shorter than the context: shorter windows, down to a few sentences.
                window //= 2
                if window < 32:
                    return []
        options = {"window": window, "max_windows": self.max_windows}
        heads = [(e.layer, e.head) for e in sorted(self.evidence, key=lambda e: -e.induction) if e.induction >= ROLE]
        heads = heads or [(e.layer, e.head) for e in sorted(self.evidence, key=lambda e: -e.induction)[:1]]
        without = in_context(self.lm, self.corpus, heads, **options) if heads else None
        others = [p for p in _of_layers(self.lm, {a for a, _ in heads}) if p not in heads][: len(heads)]
        control = in_context(self.lm, self.corpus, others, **options) if others else None
        made = in_context_section(whole, without, control, self.provenance)
        return [_with(made, findings.in_context_findings(whole, without, control))]

    def stream(self) -> list[Section]:
        """The residual stream as a channel."""
        lm, basis = self.lm, self.basis
        memory = memory_management(lm, basis, corpus=self.corpus, verify=True)
        made = stream_section(self.circuits, virtual_weights(lm, basis), subspaces(lm, basis), memory, self.provenance)
        return [_with(made, findings.stream_findings(memory))]

    def _example(self) -> Tensor:
        """The first stretch of text, twice, up to its last token but one: (1, pos)."""
        half = min(_HALF, ((self.lm.n_ctx or 64) - 2) // 2)
        for segment in windows_of(self.corpus, 2 * half).segments(self.lm):
            tokens = segment.tokens[segment.lead :]
            if len(tokens) >= half:
                once = tokens[:half].long()
                return torch.cat([once, once])[None, :-1].to(self.lm.device)
        raise InvalidInput("the corpus", why=f"it holds no text of {half} tokens")


def _of_layers(lm: Decoder, layers: set[int]) -> list[tuple[int, int]]:
    return [(layer, head) for layer in sorted(layers) for head in range(lm.n_heads)]


def _with(section: Section, found: tuple[Finding, ...]) -> Section:
    return Section(section.title, section.text, section.exhibits, section.figures, (*section.findings, *found))
