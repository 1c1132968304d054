"""The drawings of a view: what they hold, that they fit, and that no token acts on the terminal or the page."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.cli.sample_view import DISPLACED, FALL, PART, RISE, SETTLED, sample_view
from unembed.cli.bars import Scale
from unembed.cli.trace.html import page
from unembed.cli.trace.terminal import draw_explanation, draw_trace
from unembed.models import Token
from unembed.models.named_tokens import MovedTokens
from unembed.results import decimals_of, format_probability, format_signed
from unembed.trace import HeadSource, TraceView


def drawn(width: int, *, plain: bool = False, colour: bool = False, everything: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    console.print(draw_trace(sample_view(), width, plain=plain, everything=everything))
    return out.getvalue()


@pytest.mark.parametrize("width", range(60, 201, 10))
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    assert max(cell_len(line) for line in drawn(width).splitlines()) <= width


@pytest.mark.parametrize("width", range(60, 201, 10))
def test_nothing_that_matters_is_cut_at_any_width(width: int) -> None:
    text = " ".join(drawn(width).split())
    for part in (
        "·January 34%",
        "from 34% to 3.8%",
        "from the FFN of layer 4 on",
        "L4H2",
        "70 other heads together +0.31",
        "L0M733",
        "always on L0M29 +0.52",
        "402 other active memories together −0.50",
        "before → attn → FFN",
        "+2.31",
        "layer 5 FFN",
        "12 others together",
        "12 tokens are not listed",
    ):
        assert part in text


def test_wide_terminals_show_more() -> None:
    assert drawn(160).count("·June") > drawn(80).count("·June")


def test_no_token_acts_on_the_terminal() -> None:
    text = drawn(100, colour=True)
    assert "\x1b[31m" not in text
    assert "\u202e" not in text
    assert "[red]" in text


def test_a_memory_that_lowers_the_lead_shows_what_it_suppresses_and_points_left() -> None:
    line = next(line for line in drawn(100).splitlines() if line.startswith("L0M20 "))
    assert "suppresses ·January" in line
    assert "█│" in line


def test_plain_output_has_words_for_signs() -> None:
    text = drawn(100, plain=True, everything=True)
    assert "(saturation)" in text and "(elimination)" in text
    assert not set(text) & set("█▌▐│◆✕•↑↓")


def with_moved(everything: bool = False) -> TraceView:
    """The sample with tokens that its first head and its first memory raise and lower; or all of its memories."""
    view, moved = sample_view(), MovedTokens((" June", " July"), (" May",))
    assert view.heads is not None and view.memories is not None
    head, memory, *others = view.heads.rows[0], *view.memories.rows
    rows = [dataclasses.replace(row, without=0.2, moved=moved) for row in (memory, *(others if everything else []))]
    heads = dataclasses.replace(view.heads, rows=[dataclasses.replace(head, moved=moved), *view.heads.rows[1:]])
    memories = dataclasses.replace(view.memories, rows=[*rows, *([] if everything else others)])
    return dataclasses.replace(view, heads=heads, memories=memories)


def lines_of(view: TraceView, width: int, *, plain: bool = False) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(draw_trace(view, width, plain=plain))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_plain_output_says_raises_and_lowers() -> None:
    text = "\n".join(lines_of(with_moved(everything=True), 100, plain=True))
    assert "raises ·June ·July" in text and "lowers ·May" in text
    assert not set(text) & set("↑↓")


def test_the_headings_say_that_effect_and_without_measure_different_things() -> None:
    lines = lines_of(sample_view(), 80)
    first = lines.index("Heads behind ·January over ·the")
    assert lines[first + 1 : first + 3] == [
        "effect: direct effect on the logit of ·January minus that of ·the",
        "without: probability of ·January (34% with it), indirect effects included",
    ]
    html = re.sub("<[^>]+>", "", page(sample_view(), ""))
    assert "effect: direct effect on the logit of ·January minus that of ·the" in html
    assert "without: probability of ·January (34% with it) when only this head is ablated, indirect effects" in html


def reading(*sources: HeadSource) -> TraceView:
    """A trace of "The first the first month is is" after its last token, in which one head reads `sources`."""
    view, words = sample_view(), ["The", " first", " the", " first", " month", " is", " is"]
    assert view.heads is not None
    tokens = [Token(position, position, word) for position, word in enumerate(words)]
    heads = dataclasses.replace(view.heads, rows=[dataclasses.replace(view.heads.rows[0], sources=list(sources))])
    return dataclasses.replace(view, tokens=tokens, heads=heads)


def test_a_head_says_which_of_several_equal_tokens_it_reads() -> None:
    view = reading(
        HeadSource(1, 1, " first", 0.5, 1.0), HeadSource(4, 4, " month", 0.2, 0.9), HeadSource(6, 6, " is", 0.1, 0.8)
    )
    (line,) = (line for line in lines_of(view, 100) if line.startswith("L4H2"))
    assert line.endswith("·first (1) 50%  ·month 20%  ·is itself 10%")
    assert any(line.startswith("reads: ") and line.endswith("; (1): position, from 0") for line in lines_of(view, 80))
    html = re.sub("<[^>]+>", "", page(view, ""))
    assert "·first (1)50% ·month20% ·is itself10%" in html


def test_the_page_names_the_lens_of_its_table_and_that_of_its_events_and_marks_massive_activations() -> None:
    view = dataclasses.replace(sample_view(), basis="jacobian")
    html, words = page(view, ""), re.sub("<[^>]+>", "", page(view, ""))
    assert "Read by the Jacobian lens." in words and "saturation by the logit lens, " in words
    assert html.count(' massive"') + html.count('"massive"') == 1 and "In italics: massive activations" in words
    assert view.grid is not None
    without = page(dataclasses.replace(view, grid=dataclasses.replace(view.grid, massive={})), "")
    assert 'massive"' not in without and "In italics" not in without


def test_no_position_is_shown_of_a_token_that_occurs_once() -> None:
    assert "position, from 0" not in drawn(80)


@pytest.mark.parametrize("width", range(60, 201, 5))
@pytest.mark.parametrize("plain", [False, True])
def test_what_a_head_reads_is_cut_only_between_entries(width: int, plain: bool) -> None:
    long = [HeadSource(n, n, f" {'abcdefghijklmnopq'[: 3 + 6 * n]}", 0.5, 1.0 - 0.1 * n) for n in range(3)]
    view = with_moved()
    assert view.heads is not None
    rows = [dataclasses.replace(view.heads.rows[0], sources=sources) for sources in (long, long[:1], long[::-1])]
    lines = lines_of(dataclasses.replace(view, heads=dataclasses.replace(view.heads, rows=rows)), width, plain=plain)
    shown = [line for line in lines if line.startswith("L4H2")]
    assert len(shown) == 3 and max(map(cell_len, lines)) <= width
    for line, sources in zip(shown, (long, long[:1], long[::-1]), strict=True):
        assert 1 <= line.count(" 50%") <= len(sources) and "June" in line
        assert line.count(" 50%") == line.count("·a"), "each token that is shown has its attention"
        if width >= 120:
            assert line.count(" 50%") == len(sources)


@pytest.mark.parametrize("plain", [False, True])
def test_what_the_lens_reads_is_not_under_the_heading_of_what_was_measured(plain: bool) -> None:
    lines = lines_of(with_moved(), 100, plain=plain)
    first = next(n for n, line in enumerate(lines) if line.startswith("Memories behind"))
    headings = [n for n, line in enumerate(lines) if line.startswith("memory ")]
    assert headings[0] > first and lines[headings[0]].endswith("raises, lowers")
    assert "raises ·June" in lines[headings[0] + 1] or "↑ ·June" in lines[headings[0] + 1]
    between = lines[headings[0] + 2]
    assert between == "11 more, not ablated; promotes: what the lens reads in their values"
    assert headings[1:] == [headings[0] + 3] and lines[headings[1]].endswith("promotes (lens)")
    html = page(with_moved(), "")
    assert html.count("<small>raises</small>") == 1
    assert html.count("<small>promotes (lens)</small>") == 5 and html.count("<small>suppresses (lens)</small>") == 6
    whole = lines_of(with_moved(everything=True), 100, plain=plain)
    assert not any("lens reads" in line or "(lens)" in line for line in whole)


def test_findings_come_first_in_order_and_events_only_with_everything() -> None:
    lines = [line.rstrip() for line in drawn(100).splitlines()]
    first = lines.index(f"• {PART}")
    assert lines[first - 1] == "" and first < 6
    assert lines[first + 1 : first + 3] == [f"• {SETTLED}", f"• {DISPLACED}"]
    assert "Heads behind ·January over ·the" in lines[first + 4]
    assert RISE not in "".join(lines)
    whole = [line.rstrip() for line in drawn(100, everything=True).splitlines()]
    assert whole[-len(whole) :].count(f"◆ {RISE}") == whole.count(f"✕ {FALL}") == 1


def test_a_head_shows_what_it_reads_and_the_prediction_without_it() -> None:
    (line,) = (line for line in drawn(100).splitlines() if line.startswith("L4H2"))
    assert "+1.21" in line and "3.8%" in line and line.rstrip().endswith("·first 90%")


def test_writers_are_in_the_order_of_size_and_the_rest_is_one_row() -> None:
    view = sample_view(20)
    out = io.StringIO()
    Console(file=out, width=100).print(draw_trace(view, 100, plain=True))
    attribution = out.getvalue().split("Why ·January")[1].splitlines()[1:]
    shown = [line.split() for line in attribution if line.startswith("layer")]
    (whole,) = view.attributions
    largest = sorted(whole.rows, key=lambda row: -abs(row.contribution))[:12]
    assert [" ".join(words[:3]) for words in shown] == [row.label for row in largest]
    (rest,) = (line for line in attribution if "others together" in line)
    assert rest.split()[0] == str(12 + 40 - 12)
    left = whole.total - sum(row.contribution for row in largest)
    assert float(rest.split()[-1].replace("−", "-")) == pytest.approx(left, abs=0.01)


def test_an_explanation_shows_ranks_and_attributions() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(draw_explanation(sample_view(), 100))
    assert "9,413 → 1,177 → 1,176" in out.getvalue()
    assert "Memories behind" not in out.getvalue()


def test_events_are_listed_where_nothing_was_ranked() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(draw_explanation(dataclasses.replace(sample_view(), findings=[]), 100))
    assert "Findings" not in out.getvalue()
    assert f"◆ {RISE}" in out.getvalue() and f"✕ {FALL}" in out.getvalue()


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_no_token_becomes_a_tag() -> None:
    reader = _Tags()
    reader.feed(page(sample_view(), "wren · float32"))
    assert reader.open == []
    assert not reader.seen & {"b", "script", "link", "img", "red"}


def test_the_page_has_a_light_and_a_dark_form() -> None:
    assert "prefers-color-scheme: dark" in page(sample_view(), "")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.integers(2, 48))
def test_bars_fill_their_side_and_never_more(values: list[float], cells: int) -> None:
    scale = Scale.of(values, cells)
    for value in values:
        left, right = scale.left(value), scale.right(value)
        assert len(left) + len(right) <= cells
        assert not (left.strip() and right.strip())
        assert not (value > 0 and left.strip())
        assert not (value < 0 and right.strip())
    largest = max(values, key=abs)
    if largest != 0:
        side = scale.right(largest) if largest > 0 else scale.left(largest)
        assert side == "█" * scale.cells


@pytest.mark.parametrize(
    ("number", "text"), [(1.234, "+1.23"), (-0.5, "−0.50"), (0.0, "+0.00"), (-0.0021, "−0.0021"), (0.00094, "+0.00094")]
)
def test_numbers_carry_their_sign(number: float, text: str) -> None:
    assert format_signed(number) == text


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        ([12.5, -0.003, 0.4], ["+12.50", "−0.00", "+0.40"]),
        ([0.04, -0.0021], ["+0.040", "−0.002"]),
        ([0.0, math.inf], ["+0.00", "+inf"]),
        ([], []),
    ],
)
def test_the_numbers_of_a_column_have_equally_many_decimals(column: list[float], texts: list[str]) -> None:
    assert [format_signed(number, decimals_of(column)) for number in column] == texts


@given(st.floats(0, 1))
def test_probabilities_take_at_most_four_cells(probability: float) -> None:
    assert len(format_probability(probability)) <= 4
