"""The options of the study: each choice that the paper leaves open, or that its released code makes differently."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unembed.annotation.judge import Judge
from unembed.errors import InvalidInput
from unembed.names import Basis

_CHOICES = {
    "draw": ("prefixes", "sentences"),
    "triggers": ("prefixes", "sentences"),
    "target": ("next", "last"),
    "basis": ("final", "raw"),
    "values_basis": ("raw", "final"),
    "semantic": ("wordnet", "both"),
}


@dataclass(frozen=True)
class Options:
    """Settings of the study; the defaults follow the paper's text except where noted.

    Attributes:
        index: folder of an index of this model, from which triggers are taken instead of a sweep. How they were chosen
            and how many there are is then the index's own setting, and `triggers` and `top` are not used.
        trigger_corpus: text whose prefixes are the triggers, where it is not the examples' (the paper: triggers from
            the training set, examples from the validation set); what `open_corpus` takes, as a path.
        examples: random prefixes for Figs. 7 to 11 (paper: 4,000).
        draw: "prefixes", any prefix of the corpus with equal chance (the paper's text), or "sentences", one random
            prefix of each of as many random sentences (the released code).
        triggers: "prefixes", every prefix may be a trigger (the text), or "sentences", each sentence at most once and
            never its last prefix (the code).
        target: "next", what follows the prefix (the text), or "last", its last token (what the released agreement
            script compares with).
        top: triggers for each key (paper: 50).
        shown: of these, how many are looked at for patterns (paper: 25).
        pattern_keys: keys of each layer looked at for patterns (paper: 10).
        perturbed_keys: keys of each layer whose triggers are shortened (paper: 100).
        perturbed_triggers: how many random ones of each such key's triggers are shortened (paper: all 50).
        predictive: values with the largest probability to look at (paper: 100).
        compositions: last-layer compositions to judge (paper: 100).
        basis: how streams are read: "final", by the model's own last norm and readout (as in the follow-up's code), or
            "raw", by the readout alone (the formula; the same where there is no last norm, as in WikiLM).
        values_basis: the same for single values: "raw" is the paper's softmax(v E).
        fraction: the fraction of the largest |m| of a layer, above which a memory also counts as active.
        semantic: "wordnet" classes, or "both" these and neighbours in the embedding.
        judge: finds patterns in addition to the rules, such as a language model; see
        `unembed.annotation.judge`.
        include_unlearned: read tokens that the model never learned, too; left out by default.
        control: run the study on the same architecture with random weights, too.
    """

    index: str | None = None
    trigger_corpus: str | None = None
    examples: int = 4000
    draw: str = "prefixes"
    triggers: str = "prefixes"
    target: str = "next"
    top: int = 50
    shown: int = 25
    pattern_keys: int = 10
    perturbed_keys: int = 20
    perturbed_triggers: int = 10
    predictive: int = 100
    compositions: int = 100
    basis: Basis = "final"
    values_basis: Basis = "raw"
    fraction: float = 0.1
    semantic: str = "wordnet"
    judge: Judge | None = None
    tokens_per_batch: int = 2048
    include_unlearned: bool = False
    control: bool = True

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InvalidInput(
                    f"option {name}={getattr(self, name)!r}", why=f"it must be one of {', '.join(map(repr, allowed))}"
                )
        for name in (
            "examples",
            "top",
            "shown",
            "pattern_keys",
            "perturbed_keys",
            "perturbed_triggers",
            "predictive",
            "tokens_per_batch",
        ):
            if getattr(self, name) < 1:
                raise InvalidInput(f"option {name}={getattr(self, name)}", why="it must be at least 1")
        if self.index is not None and self.trigger_corpus is not None:
            raise InvalidInput(
                "an index and a trigger corpus", why="triggers are read from only one of the two; leave one out"
            )
        if self.compositions < 0 or not 0 < self.fraction < 1:
            name = "compositions" if self.compositions < 0 else "fraction"
            raise InvalidInput(f"option {name}={getattr(self, name)}", why="it is out of range")

    def of_control(self) -> Options:
        """Return settings of the control: a small sample, no index, no judge."""
        return replace(
            self,
            index=None,
            trigger_corpus=None,
            examples=min(self.examples, 1000),
            perturbed_keys=min(self.perturbed_keys, 5),
            judge=None,
            control=False,
        )
