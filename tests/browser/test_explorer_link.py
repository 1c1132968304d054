"""The command that a result ends with opens the page on that result."""

from __future__ import annotations

import re
import shlex

import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from unembed.cli.commands import app

PROMPT = "The capital of France is"


def view_of(*arguments: str) -> str:
    """What `--view` is in the command that this one prints last on stderr."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("In the explorer: unembed serve ")
    words = shlex.split(last)
    return words[words.index("--view") + 1]


SHOWN = {
    ("value", "L5M278"): ("heading", re.compile("L5M278")),
    ("steer", PROMPT, "--set", "L5M278=3", "--new-tokens", "2"): ("heading", re.compile("Intervene|Edits", re.I)),
    ("ablate", PROMPT, "--memory", "L5M278"): ("heading", re.compile("Intervene|Edits", re.I)),
    ("clusters", "--top", "1"): ("heading", re.compile("Atlas")),
    ("memories", "--top", "1"): ("heading", re.compile("Atlas")),
    ("trace", "The war lasted from 1861", "--set", "L5M278=3"): ("heading", "1 edit"),
}


@pytest.mark.parametrize("arguments", SHOWN, ids=lambda found: found[0])
def test_the_page_shows_the_result(opened, arguments):
    page = opened("#/" + view_of(*arguments))
    role, name = SHOWN[arguments]
    expect(page.get_by_role(role, name=name).first).to_be_visible()


def test_an_explanation_opens_at_its_position_on_its_question(opened, lm):
    page = opened("#/" + view_of("explain", PROMPT, "--position", "-2", "--token", " the", "--against", " a"))
    trace = lm.trace(PROMPT)
    question = trace.question(" the", " a", -2)
    found = trace.attribution(question.token, -2, question.against)
    total = page.get_by_text(re.compile(r"^Sum [−\d]"))
    expect(total).to_contain_text("·the over ·a")
    assert float(total.inner_text().split()[1].replace("−", "-")) == pytest.approx(found.total, abs=1e-3)


def test_the_edits_of_a_continuation_are_in_the_tray(opened):
    page = opened("#/" + view_of("steer", PROMPT, "--set", "L5M278=3", "--scale", "L1H0=0", "--new-tokens", "2"))
    for name in ("L5M278", "L1H0"):
        expect(page.get_by_text(name).first).to_be_visible()
