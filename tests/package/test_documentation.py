"""What the documentation says is so: names, commands, rooms, shown output, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import unembed
from tests.package.shown import README, blocks, command_reference, fresh
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


def test_every_public_name_is_documented_and_every_documented_name_is_public() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    assert named == set(unembed.__all__) - {"__version__"}


@pytest.mark.parametrize("name", sorted(set(unembed.__all__) - {"__version__"}))
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


def skeleton(shown: str) -> list[str]:
    """Section titles and labels: what stays when a shipped model is trained further."""
    titles = re.compile(r"(Layers at|Dominant sub-updates|Why |sum of shares|layer  before|memory +m|wren )")
    labels = re.compile(r"(embedding|positions|attention \d+|ffn \d+|final norm bias) ")
    return [
        " ".join(match[0].split()) for row in shown.splitlines() if (match := titles.match(row) or labels.match(row))
    ]


def test_the_readme_shows_what_is_printed() -> None:
    shown = blocks(README.read_text(encoding="utf-8"))
    assert [what.split()[0] for what, _ in shown] == ["unembed", "python"]
    for what, body in shown:
        now = fresh(what, body)
        if what == "python":
            code = [row for row in body.splitlines() if not row.startswith("# ")]
            assert [row for row in now.splitlines() if not row.startswith("# ")] == code
            assert len(now.splitlines()) == len(body.splitlines()), "run `make readme`"
        else:
            assert skeleton(now) == skeleton(body), "run `make readme`"
            assert len(skeleton(body)) > 15


def test_the_first_command_comes_within_eighty_words() -> None:
    before = README.read_text(encoding="utf-8").split("```text\nmake run\n```")[0]
    assert len(before.split()) <= 80


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_make_target_is_listed_and_phony() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    assert set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)) == targets
    assert set(re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)[0].split()) == targets
