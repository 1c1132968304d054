"""Describe the memories (FFN neurons) of one layer, and test each description.

The documents of the index's text are divided at random into four parts. Rules are found on two of them; those that
exceed their control on the third part are selected, and tested on the fourth.

Value vectors are added at the ends of passages, which are also divided into four parts. A description names a word if
it is among those that rise most in each of the first three parts. The third part is also used to select descriptions,
and the fourth to test them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.atlas.controls import CONTROLS, FEWEST, chosen
from unembed.atlas.effects import Effects, ValueEffects
from unembed.atlas.input_score import Firings, InputScore, InputTest, least_hits
from unembed.atlas.lines import Line, Verdict
from unembed.atlas.named_words import LEAST_NAMED, NameableWords, NamedTokens
from unembed.atlas.output_score import OutputScore, OutputTest, TokenShares
from unembed.atlas.rules import Rule, examples, quoted_tokens, to_dict
from unembed.atlas.search import RuleSearch
from unembed.atlas.text import RuleText
from unembed.errors import InvalidInput
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder
from unembed.names import Pole

LEAST = 0.75
"""Smallest balanced accuracy of a rule, on the text on which it is found and on the text on which it is selected."""
LEAST_HITS, LEAST_RATIO = 0.55, 5.0
"""To be selected, a rule must be true at this share of firings, and this many times as often as at other positions."""
DESCRIBED_HITS, DESCRIBED_RATIO = 0.76, 12.0
"""The limits for a rule that becomes part of a description. They are higher than `LEAST_HITS` and `LEAST_RATIO`:
people reject rules that miss more firings. The share of firings must be reached on the text in which rules are found,
and on the text with which they are selected; in both over all firings and as a mean over documents, as a document
that repeats itself has many firings. A rule that reaches only the lower limits is tested and stored, but no description
is made from it."""
PARTS = 4
"""Number of parts into which documents are divided: two to find rules, one to select and one to test them."""
PASSAGE_PARTS = 4
"""Number of parts into which passages are divided: three to choose words, of which the third is also used to select
descriptions, and one to test the words."""
FEWEST_TESTED = 5
"""Smallest number of firings on which a rule is tested."""
_NAMING = ("first", "second")
"""Names of the parts of the passages that are used only to find words. A third part, "choose", is also used to select
descriptions."""
_AT_ONCE = 192


@dataclass(frozen=True, eq=False)
class AtlasSource:
    """What an index stores: a text, and the positions at which each memory fires most.

    Attributes:
        text: the text of the index.
        document: the number of the document of each position.
        positions: for each sign of the coefficient, the positions with each memory's largest coefficients, the largest
            first; rows with fewer firings are padded with -1.
        coefficients: the coefficients at these positions.
        starts: the row of each layer's first memory in `positions`, and at the end the number of all memories.
    """

    text: RuleText
    document: Int[np.ndarray, " pos"]
    positions: dict[Pole, Int[np.ndarray, "memory firing"]]
    coefficients: dict[Pole, Float[np.ndarray, "memory firing"]]
    starts: Int[np.ndarray, " layer_and_one"]


class DocumentSplit(NamedTuple):
    """Masks of the positions whose documents are used to find rules, to select among them, and to test them."""

    finding: Bool[np.ndarray, " pos"]
    choosing: Bool[np.ndarray, " pos"]
    testing: Bool[np.ndarray, " pos"]


def split_documents(document: Int[np.ndarray, " pos"], seed: int) -> DocumentSplit:
    """Divide the documents at random into those on which rules are found, selected and tested.

    `document` is the number of the document of each position.
    """
    n = int(document.max(initial=-1)) + 1
    part: Int[np.ndarray, " pos"] = (np.random.default_rng(seed).permutation(n) % PARTS)[document]
    return DocumentSplit(part < 2, part == 2, part == 3)


@dataclass
class _Candidate:
    index: int
    pole: Pole
    firings: Firings
    verdict: Verdict
    rule: Rule | None = None
    ranks: dict[int, int] | None = None
    """The words that are among those that rise most in every part of the passages measured so far, each with the sum of
    its ranks over these parts; None before the first part."""
    named: NamedTokens | None = None
    test: InputScore | None = None
    output: OutputScore | None = None
    change: float = 0.0
    """Mean change of the named tokens' logits at the test passages, in standard deviations over the vocabulary."""

    def still_rising(self, words: list[int]) -> bool:
        """Restrict `ranks` to the words that also rise most in a further part; return whether enough words remain.

        `words` are those that rise most at the passages of this part, highest rise first.
        """
        before = dict.fromkeys(words, 0) if self.ranks is None else self.ranks
        self.ranks = {word: before[word] + rank for rank, word in enumerate(words) if word in before}
        return len(self.ranks) >= LEAST_NAMED


