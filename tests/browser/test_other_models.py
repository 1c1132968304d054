"""The page on other models: a Llama folder without an index, a mixture of experts, attention only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.conftest import Served
from tests.cli.conftest import save_model
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered

SCREENS = [
    "trace",
    "layer?layer=1",
    "memory?memory=L1M7",
    "intervene",
    "heads?head=L1H2",
    "atlas",
    "search?query=month",
]


HYBRIDS = ["granitemoehybrid", "mamba2"]
"""Models with layers that have no attention: half of them, or all."""


@pytest.fixture(scope="module")
def explorer_of(tmp_path_factory) -> Iterator[Callable[[str], Served]]:
    """An explorer of a model by its family, or of a shipped one by its name; each is opened once."""
    found: dict[str, Served] = {}

    def open_one(name: str) -> Served:
        if name not in found:
            if name in HYBRIDS:
                found[name] = Served(unembed.load(tiny_model(name), tokenizer=lettered("gpt2").tokenizer))
                return found[name]
            folder = name if name.startswith("attn") else save_model(tmp_path_factory.mktemp("models") / name, name)
            found[name] = Served(unembed.load(folder))
        return found[name]

    yield open_one
    for served in found.values():
        served.stop()


@pytest.mark.parametrize("name", ["llama", "mixtral", "attn-2l", "granitemoehybrid"])
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


def test_the_search_of_a_model_without_memories_offers_a_head(opened, explorer_of):
    page = opened("#/search", at=explorer_of("attn-2l").address)
    expect(page.get_by_role("heading", name="This model has no memories to search")).to_be_visible()
    page.locator("#main").get_by_role("button", name="L0H1").click()
    expect(page.get_by_role("region", name=re.compile("^L0H1"))).to_be_visible()


def test_layers_with_another_mixer_than_attention_are_called_by_its_name(opened, explorer_of):
    page = opened("#/trace?prompt=five+tokens&layer=2&stages=both", at=explorer_of("granitemoehybrid").address)
    expect(page.locator(".model-chip")).to_contain_text("4 attention heads, 8 Mamba-2 heads")
    model = page.get_by_role("group", name="Where in the model")
    for layer, name in enumerate(["mixer (Mamba-2)", "Attention"] * 2):
        part = model.get_by_role("button", name=re.compile(rf"^Layer {layer} {re.escape(name)} adds [+−][0-9.]*[1-9]"))
        expect(part).to_be_visible()
    expect(
        page.get_by_role("gridcell", name=re.compile(r"^Layer 2 after mixer \(Mamba-2\), position 1 "))
    ).to_be_visible()
    expect(page.get_by_role("gridcell", name=re.compile("^Layer 3 after attention, position 1 "))).to_be_visible()
    model.get_by_role("button", name=re.compile("^Layer 2 mixer")).click()
    inspector = page.get_by_role("complementary", name="Selected cell")
    expect(inspector.get_by_role("heading", name="Layer 2, mixer (Mamba-2)")).to_be_visible()
    page = opened("#/layer?prompt=five+tokens&layer=2", at=explorer_of("granitemoehybrid").address)
    expect(page.get_by_role("heading", name="Before, after mixer (Mamba-2), after FFN")).to_be_visible()


def test_heads_are_those_of_layers_with_attention_and_the_others_are_named(opened, explorer_of):
    page = opened("#/heads?prompt=five+tokens", at=explorer_of("granitemoehybrid").address)
    matrix = page.get_by_role("region", name="All heads").get_by_role("grid")
    expect(matrix.get_by_role("button").or_(matrix.locator("button"))).to_have_count(8)
    expect(matrix.get_by_text("mixer (Mamba-2)")).to_have_count(2)
    pictures = page.get_by_role("region", name="Patterns on the prompt")
    expect(pictures.locator("canvas")).to_have_count(8)
    expect(pictures.get_by_text("mixer (Mamba-2)")).to_have_count(2)


def test_a_model_without_attention_says_so_where_heads_would_be(opened, explorer_of):
    opened.allowed += ["409 (Conflict)", "422"]
    page = opened("#/heads?prompt=five+tokens", at=explorer_of("mamba2").address)
    expect(page.get_by_text(re.compile("its layers have Mamba-2 instead of attention")).first).to_be_visible()


def test_what_needs_an_index_explains_once_how_to_build_one_and_its_cost(opened, explorer_of):
    page = opened("#/memory?memory=L1M7", at=explorer_of("llama").address)
    examples = page.get_by_role("region", name="Top activating examples")
    expect(examples.get_by_text(re.compile("^unembed index build"))).to_be_visible()
    expect(page.get_by_text(re.compile("^unembed index build"))).to_have_count(1)
    cost = examples.get_by_text(re.compile(r"^About \d+ minutes? and [\d.]+ MB on disk"))
    expect(cost).to_have_count(0)  # the model runs on a part of the corpus for it
    examples.get_by_role("button", name="Estimate its cost").click()
    expect(cost).to_be_visible()
    for name in ("Activation distribution", "Labels", "Nearest neighbours"):
        expect(page.get_by_role("region", name=name)).to_contain_text("none is open")


def test_one_of_something_is_singular(opened, explorer_of):
    page = opened("", at=explorer_of("attn-1l").address)
    expect(page.locator(".model-chip")).to_contain_text("1 layer · 8 heads")
