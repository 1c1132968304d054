"""Declare an analysis once, next to its function: its command and its route in the explorer's HTTP API follow from it.

    def composition_answer(circuits: Circuits, kind: Kind = "all", *, top: Top = 20, seed: Seed = 0) -> Answer:
        "List the pairs of heads in which the later one reads most of what the earlier one writes."

    ANALYSIS = Analysis(
        "circuits composition",
        composition_answer,
        Needs.CIRCUITS,
        Cost.SECONDS,
        example="unembed circuits composition --kind k",
        model="attn-2l",
    )

**Add an analysis** in three steps: write the function and its `ANALYSIS` in the subpackage that it belongs to; add the
module's name to `MODULES` below; run `python -m tools.analyses`, which writes `analyses.json`, `docs/cli-reference.md`
and the files for agents. The example above gives the command `unembed circuits composition` with `--help`, `--json`,
`--csv`, `--html` and `--plain`, and the route `POST /api/v1/analyses/circuits-composition`. CONTRIBUTING.md lists the
page and the saved output that tests compare with the commands.

**The function** takes as its first argument what `Needs` names: the model, its circuits, an index, or a model that is
loaded only when the function opens it (`models.UnopenedModel`). `stream.run.run` runs a model and captures activations;
`lm.provenance()` gives a table its provenance. Every further parameter is an option:

- its annotation is one of the types in `unembed.options` (`Top`, `Prompt`, `Seed` ...), or
  `Annotated[int, Option("What it means.")]` for an option that no other analysis has. A name means the same in all
  analyses; a test compares their help texts;
- a parameter without a default is an argument of the command (keyword-only: an option that must be given);
- `int`, `float`, `str`, `bool`, `Path` and `Literal[...]`, each also as `... | None` or `list[...]`, need nothing more.
  Any other type needs `Option(parse=...)`: a function that reads it from text and raises `InvalidInput`;
- `Edits`, `Prompts`, `Progress`, `Index`, `Offline` and `Device` are obtained in different ways (`Option.given`): the
  command line reads edits from `--set`, `--scale` ..., the explorer's API from a list in the request;
- the docstring is the help: its first line in lists of commands, the text before `Args:` on the command's own page.

It returns a `results.Table`, or a `document.Answer`, which has a title, sections of text, tables and figures, and
provenance. `Answer.of_table(table, figure, listed=12, screen=...)` makes an answer of one table: a terminal lists 12
rows, JSON and CSV contain all of them, and `screen` names the explorer's screen with the same result. An answer that
the terminal does not show as tables has a `view`, which `cli.drawings` draws.
The function checks its arguments and raises the package's errors; it prints nothing.

**A third party** adds an analysis by an entry point. In its `pyproject.toml`:

    [project.entry-points."unembed.analyses"]
    "circuits entropy" = "my_package.entropy:ANALYSIS"

The command line reads `analyses.json`, so that `--help` imports neither torch nor the analyses. A third party's module
is imported for the help of its commands: one that imports torch inside its function keeps them fast.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from unembed.errors import InvalidInput
from unembed.options import Option, Parameter, parameter_of

MODULES = (
    "unembed.trace.lens_table",
    "unembed.trace.explanation",
    "unembed.causality.answers",
    "unembed.circuit_graph.answer",
    "unembed.attention.behaviour.head_scores",
    "unembed.attention.text.head_card",
    "unembed.attention.weights.composition",
    "unembed.attention.text.skip_trigrams",
    "unembed.attention.paths.expansion",
    "unembed.attention.behaviour.induction",
    "unembed.attention.paths.stream",
    "unembed.attention.weights.by_offset",
    "unembed.attention.paths.weights_between",
    "unembed.attention.behaviour.source_effects",
    "unembed.attention.behaviour.score_terms",
    "unembed.attention.paths.virtual_heads",
    "unembed.attention.text.direct_path",
    "unembed.attention.text.relations",
    "unembed.attention.paths.term_importance",
    "unembed.attention.behaviour.in_context",
    "unembed.memories.clustering.answer",
    "unembed.concepts.answer",
    "unembed.steering.answer",
    "unembed.index.analyses",
    "unembed.jacobian.fit_answer",
    "unembed.memories.truth_of_values",
    "unembed.memories.confidence",
    "unembed.toxicity.answers",
    "unembed.early_exit.answers",
    "unembed.index.memory_card",
    "unembed.index.best_memories",
    "unembed.index.annotators",
    "unembed.index.atlas_of_index",
    "unembed.atlas.groups",
    "unembed.index.judged_atlas",
)
"""The modules of this package that declare analyses: each has an `ANALYSIS`, or several in `ANALYSES`."""
GROUP = "unembed.analyses"
"""The entry point group through which other packages add analyses."""
MANIFEST = Path(__file__).with_name("analyses.json")


class Needs(StrEnum):
    """The first argument of an analysis's function."""

    MODEL = "model"
    UNOPENED = "unopened model"
    """`models.UnopenedModel`: for analyses that may read their answer from an index or a file instead of loading the
    model."""
    CIRCUITS = "circuits"
    INDEX = "index"
    FILES_OF_INDEX = "files of an index"
    """An index that is opened without its model, and whose build may be unfinished."""
    NOTHING = "nothing"
    """The function has no first argument of this kind; all files that it reads are named by its options."""


