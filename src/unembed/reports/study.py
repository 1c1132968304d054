"""A study of a paper: its parts, and the code that runs them and makes a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from unembed.corpus import Corpus, CorpusSource
from unembed.document.model import Report, Section
from unembed.jacobian import reading_by
from unembed.models.decoder import Decoder
from unembed.reports.changed_verdicts import changed_verdicts
from unembed.reports.options import options_of
from unembed.reports.published import Origin, published_section
from unembed.reports.quantities import Judgement, Part, Quantity
from unembed.reports.random_weights import control_judgements
from unembed.reports.section_cache import cached_sections
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
    """A paper's experiments on a model.

    Attributes:
        name: as `unembed report` takes it.
        title: heading of the page; `{model}` is the model's name.
        subtitle: one sentence below it.
        source: the paper, as a citation.
        options: a dataclass; its `of_control` gives those of the control.
        measure: runs the study's measurements on a model, a text and options.
        parts: in reading order.
        facts: what the numbers depend on, for the top of the page.
        control_text: the text that the control is measured on.
        origins: published values that no quantity has.
        notes: on published values that contradict one another.
        by_lens: the measurements again, with values and streams read by the lens that the model has then; None where
            the text or the model allows no such reading.
        of_values: the quantities that depend on how values or streams are read.
    """

    name: str
    title: str
    subtitle: str
    source: str
    options: type[Any]
    measure: Callable[[Decoder, Any, Work, Any], M]
    parts: tuple[Part[M], ...]
    facts: Callable[[M], Mapping[str, Any]]
    control_text: Callable[[M], Corpus]
    origins: tuple[Origin, ...] = ()
    notes: tuple[str, ...] = ()
    by_lens: Callable[[M], M | None] = lambda _: None
    of_values: tuple[Quantity[M], ...] = ()

    @property
    def quantities(self) -> tuple[Quantity[M], ...]:
        """Return every quantity, in reading order."""
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
        """The verdicts that change by the model's lens; None where it has none."""
        if work.lens is None or not self.of_values:
            return None
        work.progress("readings by the fitted lens", 0, 1)
        with reading_by(m.lm, work.lens):
            other = self.by_lens(m)
            found = [] if other is None else [quantity.judgement(other) for quantity in self.of_values]
            provenance = m.lm.provenance(corpus=m.provenance.corpus, basis="jacobian", seed=work.seed)
        own = [quantity.judgement(m) for quantity in self.of_values]
        return changed_verdicts(self.of_values, own, found, provenance) if found else None

    def report(self, m: M, control: Mapping[str, Judgement], work: Work | None = None) -> Report:
        """Make a report from the measurements.

        Args:
            control: for each quantity, the judgement of the same measurement on randomly initialised weights.
            work: stores the sections of each named part when they are finished, so that an interrupted run continues
                with the first unfinished part.
        """
        provenance, sections = m.provenance, list[Section]()
        parts = [part for part in self.parts if part.when(m)]
        for done, part in enumerate(parts):
            make = partial(part.made, m, control, provenance)
            if work is None or not part.name:
                sections += make()
                continue
            work.progress(part.name, done, len(parts))
            sections += cached_sections(work, part.name, make)
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
