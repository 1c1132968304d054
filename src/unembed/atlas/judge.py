"""Let a language model describe memories (FFN neurons) and test its descriptions and the atlas's in the same way.

The judge answers three prompts, which are the files in the folder `prompts`:

| prompt | the judge sees | the judge answers |
|---|---|---|
| `describe` | the strongest firings on the documents on which rules are found; the tokens that rise | two sentences |
| `detect` | a description, and excerpts that end at firings or elsewhere | the excerpts that it fits |
| `choose` | a description, and three texts, each steered by another value vector | one of the texts |

The excerpts of `detect` come from the documents on which the atlas tests rules; half of them end where the memory
fires. The atlas's rule is tested at the same positions. The texts of `choose` continue passages at which the atlas
tests tokens. The control is the description of another memory, tested on the same excerpts and texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unembed.atlas.controls import bounds
from unembed.atlas.effects import ValueEffects
from unembed.atlas.layer import PASSAGE_PARTS, AtlasSource, split_documents
from unembed.atlas.lines import Line
from unembed.atlas.rules import read_rule
from unembed.concepts.token_cleaning import clean
from unembed.document.intervals import Measured, mean_of, share_of
from unembed.errors import UnembedError
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder
from unembed.stream.generation import generate_ids
from unembed.stream.interventions import add_vector
from unembed.stream.run import run

Ask = Callable[[Sequence[str]], list[str]]
"""A function that returns a language model's answer to every prompt."""
EXCERPTS, BEFORE = 10, 24
"""Largest number of firings, and of other positions, in a `detect` prompt; number of tokens shown before each."""
SHOWN, WORDS = 12, 20
"""Number of firings, and of tokens that rise, shown in a `describe` prompt."""
CONTINUED, NEW_TOKENS = 2, 20
"""Number of passages that are continued for each text of a `choose` prompt, and number of tokens of a continuation."""
STRENGTH = 0.5
"""Norm of the vector that is added to steer a text, as a share of the mean norm of the residual stream after its
layer."""
TEXTS = 3


class Description(NamedTuple):
    """A description in words: an input side and an output side; a side that the judge's answer lacks is empty."""

    fires: str
    raises: str


@dataclass(frozen=True)
class Trial:
    """The tests of one description of a memory, and of a control: the description of another memory.

    Attributes:
        description: the description.
        detection: balanced accuracy at the excerpts; None if the judge's answer could not be read.
        detection_control: the balanced accuracy of the control's description at the same excerpts.
        chosen: whether the judge chose the text that the memory's value vector steered; None if its answer could not be
            read.
        chosen_control: whether the judge chose this text when it was given the control's description.
    """

    description: Description
    detection: float | None
    detection_control: float | None
    chosen: bool | None
    chosen_control: bool | None


@dataclass(frozen=True)
class Judged:
    """A line of an atlas, with the judge's description and the atlas's, both tested."""

    line: Line
    judge: Trial
    atlas: Trial


@dataclass(frozen=True)
class Scores:
    """The scores of the descriptions by one author, the judge or the atlas, over the judged lines.

    Attributes:
        detection: mean balanced accuracy; an answer that cannot be read counts as 0.5, which is chance.
        detection_control: the same for the descriptions of other lines.
        detection_passes: share of lines whose accuracy exceeds 95 % of the controls of all other lines.
        chosen: share of lines for which the steered text was chosen; an answer that cannot be read counts as wrong.
        chosen_control: the same for the descriptions of other lines; chance is 1 / `TEXTS`.
        unread: number of answers that could not be read.
    """

    detection: Measured
    detection_control: Measured
    detection_passes: Measured
    chosen: Measured
    chosen_control: Measured
    unread: int

    @classmethod
    def of(cls, tested: Sequence[Trial], seed: int = 0) -> Scores:
        """Compute the scores of one author, the judge or the atlas, from the tests of its descriptions."""
        own = [0.5 if one.detection is None else one.detection for one in tested]
        control = np.array([0.5 if one.detection_control is None else one.detection_control for one in tested])
        counted = ~np.eye(len(tested), dtype=bool)
        limits = bounds(np.tile(control, (len(tested), 1)), counted)
        answers = [
            answer
            for one in tested
            for answer in (one.detection, one.detection_control, one.chosen, one.chosen_control)
        ]
        return cls(
            mean_of(own, seed=seed),
            mean_of(control.tolist(), seed=seed),
            share_of(int((np.array(own) > limits).sum()), len(tested)),
            share_of(sum(one.chosen is True for one in tested), len(tested)),
            share_of(sum(one.chosen_control is True for one in tested), len(tested)),
            sum(answer is None for answer in answers),
        )


class _Excerpts(NamedTuple):
    at: Int[np.ndarray, " excerpt"]
    fires: Bool[np.ndarray, " excerpt"]


class _Texts(NamedTuple):
    texts: tuple[str, ...]
    own: int


