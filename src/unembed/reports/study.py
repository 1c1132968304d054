"""A study repeats a paper's experiments: this module runs it on a model and makes the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from unembed.corpus import Corpus, CorpusSource
from unembed.corpus.token_stream import TokenizedCorpus
from unembed.document.model import Report, Section
from unembed.jacobian import reading_by
from unembed.models.decoder import Decoder
from unembed.reports.changed_verdicts import changed_verdicts
from unembed.reports.options import options_of
from unembed.reports.published import Origin, published_section
from unembed.reports.quantities import Judgement, Part, Quantity
from unembed.reports.random_weights import control_judgements
from unembed.reports.stages import Work
from unembed.results import Provenance


@runtime_checkable
class StudyMeasurements(Protocol):
    """The fields that every study's measurements have."""

    @property
    def lm(self) -> Decoder:
        """The model."""
        ...

    @property
    def provenance(self) -> Provenance:
        """The provenance of every table."""
        ...


M = TypeVar("M", bound=StudyMeasurements)


@dataclass(frozen=True)
class Study(Generic[M]):
    """The experiments of one paper, ready to run on any model. `M` is the class of its measurements.

    Attributes:
        name: the name that `unembed report` takes.
        title: heading of the page; `{model}` stands for the model's name.
        subtitle: the sentence below the title.
        source: the paper, as a citation.
        options: a dataclass of settings; its method `of_control` returns the settings for random weights.
        measure: runs the study's measurements, given a model, a text, the folder for results (`Work`) and the options.
        parts: the sections of the report, with the claims judged in each.
        facts: the settings that the numbers depend on, for the top of the page.
        control_text: the text for the same measurements on a model with random weights (the control).
        origins: published values that belong to none of the study's quantities.
        notes: notes on published values that contradict one another.
        by_lens: takes the measurements, and where to store results; returns the measurements with vectors and the
            residual stream decoded by the model's fitted lens, or None where this is not possible.
        of_values: the quantities that depend on how vectors or the residual stream are decoded to tokens.
    """

    name: str
    title: str
    subtitle: str
    source: str
    options: type[Any]
    measure: Callable[[Decoder, Any, Work, Any], M]
    parts: tuple[Part[M], ...]
    facts: Callable[[M], Mapping[str, Any]]
    control_text: Callable[[M], Corpus | TokenizedCorpus]
    origins: tuple[Origin, ...] = ()
    notes: tuple[str, ...] = ()
    by_lens: Callable[[M, Work], M | None] = lambda _m, _work: None
    of_values: tuple[Quantity[M], ...] = ()

    @property
    def quantities(self) -> tuple[Quantity[M], ...]:
        """Every quantity of the study, in the order of the report."""
        return tuple(quantity for part in self.parts for quantity in part.quantities)

    def run(self, lm: Decoder, corpus: CorpusSource, work: Work, **options: Any) -> Report:
        """Run the study, and return its report.

        Raises:
            InvalidInput: an option is wrong, or there is too little text.
            Unsupported: the model lacks what the study requires.
        """
        chosen = options_of(self.options, self.name, options)
        m = self.measure(lm, corpus, work, chosen)
        control: dict[str, Judgement] = {}
        if chosen.control:
            small, text = chosen.of_control(), self.control_text(m)
            settings = {**vars(small), "corpus": text.fingerprint, "seed": work.seed}
            control = control_judgements(
                self.name,
                [quantity for part in self.parts if part.when(m) for quantity in part.quantities],
                lm,
                work,
                settings,
                lambda random, own: self.measure(random, text, own, small),
            )
        made = self.report(m, control, work)
        other = self._by_lens_section(m, work)
        return made if other is None else replace(made, sections=(*made.sections, other))

    def _by_lens_section(self, m: M, work: Work) -> Section | None:
        """Return the section on verdicts that change with the model's fitted lens; None if it has no lens."""
        if work.lens is None or not self.of_values:
            return None
        work.progress("readings by the fitted lens", 0, 1)
        with reading_by(m.lm, work.lens):
            other = self.by_lens(m, work)
            found = [] if other is None else [quantity.judgement(other) for quantity in self.of_values]
            provenance = m.lm.provenance(corpus=m.provenance.corpus, basis="jacobian", seed=work.seed)
        own = [quantity.judgement(m) for quantity in self.of_values]
        return changed_verdicts(self.of_values, own, found, provenance) if found else None

    def report(self, m: M, control: Mapping[str, Judgement], work: Work | None = None) -> Report:
        """Make a report from the measurements.

        Args:
            control: the judgement of each quantity on a model with random weights, by the name of the quantity.
            work: where finished sections are stored, so that an interrupted run continues with the first unfinished
                part; nothing is stored when None.
        """
        provenance, sections = m.provenance, list[Section]()
        parts = [part for part in self.parts if part.when(m)]
        for done, part in enumerate(parts):
            make = partial(part.made, m, control, provenance)
            if work is None or not part.name:
                sections += make()
                continue
            work.progress(part.name, done, len(parts))
            sections += work.stage(part.name, make)
        if work is not None and any(part.name for part in parts):
            work.progress("done", len(parts), len(parts))
        if any(quantity.origins for part in parts for quantity in part.quantities):
            stated = (o if o.where else o._replace(where=q.where) for q in self.quantities for o in q.origins)
            origins = (*stated, *self.origins)
            sections.append(published_section(origins, provenance, *self.notes))
        return Report(
            self.name,
            self.title.format(model=m.lm.name),
            self.subtitle,
            self.source,
            provenance,
            tuple(sections),
            self.facts(m),
        )
