"""What the documentation says is so: names, commands, rooms, shown output, links."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import unembed
from tests.package.shown import PAGES as SHOWN
from tests.package.shown import README, TUTORIAL, blocks, code, command_of, command_reference, drift, fresh
from unembed.cli.commands import app

ROOT = README.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def rooms() -> list[str]:
    """Every folder and module of the package, but those of Python itself."""
    package = ROOT / "src" / "unembed"
    found = [path for path in package.iterdir() if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))]
    return sorted(path.stem for path in found if not path.stem.startswith("__"))


def test_architecture_has_a_paragraph_for_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [room for room in rooms() if f"**`{room}`**:" not in text] == []


def test_the_rows_of_the_architecture_are_those_of_the_import_contract() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = re.search(r"\|---\|---\|\n((?:\|.*\n)+)", text)
    assert table is not None
    rows = [set(re.findall(r"`(\w+)`", row)) for row in table[1].splitlines()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = [set(layer.split(" | ")) for layer in contracts[0]["layers"]]
    assert rows == [layer for layer in layers if layer != {"__main__"}]


def test_every_public_name_is_documented_and_every_documented_name_is_public() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8").split("\n### ")[1]
    named = set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))
    assert named == set(unembed.__all__)


@pytest.mark.parametrize("name", unembed.__all__)
def test_every_public_name_can_be_imported_and_has_a_docstring(name: str) -> None:
    assert (getattr(unembed, name).__doc__ or "").strip()


def commands() -> list[str]:
    return sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", commands())
def test_every_command_has_help_and_is_on_the_page(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert "Usage" in shown.stdout
    assert f"unembed {command} " in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_reference_of_commands_is_what_help_says() -> None:
    """`make readme` writes it anew."""
    assert command_reference() == (ROOT / "docs" / "cli-reference.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The ready index that `make run` builds, which the pages take for granted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNEMBED_CACHE", str(tmp_path_factory.mktemp("ready")))
        patch.delenv("NO_COLOR", raising=False)
        built = re.findall(r"\$\(BIN\)/unembed (index build .*?) >", (ROOT / "Makefile").read_text("utf-8"))
        assert CliRunner().invoke(app, built[0].split()).exit_code == 0
        yield


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
def test_a_page_shows_what_is_printed(page: Path, ready: None) -> None:
    shown = blocks(page.read_text(encoding="utf-8"))
    assert len(shown) >= 2
    for (what, body), now in zip(shown, fresh(page.read_text(encoding="utf-8")), strict=True):
        if what == "python":
            assert code(body) == code(now)
        assert drift(body, now) == [], f"`{what}`: run `make readme`"


def test_every_command_whose_output_the_tutorial_shows_is_there_to_be_typed() -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    typed = {
        row
        for block in re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for row in block.splitlines()
    }
    assert [what for what, _ in blocks(text) if what != "python" and command_of(what) not in typed] == []


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("3  ·the 28%", "3  ·the 26%"),
        ("4.571    +9.95", "4.572    +9.95"),
        ("memory 5.132  +2.73", "memory 5.133  +2.73"),
        ("10 → 2", "10 → 3"),
        ("+1.75", "−1.75"),
        ("7e−4", "7e−3"),
        ("·the ·a", "·a ·the"),
        ("one\ntwo", "one"),
    ],
)
def test_an_outdated_output_is_detected(was: str, now: str) -> None:
    assert drift(was, now)


def test_the_last_digit_and_the_bars_of_an_output_may_move() -> None:
    assert drift("4.571  +9.95  │███▌ 50%  7e−4  error 5e-07", "4.571  +9.94  │████ 51%  8e−4  error 5e-07") == []
    assert drift("sum +6.54   relative error 1e-07", "sum +6.54   relative error 3e-07") == []


def test_the_first_two_commands_come_within_eighty_words() -> None:
    before, block = README.read_text(encoding="utf-8").split("```text\n")[:2]
    assert len(before.split()) <= 80
    assert [line.split("  ")[0] for line in block.split("```")[0].splitlines()] == ["make run", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_make_target_is_listed_and_phony() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    assert set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)) == targets
    assert set(re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)[0].split()) == targets


def ways_of_data() -> dict[str, list[str]]:
    """The numbered steps under each heading of the section."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("## Three ways of data")[1].split("\n## ")[0]
    parts = [part.partition("\n") for part in section.split("\n### ")[1:]]
    return {title: re.findall(r"^\d+\. (.+(?:\n   .+)*)", steps, re.MULTILINE) for title, _, steps in parts}


def exists(name: str) -> bool:
    """Whether a dotted name is a module of the package or a member of one or of the package itself."""
    parts = name.removeprefix("unembed.").split(".")
    for n in range(len(parts), -1, -1):
        try:
            found: object = importlib.import_module(".".join(["unembed", *parts[:n]]))
            for part in parts[n:]:
                found = getattr(found, part)
        except (ModuleNotFoundError, AttributeError):
            continue
        return True
    return False


def test_each_way_of_data_has_at_most_twelve_steps_that_name_what_exists() -> None:
    ways = ways_of_data()
    assert len(ways) == 3 and all(5 <= len(steps) <= 12 for steps in ways.values())
    steps = [step for way in ways.values() for step in way]
    assert [step for step in steps if "`" not in step] == []
    names = {n for step in steps for n in re.findall(r"`(\w+(?:\.\w+)+)`", step) if not n.endswith(".js")}
    assert len(names) > 30
    assert sorted(name for name in names if not exists(name)) == []
    assert not exists("stream.run.no_such_function") and not exists("no_such_room.run")


def test_the_way_of_a_click_names_functions_of_the_page_that_exist() -> None:
    scripts = ROOT / "src" / "unembed" / "server" / "static" / "js"
    steps = " ".join(step for way in ways_of_data().values() for step in way)
    named = re.findall(r"`([\w/-]+\.js)`: ((?:`\w+`(?:, )?)+)", steps)
    assert len(named) >= 3
    for file, functions in named:
        text = (scripts / file).read_text(encoding="utf-8")
        for function in re.findall(r"`(\w+)`", functions):
            assert re.search(rf"^export (?:async )?function {function}\b", text, re.MULTILINE), f"{file}: {function}"