def judge_lines(
    lm: Decoder,
    source: AtlasSource,
    lines: Sequence[Line],
    passages: Sequence[Int[Tensor, " pos"]],
    ask: Ask,
    *,
    seed: int = 0,
) -> list[Judged]:
    """Let a judge describe the memories of described lines, and test its descriptions and the atlas's.

    Args:
        source: the text and the firings from which the atlas was built.
        lines: at least three described lines of different memories.
        passages: the passages with which the atlas was built.
        ask: returns a language model's answer to every prompt.
        seed: the seed of the atlas's build, by which documents are divided into those to find rules and to test them.

    Raises:
        UnembedError: no description of the judge can be read.
    """
    rng = np.random.default_rng(seed)
    split = split_documents(source.document, seed)
    written = [_description(one) for one in ask(_describe(lm, source, lines, passages, split.finding, seed))]
    if not any(one.fires and one.raises for one in written):
        raise UnembedError(
            "the judge's descriptions",
            why="none has the two lines FIRES: and RAISES: that the prompt asks for",
            instead="Try a larger language model",
        )
    of_atlas = [Description(line.input or "", line.output or "") for line in lines]
    excerpts = [_excerpts(source, line, split.testing, rng) for line in lines]
    steered = _steered(lm, lines, passages[PASSAGE_PARTS - 1 :: PASSAGE_PARTS][:CONTINUED])
    texts = [_texts(i, lines, steered, rng) for i in range(len(lines))]
    others = [_other(i, lines, rng) for i in range(len(lines))]

    def detections(descriptions: Sequence[Description]) -> list[float | None]:
        prompts = [
            _prompt(
                "detect", description=one.fires, excerpts=_numbered([_excerpt(source, at) for at in found.at.tolist()])
            )
            for one, found in zip(descriptions, excerpts, strict=True)
        ]
        answers = _some(ask, prompts, [bool(one.fires) for one in descriptions])
        return [_detection(answer, found.fires) for answer, found in zip(answers, excerpts, strict=True)]

    def choices(descriptions: Sequence[Description]) -> list[bool | None]:
        prompts = [
            _prompt("choose", description=one.raises, texts=_numbered(found.texts))
            for one, found in zip(descriptions, texts, strict=True)
        ]
        answers = _some(ask, prompts, [bool(one.raises) for one in descriptions])
        return [_choice(answer, found.own) for answer, found in zip(answers, texts, strict=True)]

    holds = [read_rule(json.loads(line.rule or "")).holds(source.text) for line in lines]
    rules = [_balanced(rule[found.at], found.fires) for rule, found in zip(holds, excerpts, strict=True)]
    of_others = [_balanced(holds[j][found.at], found.fires) for j, found in zip(others, excerpts, strict=True)]
    written_control, atlas_control = ([one[j] for j in others] for one in (written, of_atlas))
    of_judge = (detections(written), detections(written_control), choices(written), choices(written_control))
    judge = map(Trial, written, *of_judge)
    atlas = map(Trial, of_atlas, rules, of_others, choices(of_atlas), choices(atlas_control))
    return [Judged(*row) for row in zip(lines, judge, atlas, strict=True)]


@cache
def _template(name: str) -> str:
    return (files("unembed.atlas") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


def _prompt(name: str, **parts: str) -> str:
    """Fill in the placeholders of a prompt template; the inserted texts may contain braces."""
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], _template(name))


def _numbered(texts: Sequence[str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1))


def _some(ask: Ask, prompts: Sequence[str], given: Sequence[bool]) -> list[str]:
    """Send the prompts whose description is not empty; the answers to the other prompts are empty strings."""
    answers = iter(ask([prompt for prompt, is_given in zip(prompts, given, strict=True) if is_given]))
    return [next(answers) if is_given else "" for is_given in given]


def _excerpt(source: AtlasSource, at: int) -> str:
    text = source.text
    tokens = text.token[max(int(text.start[at]), at - BEFORE) : at + 1].tolist()
    return json.dumps("".join(text.strings[token] for token in tokens), ensure_ascii=False)


def _fires_at(source: AtlasSource, line: Line) -> Int[np.ndarray, " firing"]:
    at = np.asarray(source.positions[line.pole][int(source.starts[line.layer]) + line.index], dtype=np.int64)
    return at[at >= 0]


def _excerpts(
    source: AtlasSource, line: Line, testing: Bool[np.ndarray, " pos"], rng: np.random.Generator
) -> _Excerpts:
    """Draw equally many firings and other positions from the documents on which rules are tested, in random order."""
    all_firings = _fires_at(source, line)
    at = rng.permutation(all_firings[testing[all_firings]])[:EXCERPTS]
    quiet = testing.copy()
    quiet[all_firings] = False
    both = np.concatenate([at, rng.choice(np.flatnonzero(quiet), len(at), replace=False)])
    order = rng.permutation(len(both))
    return _Excerpts(both[order], (np.arange(len(both)) < len(at))[order])


