"""Going back and forth: where the page was scrolled, where the focus is; and what fails says so where it fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.conftest import Served, address
from tests.families import build
from unembed.server.serve import listening_socket


def test_back_returns_to_where_the_page_was_scrolled(opened):
    page = opened("#/search?query=the")
    expect(page.get_by_text(re.compile("memories, 60 of them shown"))).to_be_visible()
    page.evaluate("scrollTo(0, 1500)")
    assert page.evaluate("scrollY") == 1500
    where = address(page)
    page.get_by_role("navigation", name="Screens").get_by_role("link", name="Labs").click()
    expect(page.get_by_role("heading", name="Labs")).to_be_visible()
    assert page.evaluate("scrollY") == 0, "another screen begins at its top"
    page.go_back()
    expect(page.get_by_text(re.compile("memories, 60 of them shown"))).to_be_attached()
    assert address(page) == where
    page.wait_for_function("() => Math.abs(scrollY - 1500) < 3")


def test_the_focus_is_in_the_screen_that_was_opened(opened):
    page = opened("#/search?query=year")
    link = page.get_by_role("table").get_by_role("link").first
    link.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile(r"L\d+M\d+"))
    assert page.evaluate("document.activeElement.closest('main') !== null")


@pytest.fixture(scope="module")
def wordless():
    """An explorer of a model without a tokenizer."""
    found = Served(unembed.load(build("llama")))
    yield found
    found.stop()


@pytest.mark.parametrize(
    "screen", ["trace", "layer?layer=1", "memory?memory=L0M1", "compare", "heads", "search?query=a"]
)
def test_a_model_without_a_tokenizer_is_explained_on_the_page(opened, wordless, screen):
    page = opened(f"#/{screen}", at=wordless.address)
    expect(page.locator("#main").get_by_text("was opened without a tokenizer").first).to_be_visible()
    opened.allowed.append("422")


@pytest.mark.parametrize(
    ("screen", "panes"),
    [("trace?", 5), ("layer?layer=3&", 3), ("heads?head=L3H0&", 6), ("memory?memory=L2M9&", 9)],
)
@pytest.mark.parametrize("token", ["%23999999", "extraordinarily+unlikely"])
def test_a_target_that_is_not_a_token_is_reported_and_the_prediction_explained(opened, screen, panes, token):
    page = opened(f"#/{screen}prompt=Once+upon+a+time+there+was+a+little&token={token}")
    trouble = page.get_by_role("contentinfo").locator(".bad")
    expect(trouble).to_contain_text("999999" if "999" in token else "is not one token")
    expect(page.locator("#main .effect, #main dd, #main .arcs").first).to_be_visible()
    expect(page.locator("#main .warn")).to_have_count(0)
    assert "token=" not in address(page)
    assert page.locator("#main .card").count() >= panes
    page.get_by_role("button", name="Dismiss").click()
    expect(trouble).to_have_count(0)
    opened.complaints[:] = [c for c in opened.complaints if "404" not in c and "422" not in c]


def test_a_link_to_a_missing_head_or_memory_opens_an_existing_one(opened, lm):
    page = opened("#/heads?head=L9H77")
    refused = f"there is no head L9H77. The last is L{lm.n_layers - 1}H{lm.n_heads - 1}"
    expect(page.get_by_role("contentinfo").locator(".bad")).to_contain_text(refused)
    expect(page.get_by_role("heading", name=re.compile(r"^L\dH\d · induction head"))).to_be_visible()
    expect(page.locator("#main .warn")).to_have_count(0)
    page = opened("#/memory?memory=L9M1")
    expect(page.get_by_text("There is no memory L9M1 in wren.")).to_be_visible()
    page.get_by_role("textbox", name="Layer and index").fill("L2M9")
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_role("heading", name="L2M9", exact=True)).to_be_visible()


def test_the_status_line_shows_what_runs(opened, lm):
    page = opened("#/search")
    status = page.get_by_role("contentinfo")
    expect(status).to_contain_text(f"{lm.dtype_name} on {lm.device} · index of-tests · unembed {unembed.__version__}")


def test_a_figure_without_a_number_of_the_model_is_reported_once(opened, served):
    page = opened()
    answer = page.evaluate(
        """async () => {
          const body = JSON.stringify({ prompt: "a", edits: [], max_new_tokens: -1, temperature: -5 });
          const headers = { "content-type": "application/json" };
          return (await fetch("api/v1/compare", { method: "POST", headers, body })).json();
        }"""
    )
    page.wait_for_timeout(200)  # the complaint comes after the answer
    opened.allowed.append("422")
    assert set(answer) == {"code", "message", "why", "fix", "detail"}
    message = " ".join(str(answer[k]) for k in ("message", "why", "fix"))
    assert "type=" not in message and "pydantic" not in message.lower() and len(message) < 300


def serve_at(port: int, cache: Path) -> tuple[subprocess.Popen[str], str]:
    """The command that serves the embedded model at a port, and the token in the link that it prints."""
    command = [sys.executable, "-m", "unembed", "serve", "--no-browser", "--port", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"UNEMBED_CACHE": str(cache)}
    )
    assert process.stdout is not None
    found = re.search(r"token=(\S+)", process.stdout.readline())
    assert found
    return process, found[1]


def test_an_open_tab_works_after_the_server_was_restarted(opened, lm, tmp_path):
    with listening_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    process, token = serve_at(port, tmp_path)
    try:
        page = opened("#/trace?prompt=the%20first", at=f"http://127.0.0.1:{port}/", token=token)
        expect(page.get_by_role("columnheader", name=re.compile("^·first "))).to_be_visible()
        opened.allowed.append("Failed to load")  # while no server listens
        process.terminate()
        process.communicate(timeout=30)
        process, again = serve_at(port, tmp_path)
        assert again == token
        page.get_by_role("gridcell", name=re.compile("^Layer 5 after FFN, position 0 ")).click()
        expect(page.get_by_text("position 0; effects on")).to_be_visible()
        box = page.get_by_role("textbox", name="Prompt")
        box.fill("the last month")
        box.press("Enter")
        expect(page.get_by_role("columnheader", name=re.compile("^·month "))).to_be_visible()
        expect(page.get_by_role("button", name="Dismiss")).to_have_count(0)
    finally:
        process.kill()
        process.communicate()
