"""The options of the study: choices that the paper leaves open, or where its released code differs from its text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unembed.annotation.judge import Judge
from unembed.errors import InvalidInput
from unembed.names import Basis
from unembed.reports.options import require_at_least

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
        index: folder of an index of this model that already has the triggers: the prefixes with each key's largest
            coefficients. The index then decides how triggers are chosen; `triggers` is not used, and `top` only as an
            upper limit.
        trigger_corpus: path of a text (see `open_corpus`) from which the triggers come, if not from the corpus of the
            examples. (The paper takes triggers from the training set and examples from the validation set.)
        examples: number of random prefixes for Figs. 7 to 11 (paper: 4,000).
        draw: how these prefixes are drawn: "prefixes", any prefix of the corpus with equal probability (the paper's
            text), or "sentences", one random prefix from each of that many random sentences (the released code).
        triggers: which prefixes may be triggers: "prefixes", every prefix (the paper's text), or "sentences", at most
            one prefix of each sentence, and never the whole sentence (the released code).
        target: the token that a value vector should predict: "next", the token after the trigger (the paper's text), or
            "last", the trigger's last token (the released code).
        top: number of triggers for each key (paper: 50).
        shown: number of these triggers in which patterns are sought (paper: 25).
        pattern_keys: number of keys of each layer for which patterns are sought (paper: 10).
        perturbed_keys: number of keys of each layer whose triggers lose a token (paper: 100).
        perturbed_triggers: number of random triggers of each such key that lose a token (paper: all 50).
        predictive: number of value vectors in Table 2: those whose top token has the largest probability (paper: 100).
        compositions: number of examples to judge in which the last layer's output has neither the residual's nor the
            FFN's top token (paper: 100).
        basis: how the residual stream is decoded to tokens: "final", with the final norm and the unembedding (as in the
            code of Geva et al. 2022), or "raw", with the unembedding alone (the paper's formula; WikiLM, the paper's
            model, has no final norm).
        values_basis: how value vectors are decoded, as for `basis`; "raw" is the paper's softmax(v E).
        fraction: a memory also counts as active if |m| is at least this fraction of the layer's largest |m|, where m is
            its coefficient.
        semantic: what makes tokens related in meaning: "wordnet" (classes of WordNet), or "both" (also neighbours in
            the token embedding).
        judge: finds patterns in addition to the rules, such as a language model; see `unembed.annotation.judge`.
        include_unlearned: also include tokens that the model never learned.
        control: also run the study on the same architecture with random weights.
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
        counts = ("examples", "top", "shown", "pattern_keys", "perturbed_keys", "perturbed_triggers", "predictive")
        require_at_least(self, 1, *counts, "tokens_per_batch")
        require_at_least(self, 0, "compositions")
        if self.index is not None and self.trigger_corpus is not None:
            raise InvalidInput(
                "an index and a trigger corpus", why="triggers are read from only one of the two; leave one out"
            )
        if not 0 < self.fraction < 1:
            raise InvalidInput(f"option fraction={self.fraction}", why="it must be between 0 and 1")

    def of_control(self) -> Options:
        """Return settings for the control with random weights: a small sample, no index, no judge."""
        return replace(
            self,
            index=None,
            trigger_corpus=None,
            examples=min(self.examples, 1000),
            perturbed_keys=min(self.perturbed_keys, 5),
            judge=None,
            control=False,
        )