def _describe(
    lm: Decoder,
    source: AtlasSource,
    lines: Sequence[Line],
    passages: Sequence[Int[Tensor, " pos"]],
    finding: Bool[np.ndarray, " text_pos"],
    seed: int,
) -> list[str]:
    measured = ValueEffects(lm, {"name": passages[::PASSAGE_PARTS]}, seed)
    strings = source.text.strings
    whole = torch.tensor([one.word is not None for one in clean(list(strings))], device=lm.device)
    prompts = {}
    # The lines are sorted by layer, because `ValueEffects` caches the reference effects of one layer at a time.
    for i in sorted(range(len(lines)), key=lambda i: lines[i].layer):
        rises = measured.of(lines[i].layer, _vector(lm, lines[i])[None], "name").rises[0]
        best = rises[: len(strings)].masked_fill(~whole, -torch.inf).topk(WORDS).indices.tolist()
        at = _fires_at(source, lines[i])
        prompts[i] = _prompt(
            "describe",
            excerpts=_numbered([_excerpt(source, one) for one in at[finding[at]][:SHOWN].tolist()]),
            words=", ".join(strings[token].strip() for token in best),
        )
    return [prompts[i] for i in range(len(lines))]


def _vector(lm: Decoder, line: Line) -> Tensor:
    vector = written_values(lm, line.layer, torch.tensor([line.index], device=lm.device))[0]
    return -vector if line.pole == "negative" else vector


def _steered(lm: Decoder, lines: Sequence[Line], passages: Sequence[Int[Tensor, " pos"]]) -> list[str]:
    """Return, for each line, continuations of the passages with its value vector added to the stream at every token."""
    ids = torch.stack(list(passages))
    layers = sorted({line.layer for line in lines})
    stream = run(lm, ids, capture="resid_post", logits=False, layers=layers)
    # The mean leaves the first position out, because the stream's norm there can be a hundred times that elsewhere.
    sizes = {
        layer: float(point[:, 1:].float().norm(dim=-1).mean())
        for layer, point in zip(layers, stream["resid_post"], strict=True)
    }
    found = []
    for line in lines:
        vector = _vector(lm, line).float()
        scale = STRENGTH * sizes[line.layer] / max(1e-30, float(vector.norm()))
        out, start = generate_ids(lm, ids, [add_vector(line.layer, vector, scale)], max_new_tokens=NEW_TOKENS)
        found.append(" / ".join(json.dumps(lm.decode(row[start:]), ensure_ascii=False) for row in out))
    return found


def _texts(i: int, lines: Sequence[Line], steered: Sequence[str], rng: np.random.Generator) -> _Texts:
    """Return in random order the text steered by line `i` and two texts steered by other memories.

    The other memories are of the same layer if possible.
    """
    others = [j for j in rng.permutation(len(lines)).tolist() if lines[j].index != lines[i].index]
    others.sort(key=lambda j: lines[j].layer != lines[i].layer)
    shown: list[int] = rng.permutation([i, *others[: TEXTS - 1]]).tolist()
    return _Texts(tuple(steered[j] for j in shown), shown.index(i))


def _other(i: int, lines: Sequence[Line], rng: np.random.Generator) -> int:
    """Draw the line of another memory, of the same layer if there is one."""
    others = [j for j in rng.permutation(len(lines)).tolist() if lines[j].index != lines[i].index]
    return min(others, key=lambda j: lines[j].layer != lines[i].layer)


def _description(answer: str) -> Description:
    sides = [re.search(rf"^\W*{side}\W*:\W*(\S.*)$", answer, re.MULTILINE) for side in ("FIRES", "RAISES")]
    return Description(*("" if found is None else found[1].strip() for found in sides))


def _detection(answer: str, fires: Bool[np.ndarray, " excerpt"]) -> float | None:
    """Return the balanced accuracy of an answer such as "[1, 4]"; None if it has no list of valid excerpt numbers."""
    found = re.findall(r"\[[\d,\s]*\]", answer)
    try:
        numbers = json.loads(found[-1]) if found else None
    except ValueError:
        numbers = None
    if numbers is None or not all(1 <= number <= len(fires) for number in numbers):
        return None
    return _balanced(np.isin(np.arange(1, len(fires) + 1), numbers), fires)


def _choice(answer: str, own: int) -> bool | None:
    found = re.fullmatch(r"\W*(?:text\s*)?(\d+)\W*", answer.strip(), re.IGNORECASE)
    return None if found is None or not 1 <= int(found[1]) <= TEXTS else int(found[1]) == own + 1


def _balanced(marked: Bool[np.ndarray, " excerpt"], fires: Bool[np.ndarray, " excerpt"]) -> float:
    return float(marked[fires].mean() + 1 - marked[~fires].mean()) / 2
