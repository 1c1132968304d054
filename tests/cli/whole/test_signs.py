"""`-L1M3` on the command line: the negative pole of a gated memory, in every place where a memory is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.conftest import PROMPT, save_model
from unembed.index import Index, IndexSettings
from unembed.language_model import LanguageModel, load

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama") / "tiny", "llama")


@pytest.fixture(scope="module")
def lm(folder: Path) -> LanguageModel:
    return load(folder)


@pytest.fixture(scope="module")
def index(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Index:
    texts = [f"{PROMPT} January", "a b c d e of the year is The first", "month of the z y x"]
    place = tmp_path_factory.mktemp("index") / "llama"
    return Index.build(lm, texts, place, top=5, settings=IndexSettings(top_tokens=12))


def read(result: Result) -> dict[str, list[object]]:
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_value_of_a_negative_pole_is_the_negated_value(unembed: Run, folder: Path, lm: LanguageModel) -> None:
    ids, scores = lm.values.top(1, 3, 5, bottom=True)
    for basis in ("raw", "final"):
        own = read(unembed("value", "L1M3", "--tokens", 5, "--model", folder, "--basis", basis, "--json"))
        negated = read(unembed("value", "-L1M3", "--tokens", 5, "--model", folder, "--basis", basis, "--json"))
        assert negated["promoted_token"] == own["suppressed_token"] and negated["suppressed_id"] == own["promoted_id"]
        assert negated["promoted_score"] == [-score for score in own["suppressed_score"]]  # pyright: ignore
        if basis == "raw":
            assert own["suppressed_id"] == ids.tolist()
            assert own["suppressed_score"] == pytest.approx(scores.tolist(), rel=1e-5)


def test_value_shows_both_poles_the_stronger_first(unembed: Run, folder: Path, index: Index) -> None:
    tops = [abs(index.triggers(1, 3, 1, pole=pole).columns["coefficient"][0]) for pole in index.poles]
    order = ["positive", "negative"] if tops[0] > tops[1] else ["negative", "positive"]
    text = unembed("value", "L1M3", "--model", folder, "--index", index.path, "--plain").stdout
    at = [text.index(f"At {pole} coefficients") for pole in order]
    assert at == sorted(at) and f"At {order[0]} coefficients, the stronger pole" in text
    named = unembed("value", "-L1M3", "--model", folder, "--index", index.path, "--plain").stdout
    assert named.index("At negative") < named.index("At positive")
    assert "Memory -L1M3" in named


def test_value_shows_the_promoted_tokens_of_both_poles_once(unembed: Run, folder: Path, lm: LanguageModel) -> None:
    (up, highest), (down, lowest) = (lm.values.top(1, 3, 3, bottom=bottom) for bottom in (False, True))
    for name, first in (("L1M3", "positive"), ("-L1M3", "negative")):
        command = ("value", name, "--tokens", 3, "--truth", "--model", folder, "--plain")
        done = unembed(*command, "--basis", "raw")
        assert done.exit_code == 0, done.stderr
        sides = [(up, highest), (down, -lowest)]
        (ids, scores), (others, of_others) = sides if first == "positive" else sides[::-1]
        lines = done.stdout.splitlines()
        start = next(n for n, line in enumerate(lines) if line.startswith(f"at {first} coefficients"))
        for line, *row in zip(lines[start + 1 :], ids, scores, others, of_others, strict=False):
            one, score, other, of_other = line.split()
            assert [one, other] == [text.replace(" ", "·") for text in lm.token_strings([int(row[0]), int(row[2])])]
            read = [float(text.replace("−", "-")) for text in (score, of_other)]
            assert read == pytest.approx([float(row[1]), float(row[3])], abs=1e-3)
        assert f"At {first} coefficients, " in done.stdout and "promotes" not in done.stdout
        assert "At positive coefficients\n" not in done.stdout


def test_triggers_of_a_negative_pole_stand_under_what_it_promotes(
    unembed: Run, lm: LanguageModel, index: Index
) -> None:
    ids, _ = lm.values.top(1, 3, 3, bottom=True)
    for words in (["-L1M3"], ["L1M3", "--pole", "negative"], ["\u2212L1M3"]):
        done = unembed("index", "triggers", index.path, *words, "--plain")
        assert done.exit_code == 0, done.stderr
        first = done.stdout.splitlines()[0]
        assert (
            first.startswith("value promotes")
            and " ".join(token.replace(" ", "·") for token in lm.token_strings(ids)) in first
        )


@pytest.mark.parametrize(
    "words",
    [
        ("steer", PROMPT, "--set", "-L1M3=2", "--new-tokens", 1, "--cost-tokens", 0),
        ("trace", PROMPT, "--set", "-L1M3=2"),
        ("concepts", "-L1M3", "--no-embedding"),
        ("ablate", PROMPT, "--memory", "-L1M3"),
        ("clusters", "--memory", "-L1M3"),
    ],
)
def test_every_command_takes_the_name(unembed: Run, folder: Path, words: tuple[object, ...]) -> None:
    done = unembed(*words, "--model", folder)
    assert done.exit_code == 0, done.stderr
