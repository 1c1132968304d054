"""The card of an atlas: how many memories (FFN neurons) are described, and how reliable the descriptions are.

A line of the atlas is about one memory at one sign of its coefficient. `DRAWN` of the described lines are drawn at
random. Each is tested on text and passages that were used neither to find nor to select descriptions. The share of
lines that pass is compared with the share that pass with the description of another memory of the layer. At most 5 % of
such random descriptions are expected to pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unembed.atlas.lines import Line, described
from unembed.document.intervals import Measured, mean_of, share_of
from unembed.document.model import Answer, Exhibit, Section
from unembed.document.numbers import percent
from unembed.results import Provenance, Table, format_percent

DRAWN = 1000
"""Number of described lines, drawn at random, on which the card's scores are measured."""
EXAMPLES = 30
"""Number of described lines, drawn at random, that the card lists as examples."""
_OTHERS = ("described", "fires too rarely", "no rule found", "rule below its control")
"""Verdicts of lines that have a description, or no tested rule. Lines with other verdicts have a tested rule alone."""
_EARLY = (
    "rule share: memories with a tested rule. In the first layers memories have rules and few or no descriptions: what "
    "a value vector does there differs from passage to passage, so that the words that it raises at some passages "
    "do not rise at others."
)


@dataclass(frozen=True)
class Card:
    """Counts, test scores and examples of an atlas.

    Attributes:
        memories: number of memories that were examined, each at every sign of the coefficient that the index stores.
        described: number of memories that have a description at one sign or both.
        of_verdict: number of lines with each verdict (`lines.Verdict`).
        of_one_class: number of described lines whose named words all belong to one class, such as months.
        drawn: number of described lines on which the scores were measured.
        passes: for each test ("input", "output", "both"), the share of the drawn lines that pass it.
        random: for "input" and "output", the share of the drawn lines that pass the test with the description of
            another memory of the layer.
        scores: the means of the test scores and of their controls over the drawn lines, by the name of the score.
        by_layer: the columns of a table with one row for each layer, by name.
        examples: described lines drawn at random.
    """

    memories: int
    described: int
    of_verdict: dict[str, int]
    of_one_class: int
    drawn: int
    passes: dict[str, Measured]
    random: dict[str, Measured]
    scores: dict[str, Measured]
    by_layer: dict[str, list[Any]]
    examples: tuple[Line, ...]
    provenance: Provenance
    notes: dict[str, Any]

    @classmethod
    def of(cls, lines: Sequence[Line], provenance: Provenance, notes: dict[str, Any], seed: int = 0) -> Card:
        """Compute the card from the lines of an atlas; `notes` are the settings of its build."""
        found = described(lines)
        rng = np.random.default_rng(seed)
        drawn = [found[i] for i in np.sort(rng.permutation(len(found))[:DRAWN])]
        examples = [drawn[i] for i in np.sort(rng.permutation(len(drawn))[:EXAMPLES])]
        both = [bool(line.input_passes and line.output_passes) for line in drawn]
        passes = {
            "input": _share([line.input_passes for line in drawn]),
            "output": _share([line.output_passes for line in drawn]),
            "both": _share(both),
        }
        random = {
            "input": _share([line.random_input_passes for line in drawn]),
            "output": _share([line.random_output_passes for line in drawn]),
        }
        scores = {
            "input": mean_of([line.test_accuracy for line in drawn if line.test_accuracy is not None], seed=seed),
            "input area": mean_of([line.test_area for line in drawn if line.test_area is not None], seed=seed),
            "input control": mean_of([x for line in drawn if (x := line.test_accuracy_control) is not None], seed=seed),
            "output": mean_of([line.test_output for line in drawn if line.test_output is not None], seed=seed),
            "output control": mean_of([x for line in drawn if (x := line.test_output_control) is not None], seed=seed),
        }
        return cls(
            len({(line.layer, line.index) for line in lines}),
            len({(line.layer, line.index) for line in found}),
            dict(Counter(line.verdict for line in lines)),
            sum(line.concept is not None for line in found),
            len(drawn),
            passes,
            random,
            scores,
            _by_layer(lines),
            tuple(examples),
            provenance,
            notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the card as a dict that can be written as JSON."""
        stored = asdict(self)
        stored["provenance"] = self.provenance.to_dict()
        return {"schema": "unembed.atlas.card/1", **stored}

    def answer(self) -> Answer:
        """Return the card as sections of text and tables, for the terminal and the HTML page."""
        share = share_of(self.described, self.memories)
        text = (
            f"{self.described:,} of {self.memories:,} memories (FFN neurons) have a description "
            f"({format_percent(share.value)}) at one sign of the coefficient or both. A description says where the "
            "memory fires and which whole words rise when its value vector is added, more than when other value "
            "vectors of the layer are added. Named words are among those that rise most in each of three groups of "
            f"passages. In {self.of_one_class:,} lines they are all of one class; in others they need have nothing in "
            "common. On text that was not used to find it, each side exceeded its control.",
            f"Of the described lines {self.drawn:,} were drawn at random and tested once more, on documents and "
            "passages that were used neither to find nor to select descriptions: "
            f"{_percent(self.passes['input'])} pass the input test, "
            f"{_percent(self.passes['output'])} the output test, {_percent(self.passes['both'])} both. With the "
            f"description of another memory of the layer, drawn at random, {_percent(self.random['input'])} and "
            f"{_percent(self.random['output'])} pass.",
            "A line passes a test if its score exceeds 95 % of the control scores, which come from up to 400 other "
            "memories of the layer. The controls of the input test are the scores of the same rule on memories that "
            "have a rule; those of the output test are the scores of the tokens that other descriptions name.",
            f"{self._rules_alone():,} more lines of the file have a rule, tested in the same way, and no tokens.",
        )
        sections = (
            Section("What is described, and how far to trust it", text, (Exhibit("scores", self._scores()),)),
            Section(
                "What is not described, and why",
                (
                    "One row for each memory and sign of its coefficient. A memory fires at the positions that the "
                    "index stores: those where its coefficient is largest. Smaller coefficients are not described. "
                    "Pieces of words, and tokens that occur fewer than four times in the text, are not named.",
                ),
                (Exhibit("verdicts", self._verdicts(), percent=("share",)),),
            ),
            Section(
                "By layer", (_EARLY,), (Exhibit("layers", self._table("Described memories by layer", self.by_layer),
                                         percent=("described_share", "rule_share", "input_passes", "output_passes")),)
            ),
            Section(
                "Descriptions drawn at random",
                ("In the first column a minus sign means: at negative coefficients.",),
                (Exhibit("examples", self._examples()),),
            ),
        )  # fmt: skip
        return Answer(f"Atlas of {self.provenance.model}", sections, self.provenance, data=self.to_dict())

    def _rules_alone(self) -> int:
        """Return the number of lines that have a tested rule but no description."""
        return sum(n for verdict, n in self.of_verdict.items() if verdict not in _OTHERS)

    def _table(self, title: str, columns: dict[str, list[Any]]) -> Table:
        return Table(title, columns, self.provenance)

    def _scores(self) -> Table:
        measured = {
            "pass the input test": self.passes["input"],
            "pass the output test": self.passes["output"],
            "pass both": self.passes["both"],
            "pass the input test, description of another": self.random["input"],
            "pass the output test, description of another": self.random["output"],
            "balanced accuracy of the rule": self.scores["input"],
            "area under the ROC curve": self.scores["input area"],
            "its control (95 % quantile)": self.scores["input control"],
            "tokens that rise less than a named one": self.scores["output"],
            "their control (95 % quantile)": self.scores["output control"],
        }
        columns: dict[str, list[Any]] = {
            "measure": list(measured),
            "mean": [one.value for one in measured.values()],
            "mean_low": [one.low for one in measured.values()],
            "mean_high": [one.high for one in measured.values()],
            "lines": [one.n for one in measured.values()],
        }
        return self._table("Tests of the drawn lines, with 95 % intervals", columns)

    def _verdicts(self) -> Table:
        total = sum(self.of_verdict.values())
        ordered = sorted(self.of_verdict.items(), key=lambda one: -one[1])
        columns: dict[str, list[Any]] = {
            "verdict": [name for name, _ in ordered],
            "lines": [n for _, n in ordered],
            "share": [n / max(1, total) for _, n in ordered],
        }
        return self._table("Lines by verdict", columns)

    def _examples(self) -> Table:
        columns: dict[str, list[Any]] = {
            "memory": [line.memory for line in self.examples],
            "fires_text": [line.input for line in self.examples],
            "raises_text": [line.output for line in self.examples],
            "input": [line.test_accuracy for line in self.examples],
            "output": [line.test_output for line in self.examples],
        }
        return self._table("Described lines, with the scores of both tests", columns)


def _percent(one: Measured) -> str:
    return percent(one) if one.n else "none"


def _share(passed: Sequence[bool | None]) -> Measured:
    known = [one for one in passed if one is not None]
    return share_of(sum(known), len(known))


def _by_layer(lines: Sequence[Line]) -> dict[str, list[Any]]:
    layers = sorted({line.layer for line in lines})
    rows = {n: [line for line in lines if line.layer == n] for n in layers}
    found = {n: described(rows[n]) for n in layers}

    def share(of: Sequence[bool | None]) -> float | None:
        known = [one for one in of if one is not None]
        return sum(known) / len(known) if known else None

    return {
        "layer": layers,
        "memories": [len({line.index for line in rows[n]}) for n in layers],
        "described": [len({line.index for line in found[n]}) for n in layers],
        "described_share": [len({x.index for x in found[n]}) / len({x.index for x in rows[n]}) for n in layers],
        "rule_share": [
            len({x.index for x in rows[n] if x.rule is not None}) / len({x.index for x in rows[n]}) for n in layers
        ],
        "input_passes": [share([line.input_passes for line in found[n]]) for n in layers],
        "output_passes": [share([line.output_passes for line in found[n]]) for n in layers],
    }
