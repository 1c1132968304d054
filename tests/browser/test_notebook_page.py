"""What a notebook is given works alone: in a file without a server, and as a widget's module."""

from __future__ import annotations

import json

from playwright.sync_api import expect

from unembed.notebook import memory_card, pattern_card
from unembed.notebook.drawings import card_of
from unembed.notebook.islands import script, style
from unembed.notebook.widgets import _ADAPTER


def test_an_output_draws_itself_without_a_server(browser, lm, tmp_path):
    trace = lm.trace("The first </script> month")
    file = tmp_path / "output.html"
    file.write_text(
        "<!doctype html><meta charset=utf-8><title>x</title>"
        + "".join(
            one._repr_html_()
            for one in (trace, trace.attribution(" the"), memory_card(lm, 3, 5, top=6), pattern_card(trace, 2, 3))
        )
    )
    context = browser.new_context()
    page = context.new_page()
    complaints = []
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith("file:") else None)
    page.goto(file.as_uri())
    cells = page.get_by_role("gridcell")
    expect(cells).to_have_count(lm.n_layers * len(trace))
    page.get_by_role("grid").focus()
    page.keyboard.press("Control+End")
    expect(page.locator(".bars li")).to_have_count(len(trace.attribution(" the")) + 12)
    n = len(trace)
    expect(page.locator(".heatmap rect")).to_have_count(n * (n + 1) // 2)
    assert not complaints
    context.close()


def test_a_widget_writes_its_selection_back_and_leaves(browser, lm):
    trace = lm.trace("The first month")
    context = browser.new_context()
    page = context.new_page()
    page.set_content(f"<style>{style()}</style><div id=here></div>")
    data = json.dumps(card_of(trace).data)
    found = page.evaluate(
        """async ([source, data]) => {
          const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
          const state = { data: JSON.parse(data), selection: {} };
          const model = { get: (k) => state[k], set: (k, v) => (state[k] = v), save_changes() {}, on() {}, off() {} };
          const here = document.getElementById("here");
          const leave = module.default.render({ model, el: here });
          here.querySelector("[role=gridcell]").click();
          const selection = state.selection;
          leave();
          return [selection, here.querySelectorAll("[role=gridcell]").length];
        }""",
        [script() + _ADAPTER, data],
    )
    assert set(found[0]) == {"layer", "position"} and found[1] == 0
    context.close()
