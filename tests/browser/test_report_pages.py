"""Pages of the three reports, wide and narrow: nothing is cut, no words of a figure meet, the summary is first."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

import unembed
from tests.reports import test_geva2021, test_geva2022
from tests.sweeps.recorder import lettered, texts
from unembed.corpus import open_corpus
from unembed.reports import Report

_FAULTS = """() => {
  const faults = [], beyond = e => e.getBoundingClientRect().right > innerWidth + 1;
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page scrolls sideways");
  for (const e of document.querySelectorAll("body *")) {
    const framed = e.closest(".scroll");
    if ((!framed || framed === e) && beyond(e)) faults.push("beyond the edge: " + e.textContent.slice(0, 40));
  }
  for (const table of document.querySelectorAll(".scroll")) {
    const title = table.closest(".exhibit").querySelector("h3, summary").textContent;
    if (innerWidth >= 1200 && table.scrollWidth > table.clientWidth + 1) faults.push("a table is cut: " + title);
  }
  for (const figure of document.querySelectorAll("figure")) {
    const title = figure.querySelector("h3").textContent, frame = figure.querySelector("svg").getBoundingClientRect();
    const words = [...figure.querySelectorAll("text")].filter(t => t.textContent.trim());
    const boxes = words.map(t => t.getBoundingClientRect());
    boxes.forEach((a, i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
        faults.push(`${title}: ${words[i].textContent} is cut`);
      boxes.slice(i + 1).forEach((b, j) => {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 2) faults.push(`${title}: ${words[i].textContent} on ${words[i + 1 + j].textContent}`);
      });
    });
  }
  return faults;
}"""


def made(study: str, out: Path) -> Report:
    if study == "geva2021":
        return unembed.report(study, lettered("opt"), open_corpus(texts(12)), out, **test_geva2021.SMALL)
    if study == "geva2022":
        return unembed.report(study, lettered("gpt2"), texts(40), out, **test_geva2022.OPTIONS)
    options = {"sequences": 2, "tokens": 100, "windows": 1, "control": False}
    return unembed.report(study, lettered("gpt2"), texts(6), out, **options)


@pytest.mark.parametrize("study", ["geva2021", "geva2022", "elhage2021"])
def test_nothing_is_cut_and_the_summary_is_first(study: str, browser: Browser, tmp_path: Path) -> None:
    made(study, tmp_path / "r")
    for width in (1200, 500):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto((tmp_path / "r" / "report.html").as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate(_FAULTS) == [], width
        assert page.locator("section").first.locator("h2").inner_text() == "Summary"
        page.evaluate("document.querySelectorAll('table, figure svg').forEach(e => e.style.width = '1300px')")
        assert page.evaluate(_FAULTS) != [], "what is too wide is noticed"
        page.close()
