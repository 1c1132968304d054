"""Copy as Python and Copy as command: what every screen copies is executed, and prints what the screen shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

import unembed
from tests.browser.conftest import Served
from tests.cli.conftest import save_model
from unembed.cli.commands import app

PROMPT = "The first month of the year is"
AT = f"prompt={PROMPT.replace(' ', '%20')}"
SCREENS = {
    "example": ("", "He was born on 16"),
    "trace": (f"#/trace?{AT}&position=3&layer=2", PROMPT),
    "edited": (f"#/trace?{AT}&edits=L3M5:set:9@all;L2H3:scale:0@last;L4M7:add:-1.5@0,2", PROMPT),
    "emoji": ("#/trace?prompt=Good%20%F0%9F%99%82%20%22day%22%20%27s%27", "Good \U0001f642 \"day\" 's'"),
    "layer": (f"#/layer?{AT}&layer=3&token=%20the", "Memories by their effect"),
    "memory": (f"#/memory?memory=L3M5&{AT}", ""),
    "intervene": (f"#/intervene?{AT}&edits=L3M5:set:60@all&new_tokens=6", PROMPT),
    "compare": ("#/compare?prompt=The+blue+car+and+the+red&other=The+blue+sky+and+the+red", "Patching"),
    "heads": (f"#/heads?head=L2H3&{AT}", "tensor"),
    "search": ("#/search?query=year", "promotes"),
    "atlas": ("#/atlas", "Map of the values"),
    "atlas searched": ("#/atlas?query=year", "AtlasMatches"),
    "label": ("#/label", ""),
    "steer": ("#/labs/steer", ""),
    "toxicity": ("#/labs/toxicity?edits=L3M5:set:20@all", "["),
    "early exit": (f"#/labs/early-exit?{AT}", ""),
}


def copied(page, how: str) -> str:
    """What a button of the share menu copies."""
    page.get_by_role("button", name="Copy or export").click()
    page.get_by_role("menuitem", name=how).click()
    expect(page.locator("#live")).to_have_text(re.compile("copied"))
    return page.evaluate("navigator.clipboard.readText()")


def printed(program: str) -> str:
    """What a program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "copied", "exec"), {})
    return out.getvalue()


@pytest.fixture
def page_at(opened):
    """A page that may use the clipboard, once it has drawn."""

    def open_page(where: str, **more):
        page = opened(where, permissions=["clipboard-read", "clipboard-write"], **more)
        page.wait_for_function("() => performance.getEntriesByName('unembed-open').length > 0")
        return page

    return open_page


@pytest.mark.parametrize("screen", SCREENS)
def test_copied_python_and_commands_run(page_at, lm, monkeypatch, screen):
    where, shown = SCREENS[screen]
    page = page_at(where)
    if screen == "steer":
        page.get_by_role("textbox", name="Words to promote").fill("year")
    program = copied(page, "Copy as Python")
    command = copied(page, "Copy as command")
    monkeypatch.setattr(unembed, "load", lambda *_, **__: lm)  # opened once for all tests
    text = printed(program)
    assert text.strip()
    if screen == "memory":
        assert lm.values.top_tokens(3, 5)[0] in text
    elif screen == "layer":
        assert shown in text and page.locator(".sub-update").first.get_by_role("link").inner_text() in text
    elif screen == "intervene":
        expect(page.get_by_text("Diverges at generated token")).to_be_visible()
        assert text.strip() == page.locator(".pair .text").nth(1).inner_text().strip()
    elif screen in ("trace", "edited", "emoji", "example"):
        assert repr(shown)[1:-1].split()[0] in program or shown.split()[0] in program
    else:
        assert shown in text
    heredoc = re.fullmatch(r"python - <<'EOF'\n(.*)\nEOF", command, re.DOTALL)
    if heredoc:
        assert heredoc[1] == program
    else:
        words = shlex.split(command)
        assert words[0] == "unembed"
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, result.output


def test_a_token_beyond_the_first_plane_is_the_same_text_in_python(page_at, lm, monkeypatch):
    page = page_at(SCREENS["emoji"][0])
    names: dict = {}
    monkeypatch.setattr(unembed, "load", lambda *_, **__: lm)
    exec(copied(page, "Copy as Python"), names)
    assert lm.decode(names["trace"].tokens) == "Good \U0001f642 \"day\" 's'"


def test_edits_of_every_kind_are_the_programs_edits(page_at, lm, monkeypatch):
    page = page_at(SCREENS["edited"][0])
    names: dict = {}
    monkeypatch.setattr(unembed, "load", lambda *_, **__: lm)
    exec(copied(page, "Copy as Python"), names)
    assert list(names["trace"].edits) == [
        unembed.set_coefficient(3, 5, 9.0),
        unembed.scale_head(2, 3, 0.0, positions="last"),
        unembed.add_to_coefficient(4, 7, -1.5, positions=[0, 2]),
    ]


EMOJI = "prompt=%F0%9F%99%82%20%22the%22%20%27year%27"
OF_A_FOLDER = {
    "trace": f"#/trace?{EMOJI}",
    "layer": f"#/layer?{EMOJI}&layer=1",
    "memory": "#/memory?memory=L1M2",
    "intervene": f"#/intervene?{EMOJI}&edits=L1M2:set:3@all&new_tokens=2",
    "compare": "#/compare?prompt=the+first+year&other=the+last+year",
    "heads": "#/heads?head=L1H0&prompt=the+year",
    "search": "#/search?query=year",
    "atlas": "#/atlas?query=year",
    "label": "#/label",
    "steer": "#/labs/steer",
    "early exit": "#/labs/early-exit?prompt=the+year",
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Iterator[Served]:
    """An explorer of a model in a folder whose name has a space and a quote."""
    folder = save_model(tmp_path_factory.mktemp("models") / "ann's llama", "llama")
    found = Served(unembed.load(folder))
    found.session.source = str(folder)
    yield found
    found.stop()


@pytest.mark.parametrize("screen", OF_A_FOLDER)
def test_a_model_of_a_folder_is_opened_by_its_folder(page_at, llama, screen):
    page = page_at(OF_A_FOLDER[screen], at=llama.address)
    if screen == "steer":
        page.get_by_role("textbox", name="Words to promote").fill("year")
    page.wait_for_load_state("networkidle")  # what is copied names the tokens that the trace has found
    program = copied(page, "Copy as Python")
    assert llama.session.source in program
    assert printed(program).strip()
    command = copied(page, "Copy as command")
    if command.startswith("python"):
        assert command == f"python - <<'EOF'\n{program}\nEOF"
        return
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
