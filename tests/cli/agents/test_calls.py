"""A call answers what the command prints, in pages; a failed call is one line, and the next one works."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from unembed.cli.agents.calls import LARGEST, Calls, UnderWay, answer
from unembed.cli.option_groups import Opening

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def calls() -> Calls:
    return Calls(Opening(model="wren"))


def test_an_answer_is_what_the_command_prints_with_its_sentences_first(unembed: Run, calls: Calls) -> None:
    given = answer(calls, "circuits-look", {"head": "L1H0", "prompt": "The war lasted from 1861"})
    printed = unembed("circuits", "look", "L1H0", "The war lasted from 1861", "--plain", "--model", "wren").stdout
    lines = given.text.splitlines()
    tables = [line for line in printed.splitlines() if line.startswith(" ") or "─" in line]
    assert not given.failed and tables and set(tables) <= set(lines)
    assert lines.index(next(line for line in lines if line.startswith("At position"))) < 3


def test_figures_are_pictures(calls: Calls) -> None:
    given = answer(calls, "circuits-heads", {"model": "attn-2l"})
    assert 1 <= len(given.pictures) <= 4
    assert all(picture.startswith(b"\x89PNG\r\n") for picture in given.pictures)
    assert len(set(given.pictures)) == len(given.pictures)


def test_a_cancelled_call_ends_and_the_next_one_works(calls: Calls) -> None:
    under_way = UnderWay()
    reported: list[str] = []

    def report(stage: str, _done: int, _total: int | None) -> None:
        reported.append(stage)
        under_way.cancelled.set()

    under_way.report = report
    given = answer(calls, "clusters", {}, under_way)
    assert given.failed and "cancelled" in given.text and len(reported) == 1
    look = {"head": "L1H0", "prompt": "The war"}
    assert "cancelled" in answer(calls, "circuits-look", look, under_way).text  # before its first forward pass
    assert not answer(calls, "circuits-look", look).failed


def test_a_call_may_name_another_shipped_model(calls: Calls) -> None:
    given = answer(calls, "circuits-look", {"head": "L1H0", "prompt": "The war", "model": "attn-2l"})
    assert not given.failed and "attn-2l" in given.text


def test_a_long_answer_has_pages_that_hold_all_of_it(unembed: Run, calls: Calls) -> None:
    wanted = {"prompt": "The war lasted from 1861", "memories": 60}
    first = answer(calls, "trace", wanted).text
    assert len(first) <= LARGEST
    handle = first.split("more(handle='")[1].split("'")[0]
    pages, n = [first], 2
    while "more(handle" in pages[-1]:
        pages.append(answer(calls, "more", {"handle": handle, "page": n}).text)
        n += 1
    assert len(pages) >= 2 and all(len(page) <= LARGEST for page in pages)
    lines = [line for page in pages for line in page.splitlines() if line and not line.startswith("(page ")]
    printed = unembed("trace", wanted["prompt"], "--memories", 60, "--plain", "--model", "wren").stdout
    assert lines == [line for line in printed.splitlines() if line]


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("nothing", {}, "no tool has this name"), ("circuits-head", {"head": "L99H0"}, "layer 99"),
        ("circuits-head", {"head": "other"}, "other"), ("trace", {"prompt": ""}, "prompt"),
        ("trace", {"prompt": "a", "set": ["L1M2"]}, "L1M2"),
        ("more", {"handle": "z9", "page": 1}, "Call its tool again"),
        ("more", {"handle": "z9", "page": "x"}, "not a whole number"),
        ("explain", {"prompt": "a", "token": "no token"}, "not one token"),
    ],
)  # fmt: skip
def test_a_failed_call_is_one_line_and_the_next_works(
    calls: Calls, name: str, arguments: dict[str, object], why: str
) -> None:
    given = answer(calls, name, arguments)
    assert given.failed and why in given.text and "\n" not in given.text and "Traceback" not in given.text
    assert not answer(calls, "circuits-look", {"head": "L1H0", "prompt": "The war"}).failed


def test_one_model_is_loaded_once(calls: Calls) -> None:
    look = {"head": "L1H0", "prompt": "The war"}
    answer(calls, "circuits-look", look)
    before = calls._open
    answer(calls, "trace", {"prompt": "The war"})
    assert calls._open is before


def test_no_text_that_a_client_sends_names_a_file(
    tmp_path: Path, unembed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every text argument of every tool is the name of a file: the answer is the same once the file is gone."""
    built = unembed("index", "build", "--max-documents", "1", "--out", tmp_path / "index", "--model", "wren")
    assert built.exit_code == 0
    monkeypatch.chdir(tmp_path)
    calls, secret = Calls(Opening(model="wren"), tmp_path / "index"), Path("a.pt")
    usual = {"prompt": "The war", "corrupted": "The man", "clean": "The war", "head": "L1H0", "token": " the"}
    given: list[tuple[str, dict[str, object]]] = [("index-sql", {"query": "SELECT * FROM read_text('a.pt')"})]
    for tool in calls.tools.values():
        properties = tool.schema(calls.models)["properties"]
        texts = [
            n for n, p in properties.items() if (one := p.get("items", p))["type"] == "string" and "enum" not in one
        ]
        for name in texts:
            value = ["a.pt"] if "items" in properties[name] else "a.pt"
            given.append((tool.name, {key: usual[key] for key in texts if key in usual} | {name: value}))
    secret.write_text("no lens", encoding="utf-8")
    with_file = [answer(calls, *one).text.partition("\n")[0] for one in given]
    secret.unlink()
    without = [answer(calls, *one).text.partition("\n")[0] for one in given]
    assert len(given) > 50 and {one[0] for one, a, b in zip(given, with_file, without, strict=True) if a != b} == set()
