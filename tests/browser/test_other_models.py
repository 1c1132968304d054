"""The page on other models: a Llama folder without an index, a mixture of experts, attention only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.conftest import Served
from tests.cli.conftest import save_model

SCREENS = [
    "trace",
    "layer?layer=1",
    "memory?memory=L1M7",
    "intervene",
    "heads?head=L1H2",
    "atlas",
    "search?query=month",
]


@pytest.fixture(scope="module")
def explorer_of(tmp_path_factory) -> Iterator[Callable[[str], Served]]:
    """An explorer of a model by its family, or of a shipped one by its name; each is opened once."""
    found: dict[str, Served] = {}

    def open_one(name: str) -> Served:
        if name not in found:
            folder = name if name.startswith("attn") else save_model(tmp_path_factory.mktemp("models") / name, name)
            found[name] = Served(unembed.load(folder))
        return found[name]

    yield open_one
    for served in found.values():
        served.stop()


@pytest.mark.parametrize("name", ["llama", "mixtral", "attn-2l"])
@pytest.mark.parametrize("screen", SCREENS)
def test_every_screen_of_every_kind_of_model_opens_without_a_failure(opened, explorer_of, name, screen):
    page = opened(f"#/{screen}", at=explorer_of(name).address)
    opened.allowed.append("409 (Conflict)")  # a model without memories has none to search, and the page says so
    expect(
        page.locator("#main")
        .locator(".card:visible, .empty:visible, .note:visible, .prompt:visible, table:visible, p:visible")
        .first
    ).to_be_visible()
    page.wait_for_load_state("networkidle")
    expect(page.locator("#main .skeleton")).to_have_count(0)
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    expect(page.get_by_role("contentinfo").locator(".bad")).to_have_count(0)


def test_a_model_without_feed_forward_layers_is_described_by_its_attention(opened, explorer_of):
    page = opened("#/trace?prompt=He+was+born+on+16", at=explorer_of("attn-2l").address)
    inspector = page.get_by_role("complementary", name="Selected cell")
    expect(inspector.get_by_role("heading", name="Layer 1, attention")).to_be_visible()
    model = page.get_by_role("group", name="Where in the model")
    expect(model.get_by_role("button")).to_have_count(2)
    expect(model).not_to_contain_text("FFN")
    expect(page.get_by_role("gridcell", name=re.compile("^Layer 1 after attention, position 4 "))).to_be_visible()
    expect(page.locator(".legend")).not_to_contain_text("saturation")


def test_what_needs_an_index_explains_once_how_to_build_one_and_its_cost(opened, explorer_of):
    page = opened("#/memory?memory=L1M7", at=explorer_of("llama").address)
    examples = page.get_by_role("region", name="Top activating examples")
    expect(examples.get_by_text(re.compile("^unembed index build"))).to_be_visible()
    expect(examples.get_by_text(re.compile(r"^About \d+ minutes? and [\d.]+ MB on disk"))).to_be_visible()
    expect(page.get_by_text(re.compile("^unembed index build"))).to_have_count(1)
    for name in ("Activation distribution", "Labels", "Nearest neighbours"):
        expect(page.get_by_role("region", name=name)).to_contain_text("none is open")


def test_one_of_something_is_singular(opened, explorer_of):
    page = opened("", at=explorer_of("attn-1l").address)
    expect(page.locator(".model-chip")).to_contain_text("1 layer · 8 heads")
