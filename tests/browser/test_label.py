"""The annotation queue: nothing typed is lost, keys work with any focus, undo returns to the item that was left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.conftest import LINES, Served


@pytest.fixture
def annotated(lm, tmp_path) -> Iterator[Served]:
    """An explorer whose index has no labels yet."""
    found = Served(lm, unembed.Index.build(lm, LINES, tmp_path / "of-labels", top=25))
    yield found
    found.stop()


def start(opened, annotated, name: str = "ann"):
    """The first item of the queue, for an annotator."""
    page = opened("#/label", at=annotated.address)
    author = page.get_by_role("textbox", name="Annotator name")
    author.fill(name)
    author.blur()
    expect(page.get_by_role("heading", name="Item 1", exact=True)).to_be_visible()
    return page


def tick(page, n: int) -> None:
    """Tick the first members."""
    for i in range(1, n + 1):
        page.get_by_role("checkbox", name=str(i), exact=True).check()


def labels(annotated) -> list[tuple[str, str]]:
    """Who stored which label."""
    return [(row["author"], row["label"]) for row in annotated.session.index.labels(of="all").rows()]


def test_a_described_pattern_is_saved_without_a_press_of_add(annotated, opened):
    page = start(opened, annotated)
    page.get_by_role("textbox", name="Describe the pattern").fill("endings")
    tick(page, 4)
    page.get_by_role("button", name="Save and next").click()
    expect(page.get_by_role("heading", name="Item 2", exact=True)).to_be_visible()
    assert labels(annotated) == [("ann", "endings")]


def test_a_description_without_members_is_stored_and_never_as_no_pattern(annotated, opened):
    page = start(opened, annotated)
    box = page.get_by_role("textbox", name="Describe the pattern")
    box.fill("endings")
    expect(page.get_by_role("button", name="No pattern, next")).to_have_count(0)
    page.get_by_role("button", name="Save and next").click()
    expect(page.get_by_role("alert")).to_contain_text("“endings” is not saved yet: tick at least 4 members")
    expect(box).to_have_value("endings")
    assert not labels(annotated)
    page.reload()
    expect(box).to_have_value("endings")


def test_keys_work_after_a_tick_and_in_the_description(annotated, opened):
    page = start(opened, annotated)
    tick(page, 4)
    page.keyboard.press("3")
    expect(page.get_by_role("radiogroup", name="Confidence").get_by_role("radio", name="3")).to_be_checked()
    page.get_by_role("textbox", name="Describe the pattern").fill("5 sums")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Item 2", exact=True)).to_be_visible()
    rows = list(annotated.session.index.labels().rows())
    assert [(row["label"], row["notes"]["confidence"]) for row in rows] == [("5 sums", 3)]
    page.get_by_role("checkbox", name="1", exact=True).check()
    page.keyboard.press("s")
    expect(page.get_by_role("heading", name="Item 3", exact=True)).to_be_visible()


def test_undo_returns_to_the_item_that_was_left_with_its_work(annotated, opened):
    page = start(opened, annotated)
    page.get_by_role("textbox", name="Describe the pattern").fill("endings")
    tick(page, 4)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Item 2", exact=True)).to_be_visible()
    page.get_by_role("button", name="Skip (s)").click()
    expect(page.get_by_role("heading", name="Item 2")).to_be_visible()
    expect(page.get_by_role("button", name="Skip (s)")).to_be_focused()  # drawn again, it keeps the focus
    expect(page.get_by_role("heading", name="Item 3", exact=True)).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("heading", name="Item 2", exact=True)).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("heading", name="Item 1", exact=True)).to_be_visible()
    expect(page.get_by_text("endings")).to_be_visible()
    assert not labels(annotated), "what was stored is withdrawn"


def test_keys_and_values_are_two_queues_and_two_tabs_two_annotators(annotated, opened):
    page = start(opened, annotated)
    page.get_by_role("button", name="No pattern, next").click()
    expect(page.get_by_role("heading", name="Item 2", exact=True)).to_be_visible()
    page.get_by_role("radio", name="Keys").click()
    expect(page.get_by_text("keys done by ann")).to_contain_text("0 of")
    expect(page.get_by_role("heading", name="Item 1", exact=True)).to_be_visible()
    other = page.context.new_page()
    other.goto(annotated.address + "#/label")
    other.get_by_role("textbox", name="Annotator name").fill("bob")
    other.get_by_role("textbox", name="Annotator name").blur()
    expect(other.get_by_text("values done by bob")).to_contain_text("0 of")
    page.reload()
    expect(page.get_by_role("textbox", name="Annotator name")).to_have_value("ann")


def test_keys_work_as_commands_once_the_name_is_entered(annotated, opened):
    page = opened("#/label", at=annotated.address)
    page.get_by_role("textbox", name="Annotator name").fill("eve")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Item 1", exact=True)).to_be_visible()
    page.keyboard.press("s")
    expect(page.get_by_role("heading", name="Item 2", exact=True)).to_be_visible()
    expect(page.get_by_role("textbox", name="Annotator name")).to_have_value("eve")


def test_definitions_are_shown_for_words_only(annotated, opened):
    page = start(opened, annotated)
    shown = page.locator(".ticks label")
    for label in shown.all():
        text = label.locator(".tok").get_attribute("data-raw")
        word = text[1:]
        if not text.startswith(" ") or len(word) < 3 or not word.isalpha() or not word.islower():
            assert label.locator(".faint").count() == 0, text
    defined = shown.filter(has=page.locator(".faint"))
    expect(defined.first).to_be_visible()


def test_labels_can_be_imported_in_the_page(annotated, opened, tmp_path):
    page = start(opened, annotated)
    line = '{"layer": 1, "index": 7, "label": "months", "author": "eve", "kind": "memory", "notes": {}, "made": "2026"}'
    file = tmp_path / "labels.jsonl"
    file.write_text(line + "\n")
    page.get_by_label("File of labels").set_input_files(file)
    expect(page.get_by_text("1 label added, 0 were here already.")).to_be_visible()
    assert labels(annotated) == [("eve", "months")]