class Cost(StrEnum):
    """About how long an analysis of a small model takes; the explorer's page shows progress for long ones."""

    INSTANT = "instant"
    SECONDS = "seconds"
    MINUTES = "minutes"


@dataclass(frozen=True)
class Listing:
    """The description of an analysis in `analyses.json`, which can be read without importing the analysis."""

    name: str
    where: str
    needs: Needs
    cost: Cost
    help: str
    parameters: tuple[Parameter, ...]
    example: str = ""
    model: str = "wren"
    source: str = ""

    def load(self) -> Analysis:
        """Import the analysis's module, and return the analysis."""
        return next(one for one in analyses_of(self.where) if one.name == self.name)


@dataclass(frozen=True)
class Analysis:
    """The declaration of an analysis; this module's docstring explains how to write one.

    Attributes:
        name: the words of the command, such as "circuits composition".
        function: computes the result; takes what `needs` names, then the options.
        needs: the first argument of the function.
        cost: about how long the analysis takes.
        example: a command line to try.
        model: the model to use by default.
        source: the paper that the analysis follows, as a citation.
    """

    name: str
    function: Callable[..., Any]
    needs: Needs
    cost: Cost
    example: str = ""
    model: str = "wren"
    source: str = ""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The options, in the order of the signature."""
        given = list(inspect.signature(self.function).parameters.values())
        options = given if self.needs is Needs.NOTHING else given[1:]
        return tuple(parameter_of(one, self.function) for one in options)

    def listing(self, where: str) -> Listing:
        """Return the description that `analyses.json` stores; `where` is the name of the analysis's module."""
        text = inspect.getdoc(self.function) or ""
        shown = text.split("\n\nArgs:")[0].split("\n\nRaises:")[0].split("\n\nReturns:")[0].split("\n\nSource:")[0]
        own = (self.example, self.model, self.source)
        return Listing(self.name, where, self.needs, self.cost, shown, self.parameters, *own)


def analyses_of(module: str) -> tuple[Analysis, ...]:
    """Return the analyses that a module declares."""
    found = importlib.import_module(module)
    return getattr(found, "ANALYSES", None) or (found.ANALYSIS,)


@cache
def listings() -> tuple[Listing, ...]:
    """Return the analyses of this package, read from `analyses.json`, and those of other installed packages."""
    own = tuple(_from_json(one) for one in json.loads(MANIFEST.read_text(encoding="utf-8")))
    return own + tuple(_of_third_party(point) for point in entry_points(group=GROUP))


def manifest() -> str:
    """Return the text of `analyses.json`, which describes the analyses of all `MODULES`."""
    made = [_to_json(one.listing(module)) for module in MODULES for one in analyses_of(module)]
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _of_third_party(point: EntryPoint) -> Listing:
    declared = point.load()
    if not isinstance(declared, Analysis):
        raise InvalidInput(
            f"entry point {point.name!r} of {GROUP}", why=f"{point.value} is not an object of the class Analysis"
        )
    return declared.listing(point.module)


def _to_json(value: Any) -> Any:
    """Convert a declaration to JSON. Fields with default values are left out; a function becomes its import path."""
    if is_dataclass(value):
        return {f.name: _to_json(own) for f in fields(value) if (own := getattr(value, f.name)) != f.default}
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    return f"{value.__module__}:{value.__qualname__}" if callable(value) else value


def _from_json(stored: dict[str, Any]) -> Listing:
    def parameter(one: dict[str, Any]) -> Parameter:
        option = one["option"] | {"aliases": tuple(one["option"].get("aliases", ()))}
        if name := option.get("parse"):  # the parser is imported only when it is used
            option["parse"] = lambda text: resolve_name(name)(text)
        default = one.get("default")
        default = tuple(default) if isinstance(default, list) else default
        own = {"option": Option(**option), "choices": tuple(one.get("choices", ())), "default": default}
        return Parameter(**(one | own))

    given: dict[str, Any] = {"needs": Needs(stored["needs"]), "cost": Cost(stored["cost"])}
    given["parameters"] = tuple(map(parameter, stored["parameters"]))
    return Listing(**(stored | given))
