"""Results in notebooks: tables that can be read without a script, a script that works, widgets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

import unembed
from unembed.errors import InvalidInput
from unembed.notebook import Card, circuit_card, heads_card, islands, memory_card, pattern_card
from unembed.results import format_signed

PROMPT = "The first </script> of the year is"


@pytest.fixture(scope="module")
def trace():
    return unembed.load().trace(PROMPT)


def test_a_trace_is_a_table_first(trace):
    page = trace._repr_html_()
    table = page[: page.index("<style>")]
    assert table.count("<tr>") == 1 + trace.lm.n_layers
    first = trace.readings().tokens[-1][-1][0].strip()
    assert first in table and "http" not in table
    assert "https://" not in page and "http://www.w3.org/2000/svg" in page


def test_no_text_ends_the_script(trace):
    page = trace._repr_html_()
    assert page.count("</script>") == 2
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["tokens"] == [
        {"position": i, "id": int(trace.tokens[i]), "token": t} for i, t in enumerate(trace.token_strings)
    ]


def test_an_attribution_shows_its_sum(trace):
    attribution = trace.attribution(" the")
    page = attribution._repr_html_()
    assert f"sum {format_signed(attribution.total)}" in page[page.index("<style>") :]
    assert page[: page.index("<style>")].count("<tr>") == 1 + len(attribution)


def test_what_is_too_large_stays_a_table(trace, monkeypatch):
    monkeypatch.setattr("unembed.notebook.drawings.MAX_DATA", 10)
    page = trace._repr_html_()
    assert "<table>" in page and "<script" not in page and "unembed serve" in page


def test_a_widget_holds_the_data_and_the_selection(trace):
    pytest.importorskip("anywidget")
    widget = trace.widget()
    assert widget.data["schema"] == "unembed.emergence/2" and widget.selection == {}
    widget.selection = {"layer": 2, "position": 3}
    assert "export default" in widget._esm and not re.search(r"^import ", widget._esm, re.MULTILINE)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_is_valid_and_marks_tokens_like_python(tmp_path):
    from unembed.results import visible

    texts = [
        " the",
        "\n\t\x7f\x00",
        "\u200b\u202e\ufeff",
        "·⏎⟨",
        "\u0301a",
        "e\u0301",
        "שלום",
        "🙂\ufe0f",
        "\u2800\u3164",
        "a\u00a0b",
        "",
    ]
    file = tmp_path / "islands.mjs"
    file.write_text(
        islands.script()
        + f'console.log(JSON.stringify({json.dumps(texts)}.map($load("js/islands/tokens.js").visible)));\n'
    )
    found = subprocess.run(["node", file], capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(found) == [visible(text) for text in texts]


def test_a_memory_a_pattern_and_scores_have_cards(trace):
    lm = trace.lm
    card = memory_card(lm, 3, 5, top=6)
    assert card.data["promoted"][0]["token"] == lm.values.top_tokens(3, 5, 1)[0]
    assert card.table.count("<tr>") == 1 + 6
    pattern = pattern_card(trace, 2, 3)
    assert [sum(row) for row in pattern.data["weights"]] == pytest.approx([1.0] * len(trace), abs=1e-5)
    found = unembed.circuits(lm).head_scores(n_sequences=2, length=8)
    scores = heads_card(found)
    assert scores.data["scores"] == found.induction.tolist()
    for one in (card, pattern, scores):
        page = one._repr_html_()
        assert page.startswith("<div") and "<table>" in page and "http" not in page.replace("http://www.w3.org/", "")
    with pytest.raises(InvalidInput, match="not one of previous_token"):
        heads_card(found, "beauty")


def test_a_circuit_is_drawn_with_its_test_once_it_has_its_model(trace, tmp_path):
    graph = trace.lm.circuit("The dogs", " are", " is", "The dog", max_nodes=10)
    page = graph._repr_html_()
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert data is not None
    drawn = json.loads(data[1])
    assert drawn["schema"] == "unembed.flow/1" and drawn["test"][0].startswith("Test ")
    assert drawn["nodes"][0]["name"] == graph.nodes["name"][0] and drawn["nodes"][0]["removed"]
    assert page.index("<table") < page.index("<style>")
    assert json.loads(json.dumps(circuit_card(graph).data)) == drawn
    graph.save(tmp_path / "dogs.safetensors")
    assert "<script" not in unembed.open_result(tmp_path / "dogs.safetensors")._repr_html_()


def test_a_drawing_on_a_page_is_apart_from_the_pages_style(trace):
    page = Card({"schema": "unembed.flow/1", "text": "</script><b>"}, "").on_page()
    assert page.count("</script>") == 2 and "attachShadow" in page and "http://www.w3.org/2000/svg" in page
