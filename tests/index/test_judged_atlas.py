"""`unembed atlas judge` against an endpoint that answers rightly, one that guesses, and one that returns rubbish."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.atlas.fake_endpoint import FakeEndpoint
from unembed.atlas import MEMORIES, build_atlas, read_lines
from unembed.atlas.endpoint import KEY
from unembed.atlas.judge import _excerpt, _fires_at, _steered
from unembed.atlas.lines import Line, described
from unembed.cli.commands import app
from unembed.corpus import open_corpus
from unembed.index import Index, IndexSettings
from unembed.index.atlas_of_index import atlas_source
from unembed.index.judged_atlas import ANSWERS
from unembed.language_model import load
from unembed.memories.truth_of_values import unread_windows

Answer = Callable[[str], str]


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    """Let the steered texts be eight tokens long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unembed.atlas.judge.NEW_TOKENS", 8)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an index of one layer, and an atlas; its limits are lowered, as eight documents have few firings."""
    folder, lm = tmp_path_factory.mktemp("judged"), load("wren")
    corpus = open_corpus(detokenize=True, max_documents=8)
    index = Index.build(lm, corpus, folder / "index", settings=IndexSettings(top=60, layers=(6,)))
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in {"DESCRIBED_HITS": 0.55, "DESCRIBED_RATIO": 2.0, "FEWEST": 1}.items():
            patch.setattr(f"unembed.atlas.layer.{name}", limit)
        build_atlas(
            lm, atlas_source(index, lm), folder / "atlas", unread_windows(lm, None, 8), index.provenance, layers=[6],
            per_layer=480,
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def right(folder: Path) -> Answer:
    """Return a judge that knows where every described memory fires and what its steered text is."""
    lm = load("wren")
    source = atlas_source(Index.open(folder / "index"), lm)
    lines = described(read_lines(folder / "atlas" / MEMORIES))
    at = {line.memory: {_excerpt(source, p) for p in _fires_at(source, line).tolist()} for line in lines}
    texts = dict(zip(at, _steered(lm, lines, unread_windows(lm, None, 8)[3::4][:2]), strict=True))
    of_output: dict[str, list[Line]] = {}
    for line in lines:
        of_output.setdefault(line.output or "", []).append(line)

    def answer(prompt: str) -> str:
        items = dict(re.findall(r"^(\d+)\. (.*)$", prompt, re.MULTILINE))
        if "FIRES:" in prompt:
            best = max(at, key=lambda name: len(at[name] & set(items.values())))
            return f"FIRES: memory {best}\nRAISES: memory {best}"
        description = prompt.split("\n")[1]
        name = description.removeprefix("memory ")
        if "Three texts" not in prompt:
            return json.dumps([int(number) for number, text in items.items() if text in at[name]])
        names = [name] if name in texts else [line.memory for line in of_output[description]]
        return next((number for number, text in items.items() if text in {texts[n] for n in names}), "1")

    return answer


def _judge(folder: Path, url: str, out: Path, *more: str, lines: int = 40) -> tuple[int, str]:
    given = ["atlas", "judge", str(folder / "atlas"), "--endpoint", url, "--judge", "fake", "--model", "wren"]
    given += ["--index", str(folder / "index"), "--lines", str(lines), "--out", str(out), *more]
    done = CliRunner().invoke(app, given)
    return done.exit_code, done.stdout + done.stderr


def _found(text: str) -> Any:
    return json.JSONDecoder().raw_decode(text[text.index("{") :])[0]


def test_a_judge_that_knows_scores_near_one_and_its_controls_at_chance(
    folder: Path, right: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "sk-very-secret")
    with FakeEndpoint(right) as server:
        code, text = _judge(folder, server.url, tmp_path, "--json")
        asked = len(server.requests)
        again = _judge(folder, server.url, tmp_path, "--json")
        assert len(server.requests) == asked  # all answers are stored
    assert code == 0, text
    found = _found(text)
    assert _found(again[1]) == found
    judge, atlas = found["scores"]["judge"], found["scores"]["atlas"]
    assert judge["detection"]["value"] > 0.95
    assert judge["chosen"]["value"] > 0.8  # equal texts cannot be told apart
    assert judge["detection_control"]["value"] < 0.75
    assert judge["chosen_control"]["value"] < 0.6
    assert atlas["detection"]["value"] > atlas["detection_control"]["value"] + 0.1
    assert judge["unread"] == 0
    assert "sk-very-secret" not in text + (tmp_path / ANSWERS).read_text()


def test_a_judge_that_guesses_scores_at_chance(folder: Path, tmp_path: Path) -> None:
    def guess(prompt: str) -> str:
        draw = random.Random(prompt)
        if "FIRES:" in prompt:
            return "FIRES: something\nRAISES: something"
        if "Three texts" in prompt:
            return str(draw.randint(1, 3))
        return json.dumps([i for i in range(1, 2 + prompt.count("\n")) if draw.random() < 0.5 and f"\n{i}. " in prompt])

    with FakeEndpoint(guess) as server:
        code, text = _judge(folder, server.url, tmp_path, "--json")
    assert code == 0, text
    judge = _found(text)["scores"]["judge"]
    for test, chance in (("detection", 0.5), ("chosen", 1 / 3)):
        # The width of a 95 % interval is about four standard errors.
        assert abs(judge[test]["value"] - chance) < judge[test]["high"] - judge[test]["low"]
    assert judge["detection_passes"]["value"] < 0.25


def test_rubbish_is_an_error_or_counted(folder: Path, right: Answer, tmp_path: Path) -> None:
    with FakeEndpoint(lambda _prompt: "As a language model, I like texts.") as server:
        code, text = _judge(folder, server.url, tmp_path / "a", lines=4)
    assert code == 1
    assert "none has the two lines FIRES: and RAISES:" in " ".join(text.split())
    with FakeEndpoint(lambda prompt: right(prompt) if "FIRES:" in prompt else "I like texts.") as server:
        code, text = _judge(folder, server.url, tmp_path / "b", lines=4)
    assert code == 0, text
    assert "answers could not be read" in " ".join(text.split())


def test_an_endpoint_that_is_not_there_is_one_line(folder: Path, tmp_path: Path) -> None:
    with FakeEndpoint(str.upper) as server:
        url = server.url
    code, text = _judge(folder, url, tmp_path)
    assert code == 1
    assert "it cannot be reached" in " ".join(text.split())
    assert "Traceback" not in text
