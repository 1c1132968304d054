"""The search screen: all results can be reached, and what narrows them is counted over all of them."""

from __future__ import annotations

import re

from playwright.sync_api import expect


def rows(page):
    """The result rows."""
    return page.get_by_role("table").get_by_role("checkbox", name="Choose L")


def test_all_results_of_a_search_are_counted_and_reached(opened, served, lm):
    search = served.session
    total = _total(search, lm, "the")
    assert total > 120
    page = opened("#/search?query=the")
    expect(page.get_by_text(f"{total:,} memories, 60 of them shown")).to_be_visible()
    expect(rows(page)).to_have_count(60)
    page.get_by_role("button", name="Show 60 more").click()
    expect(rows(page)).to_have_count(120)
    links = page.get_by_role("table").get_by_role("link").all_inner_texts()
    assert len(links) == len(set(links)), "a memory has one row"


def _total(state, lm, query: str) -> int:
    from unembed.index.memory_search import search

    return search(lm, state.index, query, described=state.descriptions).total


def test_a_filter_counts_all_results_and_can_be_cleared(opened, served, lm):
    page = opened("#/search?query=the")
    layers = page.get_by_role("combobox", name="Layer")
    expect(layers).to_be_visible()
    label = layers.locator("option").nth(1).inner_text()
    number, count = re.fullmatch(r"Layer (\d+) \((\d+)\)", label).groups()
    layers.select_option(number)
    expect(page.locator("caption")).to_have_text(re.compile(rf"^{int(count):,} memor"))
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("caption")).to_have_text(re.compile(rf"^{_total(served.session, lm, 'the'):,} memories"))


def test_the_sign_of_a_word_is_a_filter_and_the_page_states_what_is_exact(opened, served, lm):
    page = opened("#/search?query=month")
    expect(page.get_by_text("Exact: all values are scored")).to_be_visible()
    page.get_by_role("radiogroup", name="Sign").get_by_role("radio", name="Suppresses").click()
    expect(page.get_by_role("cell", name="suppresses").first).to_be_visible()
    expect(page.get_by_role("searchbox", name="Search memories").last).to_have_value("-month")
    expect(page.locator("caption")).to_have_text(re.compile(rf"^{_total(served.session, lm, '-month'):,} memor"))
    page.get_by_role("radiogroup", name="Sign").get_by_role("radio", name="Promotes").click()
    expect(page.get_by_role("cell", name="promotes").first).to_be_visible()


def test_a_misspelt_word_suggests_existing_tokens(opened):
    page = opened("#/search?query=Januarry")
    page.get_by_role("button", name=re.compile("anuary")).first.click()
    expect(page.get_by_role("table")).to_be_visible()


def test_the_pieces_of_a_word_can_be_searched(opened):
    page = opened("#/search?query=antidisestablishmentarianism")
    expect(
        page.get_by_text(re.compile("^No form of “antidisestablishmentarianism” is one token. It is "))
    ).to_be_visible()
    page.get_by_title(re.compile("^Search .* alone$")).first.click()
    expect(page.get_by_role("searchbox", name="Search memories").last).to_have_value(re.compile('^".*"$'))


def test_a_search_names_the_tokens_it_looks_for(opened):
    page = opened("#/search?query=January")
    note = page.get_by_text(re.compile("^“January” is searched as ·January"))
    expect(note).to_contain_text("; without a space before it, it is 4 tokens: ")
