"""A gated model has coefficients of both signs, and the page shows the examples of both."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.conftest import LINES, Served
from tests.index.conftest import save_model


@pytest.fixture(scope="module")
def gated(tmp_path_factory) -> Iterator[Served]:
    """An explorer of a tiny Llama model with an index."""
    lm = unembed.load(save_model(tmp_path_factory.mktemp("models") / "llama", "llama"))
    index = unembed.Index.build(lm, LINES, tmp_path_factory.mktemp("index") / "gated", top=4)
    found = Served(lm, index, name="gated")
    yield found
    found.stop()


def test_a_memory_of_a_gated_model_shows_the_examples_of_both_poles(opened, gated):
    corpus = gated.session.index
    page = opened("#/memory?memory=L0M3", at=gated.address)
    poles = page.get_by_role("radiogroup", name="Coefficients")
    for pole in ("Positive", "Negative"):
        poles.get_by_role("radio", name=pole).click()
        top = corpus.triggers(0, 3, 1, pole=pole.lower()).rows()
        first = next(iter(top))["coefficient"]
        assert (first < 0) == (pole == "Negative")
        shown = page.locator(".trigger .value").first
        expect(shown).to_have_text(f"{'−' if first < 0 else ''}{abs(first):.3g}".rstrip("0")[:6], timeout=20_000)


def test_a_card_begins_with_the_texts_of_its_sign(opened, gated):
    """A sign in the link; without one, the sign of the coefficient at the prompt's chosen position."""
    lm, prompt = gated.session.lm, LINES[0]
    trace = lm.trace(prompt)
    m = trace.everywhere("coefficients", [0]).at("coefficients", 0)[0, -1]
    low, high = f"L0M{int(m.argmin())}", f"L0M{int(m.argmax())}"
    page = opened(f"#/memory?memory={low}&prompt={quote(prompt)}", at=gated.address)
    for address, pole in ((low, "Negative"), (f"-{high}", "Negative"), (high, "Positive")):
        page.evaluate(f"location.hash = '#/memory?memory={address}&prompt={quote(prompt)}'")
        expect(page.get_by_role("heading", level=1)).to_have_text(address)
        chosen = page.get_by_role("radiogroup", name="Coefficients").get_by_role("radio", name=pole)
        expect(chosen).to_have_attribute("aria-checked", "true", timeout=20_000)
        negative = address[0] == "-"
        (first,) = lm.values.top_tokens(0, int(address.split("M")[1]), 1, bottom=negative)
        listed = page.get_by_role("heading", name="Promotes").locator("..").locator(".bar-row").first
        expect(listed).to_contain_text(first.strip())
        expect(page.get_by_role("button", name=f"Set to {'−' if negative else ''}3 × usual")).to_be_visible()