class LayerDescriber:
    """Describes the memories of a model layer by layer."""

    def __init__(
        self,
        lm: Decoder,
        source: AtlasSource,
        passages: Sequence[Int[Tensor, " pos"]],
        *,
        per_layer: int | None = None,
        values: Callable[[int, Int[Tensor, " memory"]], Float[Tensor, "memory d_model"]] | None = None,
        seed: int = 0,
    ) -> None:
        """Divide documents and passages into parts, and count the tokens from which rules are found.

        `passages`, `per_layer` and `seed` are those of `build_atlas`.

        Args:
            values: returns the value vectors of a layer for given rows of `source`; needed if the rows are not memories
                but, for instance, groups of memories.

        Raises:
            InvalidInput: the text has fewer than four documents, or there are fewer than four passages.
        """
        self._lm, self._source, self._seed, self._per_layer = lm, source, seed, per_layer
        self._values = values or (lambda layer, rows: written_values(lm, layer, rows))
        n = int(source.document.max(initial=-1)) + 1
        if n < PARTS or len(passages) < PASSAGE_PARTS:
            raise InvalidInput(
                f"an atlas over a text of {n} documents and {len(passages)} passages",
                why="descriptions are found, selected and tested on different documents and passages, which takes at "
                f"least {PARTS} documents and {PASSAGE_PARTS} passages",
                instead="Give an index of more documents",
            )
        self._finding, self._choosing, self.testing = split_documents(source.document, seed)
        self._search = RuleSearch(source.text, self._finding)
        counts = np.bincount(source.text.token, minlength=lm.d_vocab)
        self._shares = TokenShares(counts[: lm.d_vocab], seed)
        parts = {part: passages[i::PASSAGE_PARTS] for i, part in enumerate((*_NAMING, "choose", "test"))}
        self.measured = ValueEffects(lm, parts, seed)
        self.words = NameableWords(source.text.classes, counts[: lm.d_vocab])

    def lines(self, layer: int, progress: Callable[[int, int], None] = lambda _done, _total: None) -> list[Line]:
        """Describe and test the memories of a layer; return a line for each memory and sign of its coefficient.

        RAM: two tensors of shape (192, d_vocab), as value vectors are measured 192 at a time.
        """
        rng = np.random.default_rng([self._seed, layer])
        n = int(self._source.starts[layer + 1] - self._source.starts[layer])
        numbers = np.arange(n)
        if self._per_layer is not None and self._per_layer < n:
            numbers = np.sort(rng.permutation(n)[: self._per_layer])
        places: list[tuple[int, Pole]] = [(int(i), pole) for pole in self._source.positions for i in numbers]
        steps = _Steps(progress, 4 * len(places))
        found = []
        for index, pole in places:
            found.append(self._with_rule(layer, index, pole))
            steps.several(1)
        ruled = self._choose_rules([one for one in found if one.rule is not None], rng)
        named = self._name_tokens(layer, [one for one in ruled if one.verdict == "words differ by passage"], steps)
        self._choose_tokens(layer, named, rng, steps)
        self._test_rules(ruled, rng)
        self._test_tokens([one for one in named if one.verdict == "described"], layer, rng, steps)
        return [self._line(layer, one) for one in sorted(found, key=lambda one: (one.index, one.pole != "positive"))]

    def words_alone(self, layer: int) -> dict[tuple[int, Pole], bool]:
        """Name and test words for all memories, whether or not they have a rule.

        Returns:
            For each memory and sign that has words, whether they pass the output test.
        """
        rng, steps = np.random.default_rng([self._seed, layer]), _Steps(lambda _done, _total: None, 0)
        n = int(self._source.starts[layer + 1] - self._source.starts[layer])
        every = [
            _Candidate(i, pole, self._firings(layer, i, pole), "words differ by passage")
            for pole in self._source.positions for i in range(n)
        ]  # fmt: skip
        named = self._name_tokens(layer, every, steps)
        self._choose_tokens(layer, named, rng, steps)
        self._test_tokens([one for one in named if one.verdict == "described"], layer, rng, steps)
        return {(one.index, one.pole): one.output.passes and one.change > 0 for one in every if one.output is not None}

    def _firings(self, layer: int, index: int, pole: Pole) -> Firings:
        row = int(self._source.starts[layer]) + index
        at = np.asarray(self._source.positions[pole][row], dtype=np.int64)
        size = np.abs(np.asarray(self._source.coefficients[pole][row]))
        return Firings(index, at[at >= 0], size[at >= 0])

    def _with_rule(self, layer: int, index: int, pole: Pole) -> _Candidate:
        """Return a memory with the best rule for its firings, or with the reason why it has no rule."""
        firings = self._firings(layer, index, pole)
        found = self._search.find(firings.inside(self._finding).at)
        if (
            found is None
            or min(len(firings.inside(part).at) for part in (self._choosing, self.testing)) < FEWEST_TESTED
        ):
            return _Candidate(index, pole, firings, "fires too rarely")
        if found.accuracy < LEAST:
            return _Candidate(index, pole, firings, "no rule found")
        return _Candidate(index, pole, firings, "rule below its control", found.rule)

    def _choose_rules(self, ruled: Sequence[_Candidate], rng: np.random.Generator) -> list[_Candidate]:
        """Return the memories whose rule exceeds its controls on the text on which rules are selected."""
        test = InputTest(self._choosing, [one.firings for one in _some(ruled, rng)])
        holds = (_rule(one).holds(self._source.text) for one in ruled)
        parts, document = (self._finding, self._choosing), self._source.document
        scores = [
            (test.score(at, one.firings), least_hits(at, one.firings, document, parts))
            for one, at in zip(ruled, holds, strict=True)
        ]
        found = []
        for i in chosen(np.array([1.0 if score is None else score.chance for score, _ in scores])):
            score, hits = scores[i]
            if score is None or score.accuracy < LEAST or score.hits < max(LEAST_HITS, LEAST_RATIO * score.base):
                continue
            enough = hits >= DESCRIBED_HITS and score.hits >= DESCRIBED_RATIO * score.base
            ruled[i].verdict = "words differ by passage" if enough else "rule misses too many firings"
            found.append(ruled[i])
        return found

    def _name_tokens(self, layer: int, ruled: Sequence[_Candidate], steps: _Steps) -> list[_Candidate]:
        """Find the words that rise most in every part of `_NAMING`; return the memories that have enough such words.

        If none of the first `_AT_ONCE` memories has enough, as in early layers, the others are not measured: too few
        could have enough words to serve as controls for one another.
        """
        found: list[_Candidate] = []
        for start in range(0, len(ruled), _AT_ONCE):
            left = ruled[start : start + _AT_ONCE]
            for part in _NAMING:
                for _, effects in self._effects(layer, left, part):
                    words = self.words.rising(effects.rises)
                    left = [one for one, rising in zip(left, words, strict=True) if one.still_rising(rising)]
            found += left
            steps.several(_AT_ONCE)
            if not found:
                break
        return self._named(found)

    def _named(self, found: Sequence[_Candidate]) -> list[_Candidate]:
        """Choose the words to name for each memory, the best ranks first; return the memories with enough controls."""
        for one in found:
            one.verdict = "words below their control"
            ranks = one.ranks or {}
            one.named = self.words.named(sorted(ranks, key=ranks.__getitem__))
        indices = Counter(one.index for one in found)
        return [one for one in found if len(found) - indices[one.index] >= FEWEST]

    def _choose_tokens(self, layer: int, ruled: Sequence[_Candidate], rng: np.random.Generator, steps: _Steps) -> None:
        """Set the verdict "described" for memories whose words also rise more than their controls in part "choose"."""
        test = self._output_test(ruled, rng)
        chance = np.ones(len(ruled))
        for start, effects in self._effects(layer, ruled, "choose"):
            some = range(start, start + len(effects.rises))
            scores = test.scores(effects.rises, [(i, ruled[i].index) for i in some])
            words = self.words.rising(effects.rises)
            for i, score, changes, rising in zip(some, scores, effects.changes, words, strict=True):
                if not ruled[i].still_rising(rising):
                    ruled[i].verdict = "words differ by passage"
                elif _mean_change(changes, ruled[i]) > 0:
                    chance[i] = score.chance
            steps.several(len(some))
        left = [ruled[i] for i in chosen(chance) if ruled[i].verdict == "words below their control"]
        for one in self._named(left):
            one.verdict = "described"

    def _test_rules(self, ruled: Sequence[_Candidate], rng: np.random.Generator) -> None:
        """Test the selected rules on the test documents; as a control, test each on the firings of another memory."""
        others = _another(ruled, rng)
        test = InputTest(self.testing, [one.firings for one in _some(ruled, rng)])
        for i, one in enumerate(ruled):
            random = None if (j := others.get(i)) is None else ruled[j].firings
            one.test = test.score(_rule(one).holds(self._source.text), one.firings, random)

    def _test_tokens(self, selected: Sequence[_Candidate], layer: int, rng: np.random.Generator, steps: _Steps) -> None:
        """Test the named words of the described lines at the test passages.

        As a control, the tokens that another selected line names are tested on the same value vector.
        """
        others = _another(selected, rng)
        test = self._output_test(selected, rng)
        for start, effects in self._effects(layer, selected, "test"):
            some = range(start, start + len(effects.rises))
            random = [None if (j := others.get(i)) is None else (j, selected[j].index) for i in some]
            scores = test.scores(effects.rises, [(i, selected[i].index) for i in some], random)
            for i, score, changes in zip(some, scores, effects.changes, strict=True):
                selected[i].output, selected[i].change = score, _mean_change(changes, selected[i])
            steps.several(len(some))

    def _output_test(self, memories: Sequence[_Candidate], rng: np.random.Generator) -> OutputTest:
        controls = [(one.index, _named(one)) for one in _some(memories, rng)]
        return OutputTest(self._shares, {i: _named(one) for i, one in enumerate(memories)}, controls)

    def _effects(self, layer: int, memories: Sequence[_Candidate], part: str) -> Iterator[tuple[int, Effects]]:
        """Yield, for each chunk of memories, the index of the first one and the effects of their value vectors."""
        for start in range(0, len(memories), _AT_ONCE):
            some = memories[start : start + _AT_ONCE]
            rows = torch.tensor([one.index for one in some], device=self._lm.device)
            signs = torch.tensor([-1.0 if one.pole == "negative" else 1.0 for one in some], device=self._lm.device)
            vectors = self._values(layer, rows)
            yield start, self.measured.of(layer, vectors * signs[:, None].to(vectors), part)

    def _input_words(self, one: _Candidate) -> str:
        text, at = self._source.text, one.firings.inside(self._finding).at
        words = _rule(one).words(text.strings)
        seen = examples(_rule(one), text, at)
        return f"{words}, such as {quoted_tokens(seen, text.strings)}" if seen else words

    def _output_words(self, one: _Candidate) -> str:
        named = _named(one)
        texts = quoted_tokens(named.tokens, self._source.text.strings)
        return texts if named.name is None else f"{named.name} ({texts})"

    def _line(self, layer: int, one: _Candidate) -> Line:
        name = self._lm.memory_name(layer, one.index, one.pole)
        line = Line(name, layer, one.index, one.pole, one.verdict)
        if (test := one.test) is None:
            return line
        line = replace(
            line,
            input=self._input_words(one),
            rule=json.dumps(to_dict(_rule(one)), ensure_ascii=False, separators=(",", ":")),
            firings=test.firings,
            test_accuracy=test.accuracy,
            test_area=test.area,
            test_accuracy_control=_finite(test.control),
            test_hits=test.hits,
            test_base=test.base,
            input_passes=test.passes,
            random_input_passes=test.random_passes,
        )
        if (output := one.output) is None:
            return line
        named, strings = _named(one), self._source.text.strings
        return replace(
            line,
            output=self._output_words(one),
            token_ids=named.tokens,
            tokens=tuple(strings[token] for token in named.tokens),
            concept=named.name,
            test_output=output.score,
            test_output_control=_finite(output.control),
            output_passes=output.passes and one.change > 0,
            random_output_passes=output.random_passes,
        )


