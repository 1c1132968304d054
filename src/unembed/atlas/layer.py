"""Describe the memories (FFN neurons) of one layer, test each description, and write the lines.

The documents of the index's text are in three parts, drawn at random: half of them find the rules, a quarter chooses
the lines that exceed their control, and a quarter tests those that were chosen. The passages at whose ends values are
added are in two parts, which choose and test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.atlas.input_score import InputScore, input_score
from unembed.atlas.lines import Line, Verdict, rule_json
from unembed.atlas.output_score import (
    OTHERS,
    READ,
    NamedTokens,
    frequency_groups,
    named_tokens,
    output_scores,
    shares_below,
)
from unembed.atlas.rules import Rule, quoted, to_dict
from unembed.atlas.search import RuleSearch
from unembed.atlas.text import RuleText
from unembed.errors import InvalidInput
from unembed.memories.truth_of_values import value_effects
from unembed.memories.values import value_readings, written_values
from unembed.models.decoder import Decoder
from unembed.names import Pole

LEAST = 0.6
"""The least balanced accuracy of a rule that is a line, where it is found and where lines are chosen."""
PARTS = 4
"""Of four documents two find rules, one chooses lines, and one tests them."""
_AT_ONCE = 192


@dataclass(frozen=True, eq=False)
class AtlasSource:
    """What an index stores: a text, and the positions at which each memory fires most.

    Attributes:
        text: the text of the index.
        document: the document of each position.
        positions: for each pole, (memories, firings), the strongest first; -1 where there are fewer.
        coefficients: the coefficients there.
        starts: the first memory of each layer, and the number of memories.
    """

    text: RuleText
    document: Int[np.ndarray, " pos"]
    positions: dict[Pole, Int[np.ndarray, "memory firing"]]
    coefficients: dict[Pole, Float[np.ndarray, "memory firing"]]
    starts: Int[np.ndarray, " layer_and_one"]


@dataclass
class _Candidate:
    index: int
    pole: Pole
    verdict: Verdict
    rule: Rule | None = None
    test: InputScore | None = None
    named: NamedTokens | None = None


class LayerDescriber:
    """Describes the memories of a model layer by layer."""

    def __init__(
        self,
        lm: Decoder,
        source: AtlasSource,
        passages: Sequence[Int[Tensor, " pos"]],
        *,
        per_layer: int | None = None,
        seed: int = 0,
    ) -> None:
        """Divide the text into its parts, and count what rules are found by.

        Args:
            passages: at whose ends values are added; the first half chooses, the second half tests.
            per_layer: how many memories of each layer to draw at random; all when None.

        Raises:
            InvalidInput: the text has fewer than four documents, or there are fewer than two passages.
        """
        self._lm, self._source, self._seed, self._per_layer = lm, source, seed, per_layer
        n = int(source.document.max(initial=-1)) + 1
        if n < PARTS or len(passages) < 2:
            raise InvalidInput(
                f"an atlas over a text of {n} documents and {len(passages)} passages",
                why=f"at least {PARTS} documents and 2 passages are needed, so that some test what others chose",
                instead="Give an index of more documents",
            )
        drawn = np.random.default_rng(seed).permutation(n) % PARTS
        part = drawn[source.document]
        self._finding, self._choosing, self._testing = part < 2, part == 2, part == 3
        self._search = RuleSearch(source.text, self._finding)
        counts = np.bincount(source.text.token, minlength=lm.d_vocab)
        self._groups = frequency_groups(counts[: lm.d_vocab])
        half = len(passages) // 2
        self._passages = {"choose": passages[:half], "test": passages[half:]}

    def lines(self, layer: int, progress: Callable[[int, int], None] = lambda _done, _total: None) -> list[Line]:
        """Describe the memories of a layer.

        Memory: twice the effects of 192 values on every token's logit.
        """
        rng = np.random.default_rng([self._seed, layer])
        n = int(self._source.starts[layer + 1] - self._source.starts[layer])
        chosen = np.arange(n)
        if self._per_layer is not None and self._per_layer < n:
            chosen = np.sort(rng.permutation(n)[: self._per_layer])
        places: list[tuple[int, Pole]] = [(int(i), pole) for pole in self._source.positions for i in chosen]
        others, owners = self._others(layer, rng)
        found = []
        for done, (index, pole) in enumerate(places):
            found.append(self._with_rule(layer, index, pole, others[owners != index]))
            if done % 256 == 0:
                progress(done, 2 * len(places))
        ruled = [one for one in found if one.rule is not None]
        self._name_tokens(layer, ruled)
        scored = self._with_output(layer, ruled, rng, lambda done: progress(len(places) + done, 2 * len(places)))
        return [
            scored.get((one.index, one.pole)) or self._line(layer, one)
            for one in sorted(found, key=lambda one: (one.index, one.pole != "positive"))
        ]

    def _firings(
        self, layer: int, index: int, pole: Pole
    ) -> tuple[Int[np.ndarray, " firing"], Float[np.ndarray, " firing"]]:
        row = int(self._source.starts[layer]) + index
        at = np.asarray(self._source.positions[pole][row], dtype=np.int64)
        size = np.abs(np.asarray(self._source.coefficients[pole][row]))
        return at[at >= 0], size[at >= 0]

    def _others(
        self, layer: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "memory firing"], Int[np.ndarray, " memory"]]:
        """Draw random memories of a layer, at any pole: their firings, and their numbers."""
        start, end = self._source.starts[layer : layer + 2]
        poles = list(self._source.positions)
        drawn = rng.integers(start, end, OTHERS)
        signs = rng.integers(0, len(poles), OTHERS)
        rows = [np.asarray(self._source.positions[poles[s]][r]) for s, r in zip(signs, drawn, strict=True)]
        return np.stack(rows).astype(np.int64), drawn - start

    def _with_rule(self, layer: int, index: int, pole: Pole, others: Int[np.ndarray, "memory firing"]) -> _Candidate:
        """Find a rule, and score it on the part that chooses and the part that tests."""
        at, size = self._firings(layer, index, pole)
        found = self._search.find(at[self._finding[at]])
        if found is None:
            return _Candidate(index, pole, "fires too rarely")
        if found.accuracy < LEAST:
            return _Candidate(index, pole, "no rule found")
        holds = found.rule.holds(self._source.text)
        scores = []
        for part in (self._choosing, self._testing):
            of_part = np.where((others >= 0) & part[np.maximum(others, 0)], others, -1)
            scores.append(input_score(holds, part, at[part[at]], size[part[at]], of_part))
        choosing, testing = scores
        if choosing is None or testing is None:
            return _Candidate(index, pole, "fires too rarely")
        if not choosing.passes or choosing.accuracy < LEAST:
            return _Candidate(index, pole, "rule below its control")
        return _Candidate(index, pole, "tokens below their control", found.rule, testing)

    def _name_tokens(self, layer: int, ruled: Sequence[_Candidate]) -> None:
        for pole in self._source.positions:
            own = [one for one in ruled if one.pole == pole]
            if own:
                ids = value_readings(self._lm, READ, layers=[layer], bottom=pole == "negative").ids[0].numpy()
                named = named_tokens(self._search.text.classes, ids[[one.index for one in own]])
                for one, tokens in zip(own, named, strict=True):
                    one.named = tokens

    def _with_output(
        self, layer: int, ruled: Sequence[_Candidate], rng: np.random.Generator, progress: Callable[[int], None]
    ) -> dict[tuple[int, Pole], Line]:
        """Measure what adding each value does, and return the lines of the memories that have a rule."""
        names = [_named(one) for one in ruled]
        controls = [[names[j] for j in rng.permutation(len(ruled))[: OTHERS + 1] if j != i] for i in range(len(ruled))]
        chosen: list[int] = []
        for start, shares in self._shares(layer, ruled, "choose"):
            rows = range(start, start + len(shares))
            scores = output_scores(shares, [names[i] for i in rows], [controls[i] for i in rows])
            chosen += [i for i, score in zip(rows, scores, strict=True) if score.passes]
            progress(start)
        lines: dict[tuple[int, Pole], Line] = {(one.index, one.pole): self._line(layer, one) for one in ruled}
        passing = [ruled[i] for i in chosen]
        # Another memory's description, as a control of both tests: that of the next described one, in a drawn order.
        order = rng.permutation(len(passing))
        other = {int(order[k]): int(order[k - 1]) for k in range(len(passing))} if len(passing) > 1 else {}
        for start, shares in self._shares(layer, passing, "test"):
            rows = range(start, start + len(shares))
            own_controls = [controls[chosen[i]] for i in rows]
            scores = output_scores(shares, [names[chosen[i]] for i in rows], own_controls)
            random = output_scores(shares, [names[chosen[other.get(i, i)]] for i in rows], own_controls)
            for i, score, of_random in zip(rows, scores, random, strict=True):
                one = passing[i]
                line = replace(
                    lines[one.index, one.pole],
                    verdict="described",
                    output=self._output_words(one),
                    test_output=score.score,
                    test_output_control=score.control,
                    output_passes=score.passes,
                )
                if i in other:
                    line = replace(
                        line,
                        random_output_passes=of_random.passes,
                        random_input_passes=self._random_input(layer, one, passing[other[i]], lines),
                    )
                lines[one.index, one.pole] = line
            progress(len(ruled) // 2 + start)
        return lines

    def _random_input(
        self, layer: int, one: _Candidate, other: _Candidate, lines: dict[tuple[int, Pole], Line]
    ) -> bool | None:
        """Tell whether another memory's rule passes the test on this one's firings."""
        assert other.rule is not None
        holds = other.rule.holds(self._source.text)
        at, size = self._firings(layer, one.index, one.pole)
        inside = self._testing[at]
        found = input_score(holds, self._testing, at[inside], size[inside], np.zeros((0, 1), dtype=np.int64))
        control = lines[other.index, other.pole].test_accuracy_control
        return None if found is None or control is None else found.accuracy > control

    def _shares(
        self, layer: int, memories: Sequence[_Candidate], part: str
    ) -> Iterator[tuple[int, Float[Tensor, "memory vocab"]]]:
        """Yield, for some memories at a time, the number of the first and `shares_below` of their effects."""
        for start in range(0, len(memories), _AT_ONCE):
            some = memories[start : start + _AT_ONCE]
            rows = torch.tensor([one.index for one in some], device=self._lm.device)
            signs = torch.tensor([-1.0 if one.pole == "negative" else 1.0 for one in some], device=self._lm.device)
            vectors = written_values(self._lm, layer, rows)
            effects = value_effects(self._lm, vectors * signs[:, None].to(vectors), layer, self._passages[part])
            yield start, shares_below(effects[:, : self._lm.d_vocab], self._groups)

    def _output_words(self, one: _Candidate) -> str:
        named = _named(one)
        texts = quoted(named.tokens, self._source.text.strings)
        return texts if named.name is None else f"{named.name} ({texts})"

    def _line(self, layer: int, one: _Candidate) -> Line:
        name = self._lm.memory_name(layer, one.index, one.pole)
        line = Line(name, layer, one.index, one.pole, one.verdict)
        if one.rule is None or one.test is None:
            return line
        named, test, strings = _named(one), one.test, self._source.text.strings
        return replace(
            line,
            input=one.rule.words(strings),
            rule=rule_json(to_dict(one.rule)),
            token_ids=named.tokens,
            tokens=tuple(strings[token] for token in named.tokens),
            concept=named.name,
            firings=test.firings,
            test_accuracy=test.accuracy,
            test_area=test.area,
            test_accuracy_control=test.control,
            test_hits=test.hits,
            test_base=test.base,
            input_passes=test.passes,
        )


def _named(one: _Candidate) -> NamedTokens:
    assert one.named is not None
    return one.named
