"""What a report leaves on disk: complete, self-contained, escaped, and drawn again from the tables alone."""

from __future__ import annotations

import io
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.reports.sample import PROVENANCE, sample, tables_of_two_units
from unembed.document.charts import draw
from unembed.document.files import prepared
from unembed.document.html import page
from unembed.document.intervals import NOTHING, Measured
from unembed.document.model import Reference
from unembed.document.numbers import format_interval, percent, points, signed
from unembed.document.svg import Scale, fitted
from unembed.document.terminal import summary
from unembed.errors import InvalidInput
from unembed.reports import Exhibit, Figure, Report, Section, reopen, write
from unembed.results import Table, as_written, format_number


class Tags(HTMLParser):
    """Notes every tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_report_read_back_makes_the_same_page(tmp_path: Path) -> None:
    path = write(sample(), tmp_path / "report")
    first = path.read_text(encoding="utf-8")
    again = reopen(tmp_path / "report")
    assert page(again) == first
    assert [dict(r) for r in again["heads"].rows()] == [dict(r) for r in sample()["heads"].rows()]
    (tmp_path / "report" / "report.html").unlink()
    assert write(again, tmp_path / "report").read_text(encoding="utf-8") == first


def test_every_table_and_figure_has_its_files(tmp_path: Path) -> None:
    report = sample()
    write(report, tmp_path / "r")
    for name, exhibit in report.exhibits.items():
        assert Table.from_parquet(tmp_path / "r/tables" / f"{name}.parquet").title == exhibit.table.title
        assert len(json.loads((tmp_path / "r/tables" / f"{name}.json").read_text())["rows"]) == len(exhibit.table)
    figures = [f.name for s in report.sections for f in s.figures]
    assert sorted(p.stem for p in (tmp_path / "r/figures").glob("*.svg")) == sorted(figures)
    for name in figures:
        root = ElementTree.parse(tmp_path / "r/figures" / f"{name}.svg").getroot()
        assert root.tag.endswith("svg")
        assert "prefers-color-scheme" in (tmp_path / "r/figures" / f"{name}.svg").read_text()


def test_the_page_makes_no_request_and_runs_no_script() -> None:
    made = page(sample())
    tags = Tags()
    tags.feed(made)
    assert {tag for tag, _ in tags.seen} & {"script", "link", "img", "iframe", "object", "embed"} == set()
    for _, attributes in tags.seen:
        assert not [k for k in attributes if k.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
        assert "src" not in attributes
    assert "url(" not in made and "@import" not in made and "http" not in re.sub(r"https?://www\.w3\.org\S*", "", made)


def test_hostile_text_stays_text() -> None:
    made = page(sample())
    assert "<script>" not in made and "<img" not in made
    assert "&lt;script&gt;" in made and "&lt;b&gt;and markup" in made
    assert "\x1b" not in made


def test_a_number_is_next_to_its_interval_its_sample_and_the_published_one() -> None:
    row = re.search(r"<tr><td class=\"n\">5</td>(.*?)</tr>", page(sample()))
    assert row is not None
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row[1])
    assert re.fullmatch(r"35\.0 % <span class=\"range\">\[\d\d\.\d, \d\d\.\d\]</span>", cells[0])
    assert cells[1:3] == ["200", "40.0 %"]


def test_findings_are_counted_on_the_page_and_in_the_terminal() -> None:
    from rich.console import Console

    assert "1 of 3 published findings agree here, 1 differ, 1 inconclusive. " in page(sample())
    assert "random weights passes 1" in page(sample()) and "not informative" in page(sample())
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary(sample()))
    text = console.export_text()
    assert "✓ It rises to 35.0 % in layer 5." in text and "✕ Something does." in text and "(Fig. 4)" in text


@pytest.mark.parametrize(
    ("percent", "ends", "labels"),
    [
        (True, (0.999, 0.9998), ["99.92 %", "99.94 %"]),
        (False, (1000.25, 1000.75), ["1,000.4", "1,000.5"]),
        (False, (0.0, 1.0), ["0", "0.2", "1"]),
    ],
)
def test_labels_of_ticks_lose_no_digit(percent: bool, ends: tuple[float, float], labels: list[str]) -> None:
    table = Table("T", {"x": [1, 2], "y": list(ends)}, PROVENANCE)
    drawn = draw(Figure("f", "t", "line", "t", "x", ("y",), percent=percent, y_range=ends), table)
    assert set(labels) <= set(re.findall(r">([^<>]+)</text>", drawn))


def test_a_line_is_drawn_through_the_numbers() -> None:
    table = Table("t", {"x": [0, 1, 2], "y": [0.0, 5.0, 10.0]}, PROVENANCE)
    svg = draw(Figure("f", "t", "line", "t", "x", ("y",)), table)
    dots = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert len(dots) == 3
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.11)
    assert dots[0][1] - dots[1][1] == pytest.approx(dots[1][1] - dots[2][1], abs=0.11)
    assert dots[0][1] > dots[2][1]  # larger is higher


def test_bars_are_as_long_as_their_numbers_and_stacks_reach_the_sum() -> None:
    table = Table("t", {"x": ["a", "b"], "p": [1.0, 2.0], "q": [3.0, 2.0]}, PROVENANCE)
    for kind, expected in (("bar", [1.0, 2.0, 3.0, 2.0]), ("stacked", [1.0, 3.0, 2.0, 2.0])):
        svg = draw(Figure("f", "t", kind, "t", "x", ("p", "q")), table)
        heights = [float(h) for h in re.findall(r'height="([\d.]+)" rx="1.5" class="f', svg)]
        gap = 0.6 if kind == "stacked" else 0.0
        unit = (heights[0] + gap) / expected[0]
        assert [h + gap for h in heights] == pytest.approx([unit * e for e in expected], abs=0.2)


def test_missing_numbers_leave_gaps() -> None:
    table = Table("t", {"x": [0, 1, 2], "y": [1.0, float("nan"), 2.0]}, PROVENANCE)
    svg = draw(Figure("f", "t", "line", "t", "x", ("y",)), table)
    assert "nan" not in svg and svg.count("<circle") == 2
    for kind in ("bar", "stacked", "scatter"):
        assert "nan" not in draw(Figure("f", "t", kind, "t", "x", ("y",)), table)


@pytest.mark.parametrize(
    ("value", "percent", "shown"),
    [
        (0.0351, True, "3.5 %"),
        (0.000004, True, "0.0004 %"),
        (1.0, True, "100 %"),
        (0.0, True, "0 %"),
        (65536, False, "65,536"),
        (-3.14159, False, "−3.14"),
        (0.5, False, "0.5"),
        (1e-9, False, "1.00e−09"),
        (None, False, "–"),
        (float("nan"), True, "–"),
        (float("inf"), False, "∞"),
    ],
)
def test_numbers_are_written_for_readers(value: float | None, percent: bool, shown: str) -> None:
    assert format_number(value, percent=percent) == shown


@pytest.mark.parametrize(
    ("values", "percent", "shown"),
    [
        ([2.18, 0.0358, 0.00287, -0.127, 0.0], False, ["2.180", "0.036", "0.003", "−0.127", "0"]),
        ([6.53, 5.0812, 5.05], False, ["6.53", "5.08", "5.05"]),
        ([1234.5, 12.0], False, ["1,234", "12"]),
        ([0.425, 0.0016, 0.0003], True, ["42.5 %", "0.2 %", "0.03 %"]),
        ([0.5, 1.0, 0.25], True, ["50 %", "100 %", "25 %"]),
        ([2e-7, 3.5e-4], False, ["2.00e−07", "3.50e−04"]),
        ([3, 40000, None], False, ["3", "40,000", "–"]),
    ],
)
def test_the_numbers_of_a_column_have_as_many_decimals(values: list, percent: bool, shown: list[str]) -> None:
    table = Table("T", {"x": values}, PROVENANCE)
    exhibit = Exhibit("t", table, percent=("x",) if percent else ())
    made = page(Report("n", "t", "s", "p", PROVENANCE, (Section("S", (), (exhibit,)),)))
    assert re.findall(r'<td class="n">(.*?)</td>', made) == shown


def test_numbers_of_one_sample_have_its_size_once() -> None:
    columns = {"layer": [0, 1]} | {f"{c}{end}": [0.5, 0.25] for c in "xy" for end in ("", "_low", "_high")}

    def cells(x: list[int], y: list[int]) -> list[str]:
        exhibit = Exhibit("t", Table("T", columns | {"x_n": x, "y_n": y}, PROVENANCE))
        made = page(Report("n", "t", "s", "p", PROVENANCE, (Section("S", (), (exhibit,)),)))
        return re.findall(r"<th(?: class=[^>]*)?>(.*?)</th>", made) + re.findall(r'<td class="n">(\d+)</td>', made)

    assert cells([30, 20], [30, 20]) == ["layer", "x", "y", "n", "0", "30", "1", "20"]
    assert cells([30, 20], [30, 10]) == ["layer", "x", "n", "y", "n", "0", "30", "30", "1", "20", "10"]


def test_a_table_of_a_page_has_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"head": ["L0H0"], "occurrences": [7], "logits": [2.5], "share": [0.25], "share_n": [8], "said": ["so"]}
    columns |= {"cosine": [-0.5]}
    exhibit = Exhibit("t", Table("T", columns, PROVENANCE), percent=("share",), apart=(("cosine",),))
    report = Report("n", "t", "s", "p", PROVENANCE, (Section("S", (), (exhibit,)),))
    heads = [re.findall(r"<th(?: class=[^>]*)?>(.*?)</th>", head) for head in page(report).split("<thead>")[1:]]
    row = ["head", "occurrences"]
    assert heads == [[*row, "logits"], [*row, "share", "n", "said"], [*row, "cosine"]]
    assert tables_of_two_units(report) == []
    monkeypatch.setattr(Exhibit, "by_unit", lambda _: [["head", "logits", "share"]])
    assert tables_of_two_units(report) != []


def test_numbers_of_the_two_axes_do_not_meet() -> None:
    table = Table("t", {"x": [-4.0, 4.0], "y": [-4.0, 4.0], "name": ["−1.0 to −0.8", "0.8 to 1.0"]}, PROVENANCE)
    equal = Figure("f", "F", "scatter", "t", "x", ("y",), x_label="x", y_label="y", equal=True)
    for figure in (equal, Figure("f", "F", "bar", "t", "name", ("y",), x_label="x", y_label="y", y_range=(-4, 4))):
        svg = ElementTree.fromstring(draw(figure, table, standalone=True))
        lines = {float(e.get("y", "0")) for e in svg.iter() if e.tag.endswith("text") and not e.get("transform")}
        # A line of this font is 15 to 16 units high, of which less than 12 stand above its baseline.
        low = sorted(lines)[-3:]
        assert low[1] - low[0] >= 16 and low[2] - low[1] >= 16, low


def test_a_name_moved_inwards_at_the_edge_stands_on_no_other_name() -> None:
    names = [*(f"L{i // 4}H{i % 4}" for i in range(24)), "the unembedding"]
    table = Table("t", {"x": names, "y": [1.0] * 25}, PROVENANCE)
    svg = ElementTree.fromstring(draw(Figure("f", "F", "bar", "t", "x", ("y",)), table, standalone=True))
    shown = [(e.text or "", float(e.get("x", 0))) for e in svg.iter() if e.text in names]
    assert shown and shown[0][0] == "the unembedding" and len(shown) > 2
    ends = sorted((x - 4 * len(name), x + 4 * len(name)) for name, x in shown)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends)), shown


def test_axes_hold_all_values_on_round_numbers() -> None:
    assert fitted([0.3, 7.2]) == (0.0, 8.0)
    assert fitted([-3.0, 41.0]) == (-10.0, 50.0)
    assert fitted([3.0, 900.0], logarithmic=True) == (1.0, 1000.0)
    assert fitted([]) == (0.0, 1.0)
    assert Scale(0, 50, 0, 1).ticks() == [0, 10, 20, 30, 40, 50]


def test_reports_that_cannot_be_are_refused(tmp_path: Path) -> None:
    table = Table("t", {"x": [0], "y": [1.0]}, PROVENANCE)

    def made(*figures: Figure, twice: bool = False) -> Report:
        exhibits = (Exhibit("t", table),) * (2 if twice else 1)
        return Report("r", "r", "", "", PROVENANCE, (Section("s", (), exhibits, figures),))

    with pytest.raises(InvalidInput, match="two tables are named 't'"):
        made(twice=True)
    with pytest.raises(InvalidInput, match="no table 'u'"):
        made(Figure("f", "f", "line", "u", "x", ("y",)))
    with pytest.raises(InvalidInput, match="no column 'z'"):
        made(Figure("f", "f", "line", "t", "x", ("z",)))
    with pytest.raises(InvalidInput, match="one of line"):
        Figure("f", "f", "pie", "t", "x", ("y",))
    with pytest.raises(InvalidInput, match="table 'nothing'"):
        sample()["nothing"]


def test_folders_that_hold_no_report_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no report in"):
        reopen(tmp_path)
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(InvalidInput, match="no report in"):
        reopen(tmp_path)
    (tmp_path / "report.json").write_text('{"schema": "unembed.report/99"}')
    with pytest.raises(InvalidInput, match="its schema is"):
        reopen(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="it is a file"):
        write(sample(), tmp_path / "file")
    with pytest.raises(InvalidInput, match="No such file"):
        write(sample(), tmp_path / "a" / "b")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "figures").write_text("")
    with pytest.raises(InvalidInput, match="File exists"):
        write(sample(), tmp_path / "taken")


def test_a_report_that_is_refused_leaves_no_folders_in_the_folder(tmp_path: Path) -> None:
    assert not list(prepared(tmp_path / "asked").iterdir())


def test_eigenvalues_have_one_scale_on_both_axes_and_heat_maps_a_colour_bar() -> None:
    table = Table("t", {"x": [3.0, -1.0], "y": [0.5, 0.0], "row": ["a", "b"]}, PROVENANCE)
    plain = Figure("f", "F", "scatter", "t", "x", ("y",))
    assert 'viewBox="0 0 460 280"' in draw(plain, table)
    equal = draw(replace(plain, equal=True), table)
    height = float(re.search(r'viewBox="0 0 460 ([\d.]+)"', equal)[1])
    circles = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', equal)]
    across, down = circles[0][0] - circles[1][0], circles[1][1] - circles[0][1]
    assert height > 400 and across / 4 == pytest.approx(down / 0.5, rel=0.01), "a unit is as long on either axis"
    heat = draw(Figure("h", "H", "heat", "t", "x", ("y",), rows="row", y_range=(-2, 2)), table)
    assert heat.count("<rect") == 2 + 41 and ">2<" in heat and ">−2<" in heat


def test_published_values_are_drawn_where_they_lie() -> None:
    table = Table("T", {"layer": [0, 1, 2], "share": [0.1, 0.2, 0.3]}, PROVENANCE)
    references = (
        Reference("line, published", (0.5,)),
        Reference("band, published", (0.4, 0.8), (0.6, 1.0), at=(0.0, 1.0), series=0),
        Reference("stretch, published", at=(0.5, 1.0)),
    )
    figure = Figure("f", "F", "line", "t", "layer", ("share",), ("here",), y_range=(0, 1), references=references)
    svg = ElementTree.fromstring(draw(figure, table, standalone=True))
    paths = [(e.get("class", ""), e.get("d", "")) for e in svg.iter() if e.tag.endswith("path")]
    # The drawing is 460 wide; its axes span x 68 to 450, and y up from its lower edge.
    (level,) = [d for kind, d in paths if kind == "ref" and d.count("L") == 1 and d.startswith("M68.0")]
    heights = {float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", level)}

    def tick(word: str) -> float:
        at = next(e for e in svg.iter() if e.text == word and e.get("text-anchor") == "end")
        return float(at.get("y", 0)) - 4

    assert sorted(heights) == pytest.approx([(tick("0") + tick("1")) / 2], abs=0.1), "0.5 lies half way up"
    assert [kind for kind, _ in paths if "refband" in kind] == ["refband s0", "refband dotted"]
    words = "".join(svg.itertext())
    assert all(f"{name}, published" in words for name in ("line", "band", "stretch"))
    alone = draw(replace(figure, references=()), table)
    assert "published" not in alone and 'class="ref' not in alone


@pytest.mark.parametrize("wrong", [((0.1, 0.2), (), ()), ((0.1,), (0.2, 0.3), ()), ((), (), (0.1,))])
def test_a_reference_has_as_many_values_as_places(wrong) -> None:
    with pytest.raises(InvalidInput, match="one value for each position"):
        Reference("x", *wrong)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-0.31 [-0.4, -0.2]", "−0.31 [−0.4, −0.2]"),
        ("+0.00 [-0.00, +0.00]", "0.00 [0.00, 0.00]"),
        ("-0.00 and +0.00. Then -0.05 and +0.001.", "0.00 and 0.00. Then −0.05 and +0.001."),
        ("3e-07", "3e−07"),
        ("GPT-2, layers 4-11, wikitext-103, attn-2l, --top 25", "GPT-2, layers 4-11, wikitext-103, attn-2l, --top 25"),
        ("42% of 96.4%", "42 % of 96.4 %"),
    ],
)
def test_there_is_one_minus_sign_and_one_way_to_write_percent(text: str, shown: str) -> None:
    assert as_written(text) == shown


def test_a_difference_of_shares_is_in_points() -> None:
    assert points(Measured(-0.133, -0.225, 0.036, 20)) == "−13.3 points [−22.5, 3.6]"


def test_a_number_that_could_not_be_measured_is_undefined_in_sentences() -> None:
    assert [write(NOTHING) for write in (format_interval, percent, points, signed)] == ["undefined"] * 4


def test_the_page_explains_why_a_finding_differs_and_escapes_corpus_text() -> None:
    report = sample()
    section = next(s for s in report.sections if s.findings)
    finding = replace(section.findings[0], verdict="differs", explanation="The text is -3% shorter.")
    prefix = Table("Prefixes", {"prefix_text": ["it fell by -3% today"]}, PROVENANCE)
    changed = replace(section, findings=(finding,), exhibits=(*section.exhibits, Exhibit("prefixes", prefix)))
    made = page(replace(report, sections=tuple(changed if s is section else s for s in report.sections)))
    assert "The text is −3&nbsp;% shorter." in made and "it fell by -3% today" in made


def test_intervals_of_many_columns_stand_below_their_numbers() -> None:
    columns = {"layer": [0]} | {f"c{i}{end}": [0.1] for i in range(6) for end in ("", "_low", "_high")}

    def html_of(columns: dict[str, list]) -> str:
        exhibit = Exhibit("t", Table("T", columns, PROVENANCE))
        return page(Report("n", "t", "s", "p", PROVENANCE, (Section("S", (), (exhibit,)),)))

    assert 'class="scroll wide"' in html_of(columns)
    assert 'class="scroll wide"' not in html_of({k: v for k, v in columns.items() if k[1:2] in "ay01"})


def test_headings_of_numbers_keep_the_word_token() -> None:
    table = Table("T", {"previous_token": [0.5], "next_token": [" a"]}, PROVENANCE)
    made = page(Report("n", "t", "s", "p", PROVENANCE, (Section("S", (), (Exhibit("t", table),)),)))
    assert ">previous token</th>" in made and ">next</th>" in made


def test_a_map_of_sorted_rows_has_its_numbers_in_order() -> None:
    rows = {"layer": [1, 0, 1, 0], "head": [7, 2, 2, 7], "share": [0.9, 0.8, 0.1, 0.2]}
    figure = Figure("h", "H", "heat", "t", "head", ("share",), rows="layer")
    by_size = draw(figure, Table("t", rows, PROVENANCE))
    order = [1, 3, 2, 0]
    in_order = draw(figure, Table("t", {name: [one[i] for i in order] for name, one in rows.items()}, PROVENANCE))
    assert sorted(re.findall(r"<rect[^>]*>", by_size)) == sorted(re.findall(r"<rect[^>]*>", in_order))
