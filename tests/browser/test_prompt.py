"""The first screen's prompt: what an empty, a blank and a long one do, and which model it opens on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Error, expect

import unembed
from tests.browser.conftest import Served, address
from tests.cli.conftest import save_model

AT = "#/trace?prompt=The%20first%20month"


def prompt_box(page):
    """The box of the prompt."""
    return page.get_by_role("textbox", name="Prompt")


def test_clearing_the_prompt_sends_no_request_and_leaves_no_error(opened):
    page = opened(AT)
    expect(page.get_by_role("status").filter(has_text=re.compile("^3 tokens"))).to_be_visible()
    refused = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
    prompt_box(page).fill("")
    expect(page.get_by_role("status").filter(has_text="Write a prompt to trace")).to_be_visible()
    prompt_box(page).fill("The last month")
    expect(page.get_by_role("status").filter(has_text=re.compile("^3 tokens"))).to_be_visible()
    assert not refused
    expect(page.get_by_role("button", name="Dismiss")).to_have_count(0)


def test_a_prompt_of_spaces_is_named_as_empty(opened):
    page = opened(AT)
    prompt_box(page).fill("   ")
    page.get_by_role("button", name="Trace", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="The prompt is empty: write at least one word")).to_be_visible()


def test_the_button_stays_on_the_screen_with_a_long_prompt(opened):
    page = opened(AT)
    prompt_box(page).fill("word " * 1000)
    expect(page.get_by_role("button", name="Trace", exact=True)).to_be_in_viewport(ratio=1)


def test_a_prompt_that_cannot_be_traced_leaves_no_numbers_of_another(opened, lm):
    page = opened(AT)
    expect(page.get_by_role("region", name="Logit attribution").get_by_text("Sum ")).to_be_visible()
    long = "word " * 400
    prompt_box(page).fill(long)
    page.get_by_role("button", name="Trace", exact=True).click()
    expect(page.get_by_role("button", name=re.compile(f"^Keep the last {lm.n_ctx} of "))).to_be_in_viewport()
    expect(page.locator(".prompt").get_by_text(f"{lm.encode(long).shape[-1]} tokens of {lm.n_ctx}")).to_be_visible()
    for old in (page.get_by_text("the model predicts"), page.get_by_role("grid"), page.get_by_text("effects on ")):
        expect(old.filter(visible=True)).to_have_count(0)
    page.get_by_role("button", name=re.compile("^Keep the first ")).click()
    expect(page.get_by_text("the model predicts")).to_be_visible()
    expect(page.locator("#main .warn").filter(visible=True)).to_have_count(0)
    opened.allowed.append("422")


def test_everything_about_the_old_prompt_is_dimmed_until_the_new_one_is_traced(opened, lm):
    page = opened(AT)
    expect(page.get_by_role("region", name="Logit attribution").get_by_text("Sum ")).to_be_visible()
    held = []
    page.route("**/api/v1/traces/stream", lambda route: held.append(route))
    prompt_box(page).fill("The last month")
    page.get_by_role("button", name="Trace", exact=True).click()
    old = [
        page.get_by_text("the model predicts"),
        page.get_by_role("grid").first,
        page.get_by_role("heading", name=f"Layer {lm.n_layers - 1}, FFN"),
        page.get_by_role("group", name="Where in the model"),
        page.get_by_text("relative error"),
    ]
    for one in old:
        expect(page.locator(".waiting").filter(has=one)).to_have_count(1)
    held[0].continue_()
    expect(page.locator(".waiting")).to_have_count(0)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory) -> Iterator[Served]:
    """An explorer of a model that is not the shipped one."""
    found = Served(unembed.load(save_model(tmp_path_factory.mktemp("models") / "llama", "llama")))
    yield found
    found.stop()


def test_another_model_opens_on_a_trace_of_its_own(opened, other_model):
    page = opened(at=other_model.address)
    lm = other_model.session.lm
    expect(page.get_by_role("gridcell").first).to_be_visible()
    expect(page.get_by_role("grid")).to_have_attribute(
        "aria-colcount", str(1 + lm.encode("He was born on 16").shape[1])
    )
    expect(page.get_by_text("traced with wren")).to_have_count(0)
    page.wait_for_url(re.compile("prompt=He"))


def test_the_shipped_model_opens_on_an_example_and_three_tasks(opened, lm):
    page = opened()
    expect(page.get_by_text("An example, traced with wren beforehand.")).to_be_visible()
    best = lm.decode(lm.trace("He was born on 16").prediction[-1:].tolist()).strip()
    expect(page.get_by_label("Predictions of the next token")).to_contain_text(best)
    for task in ("Which memories write this token?", "Find a theme and silence it", "Find an induction head"):
        expect(page.get_by_role("button", name=task)).to_be_visible()
    page.get_by_role("button", name="Example: She put the book on the").click()
    expect(prompt_box(page)).to_have_value("She put the book on the")


def test_the_commands_that_build_an_index_name_the_model(opened, other_model):
    other_model.session.source = "models/my llama"
    page = opened("#/label", at=other_model.address)
    expect(page.get_by_text("unembed index build --model 'models/my llama' --out my-index")).to_be_visible()
    expect(page.get_by_text("unembed serve --model 'models/my llama' --index my-index")).to_be_visible()


def test_a_prompt_entered_while_the_first_one_is_traced_is_kept(opened, other_model):
    page = opened("#/label", at=other_model.address)
    pending = []
    page.route("**/api/v1/traces/*position=*", lambda route: pending.append(route))
    page.get_by_role("navigation", name="Screens").get_by_role("link", name="Trace").click()
    expect(page.get_by_role("gridcell").first).to_be_visible()  # its panes are not here yet
    prompt_box(page).fill("the year")
    prompt_box(page).press("Enter")
    page.unroute_all()
    for route in pending:
        with contextlib.suppress(Error):  # the browser has let it go, or Playwright has answered it
            route.continue_()
    n = other_model.session.lm.encode("the year").shape[1]
    expect(page.get_by_role("grid")).to_have_attribute("aria-colcount", str(n + 1))
    page.wait_for_timeout(300)
    expect(prompt_box(page)).to_have_value("the year")
    assert "prompt=the+year" in address(page)
