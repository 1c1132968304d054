"""The command `unembed atlas judge`: a language model describes memories of an atlas and tests the descriptions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np

from unembed.analyses import Analysis, Cost, Needs
from unembed.atlas import MEMORIES, Endpoint, Judged, Line, Scores, judge_lines, open_card, read_lines
from unembed.atlas.judge import Trial
from unembed.document.model import Answer, Exhibit, Section
from unembed.errors import InvalidInput
from unembed.index.atlas_of_index import atlas_source
from unembed.memories.truth_of_values import unread_windows
from unembed.models.decoder import Decoder
from unembed.models.model_source import UnopenedModel
from unembed.options import Index as GivenIndex
from unembed.options import Option, Out, Progress, Seed, ThisAtlas
from unembed.results import Provenance, Table

ANSWERS = "answers.jsonl"
_FEWEST = 3


def atlas_judge(
    model: UnopenedModel,
    atlas: ThisAtlas,
    *,
    endpoint: Annotated[
        str, Option("Address of an OpenAI-compatible endpoint, such as http://localhost:8080/v1.", metavar="URL")
    ],
    judge: Annotated[str, Option("Name of the language model, as the endpoint calls it.", metavar="NAME")],
    lines: Annotated[int, Option("Number of described memories (FFN neurons) to draw at random.", low=_FEWEST)] = 100,
    out: Out = None,
    index: GivenIndex,
    seed: Seed = 0,
    progress: Progress = None,
) -> Answer:
    """Let a language model write descriptions of memories (FFN neurons), and test them like those of an atlas.

    Detection: the judge reads a description and excerpts from the atlas's test documents, and marks those that end
    where the memory fires. The atlas's rule is tested at the same positions. Choice: the judge reads a description and
    three texts, each generated with a different value vector added, and chooses the one that fits. As a control, the
    description of another memory is tested in the same way. The endpoint's key is read from the environment variable
    UNEMBED_JUDGE_KEY, and is not stored. The output folder (by default `judge` in the atlas's folder) stores every
    answer. The same command continues an interrupted run.

    Caution: The descriptions and the excerpts of the index's text are sent to the endpoint.
    """
    card = open_card(atlas)
    found = _drawn(read_lines(atlas / MEMORIES), lines, seed)
    if len(found) < _FEWEST:
        raise InvalidInput(
            f"the atlas in {atlas}",
            why=f"it has {len(found)} described memories, and the judge needs {_FEWEST} to compare their texts",
            instead="Build an atlas of more layers",
        )
    judging = Endpoint(endpoint, judge, (out or atlas / "judge") / ANSWERS)
    lm = model.open()
    if (known := index()) is None:
        raise InvalidInput(
            f"no index of {lm.name}",
            why="the judge reads where memories fire, which an index stores",
            instead="Give the index from which the atlas was built: --index DIR",
        )
    _require_same(lm, card.provenance, known.provenance.corpus)
    report = progress or (lambda _what, _done, _total: None)
    judged = judge_lines(
        lm,
        atlas_source(known, lm),
        found,
        unread_windows(lm, None, int(card.notes["passages"])),
        lambda prompts: judging.ask(prompts, lambda done, total: report("asking the judge", done, total)),
        seed=card.provenance.seed or 0,
    )
    about = lm.provenance(corpus=known.provenance.corpus, seed=seed, notes={"judge": judge, "lines": len(judged)})
    return _answer(judged, about, judge)


def _drawn(lines: list[Line], n: int, seed: int) -> list[Line]:
    """Draw descriptions at random, at most one for each memory, and sort them by layer."""
    described = [line for line in lines if line.verdict == "described"]
    ordered = [described[i] for i in np.random.default_rng(seed).permutation(len(described)).tolist()]
    one_each = {(line.layer, line.index): line for line in reversed(ordered)}
    first = sorted(one_each.values(), key=ordered.index)[:n]
    return sorted(first, key=lambda line: (line.layer, line.index))


def _require_same(lm: Decoder, built: Provenance, corpus: str | None) -> None:
    """Check that the atlas is of this model and of the index's corpus.

    Raises:
        InvalidInput: it is of another model or another index.
    """
    if built.model != (model := lm.provenance().model):
        raise InvalidInput(f"an atlas of {built.model}", why=f"the model is {model}", instead="Give the same --model")
    if built.corpus != corpus:
        raise InvalidInput(
            f"an atlas of the corpus {built.corpus}",
            why=f"the index is of the corpus {corpus}, so its test documents are not those of the atlas",
            instead="Give the index from which the atlas was built: --index DIR",
        )


def _answer(judged: list[Judged], provenance: Provenance, judge: str) -> Answer:
    scores = {"judge": Scores.of([one.judge for one in judged]), "atlas": Scores.of([one.atlas for one in judged])}
    measures = {
        "detection": "balanced accuracy at the excerpts",
        "detection_control": "the same, description of another memory",
        "detection_passes": "exceed 95 % of these controls",
        "chosen": "steered text chosen",
        "chosen_control": "the same, description of another memory",
    }
    columns: dict[str, list[Any]] = {"measure": list(measures.values())}
    for author, one in scores.items():
        of_author = [getattr(one, name) for name in measures]
        columns |= {author: [found.value for found in of_author]}
        columns |= {f"{author}_{end}": [getattr(found, end) for found in of_author] for end in ("low", "high")}
    listed: dict[str, list[Any]] = {
        "memory": [one.line.memory for one in judged],
        "fires_text": [one.judge.description.fires for one in judged],
        "raises_text": [one.judge.description.raises for one in judged],
        "judge_accuracy": [one.judge.detection for one in judged],
        "rule_accuracy": [one.atlas.detection for one in judged],
        "judge_chosen": [_yes(one.judge.chosen) for one in judged],
        "atlas_chosen": [_yes(one.atlas.chosen) for one in judged],
    }
    text = (
        f"{judge} described {len(judged)} memories (FFN neurons) that the atlas describes too. Column judge: these "
        "descriptions. Column atlas: the atlas's rule, which runs at the same positions, and the atlas's tokens, with "
        "which the same judge chooses among the same texts.",
        "By chance the balanced accuracy is 0.5, and one of three texts is chosen.",
    )
    if unread := sum(one.unread for one in scores.values()):
        text = (
            *text,
            f"{unread} answers could not be read; they count as chance in the accuracy, as wrong in choices.",
        )
    sections = (
        Section("Scores", text, (Exhibit("scores", Table("Scores of descriptions", columns, provenance)),)),
        Section("Lines", (), (Exhibit("lines", Table("The judge's descriptions", listed, provenance)),)),
    )
    data = {
        "schema": "unembed.atlas.judged/1",
        "judge": judge,
        "scores": {author: asdict(one) for author, one in scores.items()},
        "lines": [
            {"memory": one.line.memory, "judge": _plain(one.judge), "atlas": _plain(one.atlas)} for one in judged
        ],
        "provenance": provenance.to_dict(),
    }
    return Answer(f"Descriptions of {provenance.model} by {judge}", sections, provenance, data=data)


def _plain(tested: Trial) -> dict[str, Any]:
    return {**asdict(tested), "description": tested.description._asdict()}


def _yes(chosen: bool | None) -> str:
    return {True: "yes", False: "no", None: "unread"}[chosen]


ANALYSIS = Analysis(
    "atlas judge",
    atlas_judge,
    Needs.UNOPENED,
    Cost.MINUTES,
    "unembed atlas judge wren.atlas --endpoint http://localhost:8080/v1 --judge llama",
    source="Gur-Arieh et al. 2025",
)