class _Steps:
    """Counts processed memories, and reports progress after about every 200 memories."""

    def __init__(self, report: Callable[[int, int], None], total: int) -> None:
        self._report, self._total, self._done, self._reported = report, total, 0, 0

    def several(self, n: int) -> None:
        self._done += n
        if self._done - self._reported >= _AT_ONCE:
            self._reported = self._done
            self._report(self._done, self._total)


def _some(memories: Sequence[_Candidate], rng: np.random.Generator) -> list[_Candidate]:
    """Draw at most `CONTROLS` memories that serve as controls."""
    return [memories[i] for i in rng.permutation(len(memories))[:CONTROLS]]


def _another(memories: Sequence[_Candidate], rng: np.random.Generator) -> dict[int, int]:
    """Draw another memory of the list for each memory.

    The keys and values of the result are indices in the list. A memory has no entry if there is no other memory.
    """
    order = rng.permutation(len(memories)).tolist()
    found = {}
    for k, i in enumerate(order):
        # The next entry in the order may be the same memory, because a memory is listed once for each sign of its
        # coefficient. So the first entry that is another memory is taken.
        following = (order[(k + step) % len(order)] for step in range(1, len(order)))
        j = next((j for j in following if memories[j].index != memories[i].index), None)
        if j is not None:
            found[i] = j
    return found


def _mean_change(changes: Float[Tensor, " vocab"], one: _Candidate) -> float:
    return float(changes[list(_named(one).tokens)].mean())


def _finite(bound: float) -> float | None:
    return bound if np.isfinite(bound) else None


def _rule(one: _Candidate) -> Rule:
    assert one.rule is not None
    return one.rule


def _named(one: _Candidate) -> NamedTokens:
    assert one.named is not None
    return one.named
