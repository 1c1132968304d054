"""Every command on a tiny model: the numbers are the library's, the forms agree, the output fits."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from typer.testing import Result

import unembed as package
from tests.cli.conftest import PROMPT, save_model
from unembed.results import Provenance

Run = Callable[..., Result]


def shown(result: Result) -> str:
    """What stands on stdout of a command that succeeded."""
    assert result.exit_code == 0, result.stderr
    return result.stdout


def as_json(result: Result) -> dict[str, Any]:
    return json.loads(shown(result))


def test_trace_shows_every_layer_and_proves_its_attribution(unembed: Run, gpt2_folder: Path) -> None:
    text = shown(unembed("trace", PROMPT, "--model", gpt2_folder))
    assert "The ·first ·month ·of ·the ·year ·is" in text
    assert "Memories behind" in text
    assert "sum of contributions" in text
    assert "relative error" in text


def test_json_holds_the_numbers_of_the_library(unembed: Run, gpt2_folder: Path) -> None:
    view = as_json(unembed("trace", PROMPT, "--model", gpt2_folder, "--json", "--memories", 3))
    lm = package.load(gpt2_folder)
    trace = lm.trace(PROMPT)
    readings = trace.readings("resid_post", 10)
    assert view["prediction"][0]["id"] == int(trace.prediction[-1])
    for layer in view["layers"]:
        n = layer["layer"]
        assert [c["id"] for c in layer["after"]] == readings.ids[n, -1, :5].tolist()
        # One position is read alone, in a product of another shape: equal up to rounding.
        expected = readings.probabilities[n, -1, :5].tolist()
        assert [c["probability"] for c in layer["after"]] == pytest.approx(expected, rel=1e-6)
        assert layer["rank_after"] == int(trace.ranks_of(int(trace.prediction[-1]))[n, -1])
    rows = trace.memory_effects(top=3).rows
    assert [(u["layer"], u["index"], u["coefficient"], u["score"]) for u in view["memories"]["rows"]] == [
        (r.layer, r.index, r.coefficient, r.score) for r in rows
    ]
    attribution = view["attributions"][0]
    assert attribution["total"] == pytest.approx(sum(row["contribution"] for row in attribution["rows"]), rel=1e-6)
    lead = view["prediction"][0]["logit"] - view["prediction"][1]["logit"]
    assert attribution["logit"] == pytest.approx(lead, rel=1e-4)
    assert view["against"]["id"] == view["prediction"][1]["id"]


def test_json_schema_is_stable(unembed: Run, gpt2_folder: Path) -> None:
    view = as_json(unembed("trace", PROMPT, "--model", gpt2_folder, "--json"))
    assert view["schema"] == "unembed.trace/3"
    assert list(view) == [
        *("schema", "provenance", "model", "sizes", "prompt", "edits", "tokens", "position", "basis", "show_unlearned"),
        *("prediction", "without_edits", "target", "against", "layers", "grid", "attributions", "findings"),
        *("moves", "described", "memories", "heads", "hidden", "removed"),
    ]
    assert list(view["layers"][0]) == [
        *("layer", "before", "middle", "after", "rank_before", "rank_middle", "rank_after", "events", "sub_updates"),
        *("probability_before", "probability_middle", "probability_after", "middle_from", "after_from", "heads"),
        "mixer",
    ]
    assert Provenance.from_dict(view["provenance"]).notes == {"show_unlearned": False}


def test_csv_has_a_row_for_every_layer_position_and_rank(unembed: Run, gpt2_folder: Path) -> None:
    text = shown(unembed("trace", PROMPT, "--model", gpt2_folder, "--csv", "--top", 3, "--point", "resid_pre"))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 2 * 7 * 3
    assert list(rows[0]) == ["layer", "position", "rank", "id", "token", "probability", "logit"]
    expected = package.load(gpt2_folder).trace(PROMPT).readings("resid_pre", 10).ids[1, 6, 2]
    assert int(rows[-1]["id"]) == int(expected)


def test_layer_position_and_top_choose_what_is_shown(unembed: Run, gpt2_folder: Path) -> None:
    arguments = ("--layer", 1, "--position", 2, "--top", 4, "--memories", 7, "--json")
    view = as_json(unembed("trace", PROMPT, "--model", gpt2_folder, *arguments))
    assert [layer["layer"] for layer in view["layers"]] == [1]
    assert len(view["memories"]["rows"]) == 7
    assert {row["layer"] for row in view["memories"]["rows"]} == {1}
    assert view["position"] == 2
    assert all(len(cell) == 4 for cell in view["grid"]["rows"][0])
    assert all(event["position"] == 2 for event in view["layers"][0]["events"])


def test_a_negative_position_counts_from_the_end(unembed: Run, gpt2_folder: Path) -> None:
    from_end = as_json(unembed("trace", PROMPT, "--model", gpt2_folder, "--position", -2, "--json"))
    from_start = as_json(unembed("trace", PROMPT, "--model", gpt2_folder, "--position", 5, "--json"))
    assert from_end == from_start


def assert_same_prediction(found: list[dict[str, object]], expected: list[dict[str, object]]) -> None:
    """The logits of a prediction may be rounded in another order, where more readings share its product."""
    assert [one["token"] for one in found] == [one["token"] for one in expected]
    for name in ("probability", "logit"):
        assert [one[name] for one in found] == pytest.approx([one[name] for one in expected], rel=2e-6)


@pytest.mark.parametrize("basis", ["raw", "frozen"])
def test_the_basis_changes_readings_and_not_the_prediction(unembed: Run, gpt2_folder: Path, basis: str) -> None:
    final = as_json(unembed("trace", PROMPT, "--model", gpt2_folder, "--json"))
    other = as_json(unembed("trace", PROMPT, "--model", gpt2_folder, "--json", "--basis", basis))
    assert other["provenance"]["basis"] == basis
    assert_same_prediction(other["prediction"], final["prediction"])
    assert other["layers"][0]["after"] != final["layers"][0]["after"]


def test_an_edit_changes_the_prediction_and_both_are_shown(unembed: Run, gpt2_folder: Path) -> None:
    plain = as_json(unembed("trace", PROMPT, "--model", gpt2_folder, "--json"))
    arguments = ("--set", "1.3=40", "--set", "0.2=-1.5e1")
    edited = as_json(unembed("trace", PROMPT, "--model", gpt2_folder, *arguments, "--json"))
    assert_same_prediction(edited["without_edits"], plain["prediction"])
    assert edited["prediction"] != plain["prediction"]
    assert edited["edits"] == ["memory L1M3 set to 40", "memory L0M2 set to −15"]
    assert [e["value"] for e in edited["provenance"]["notes"]["edits"]] == [40.0, -15.0]
    text = shown(unembed("trace", PROMPT, "--model", gpt2_folder, *arguments))
    assert "memory L1M3 set to 40" in text


def test_hiding_unlearned_tokens_is_one_switch_and_is_in_the_provenance(unembed: Run, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny", n_words=60)  # tokens 60 to 96 have no text and count as never learned
    hidden = as_json(unembed("trace", PROMPT, "--model", folder, "--json"))
    open_ = as_json(unembed("trace", PROMPT, "--model", folder, "--show-unlearned", "--json"))
    ids = {
        id_: [c["id"] for layer in view["grid"]["rows"] for cell in layer for c in cell]
        for id_, view in (("hidden", hidden), ("open", open_))
    }
    # What the model predicts at a position, and its runner-up, are listed whatever they are.
    run = package.load(folder).run(PROMPT)
    predicted = set(run.logits[0].topk(2).indices.flatten().tolist())
    assert {id_ for id_ in ids["hidden"] if id_ >= 60} <= predicted
    assert {id_ for id_ in ids["open"] if id_ >= 60} - predicted
    assert hidden["provenance"]["notes"]["show_unlearned"] is False


def test_explain_splits_the_logit_three_ways(unembed: Run, gpt2_folder: Path) -> None:
    view = as_json(unembed("explain", PROMPT, "--token", " January", "--model", gpt2_folder, "--json"))
    assert [attribution["by"] for attribution in view["attributions"]] == ["component", "head", "memory"]
    assert len({attribution["logit"] for attribution in view["attributions"]}) == 1
    for attribution in view["attributions"]:
        shown_rows = attribution["rows"] + attribution["always_on"]
        shares = sum(row["contribution"] for row in shown_rows) + attribution["others_contribution"]
        assert shares == pytest.approx(attribution["total"], rel=1e-6)
        assert attribution["error"] < 1e-4


def test_explain_against_is_the_difference_of_two_logits(unembed: Run, gpt2_folder: Path) -> None:
    arguments = ("explain", PROMPT, "--token", " January", "--model", gpt2_folder, "--json", "--by", "component")
    one = as_json(unembed(*arguments, "--against", "none"))["attributions"][0]
    both = as_json(unembed(*arguments, "--against", " year"))["attributions"][0]
    other = as_json(unembed("explain", PROMPT, "--token", " year", *arguments[4:], "--against", "none"))[
        "attributions"
    ][0]
    assert both["logit"] == pytest.approx(one["logit"] - other["logit"], rel=1e-4, abs=1e-5)
    assert both["against"] == " year"


def test_explain_by_source_names_positions(unembed: Run, gpt2_folder: Path) -> None:
    arguments = ("explain", PROMPT, "--token", " January", "--model", gpt2_folder, "--by", "source", "--csv")
    rows = list(csv.DictReader(io.StringIO(shown(unembed(*arguments)))))
    assert {row["by"] for row in rows} == {"source"}
    assert any(row["source"] for row in rows)


def test_value_lists_both_ends(unembed: Run, gpt2_folder: Path) -> None:
    table = as_json(unembed("value", 1, 5, "--model", gpt2_folder, "--top", 4, "--json"))
    values = package.load(gpt2_folder).values
    assert [row["promoted_token"] for row in table["rows"]] == values.top_tokens(1, 5, 4)
    assert [row["suppressed_token"] for row in table["rows"]] == values.top_tokens(1, 5, 4, bottom=True)
    card = unembed("value", 1, 5, "--model", gpt2_folder)
    assert "Memory L1M5 of tiny" in shown(card)
    assert f"unembed index build --model {gpt2_folder} finds the text" in " ".join(card.output.split())


def test_value_through_the_final_norm_lists_both_ends(unembed: Run, gpt2_folder: Path) -> None:
    arguments = ("value", "L1M5", "--model", gpt2_folder, "--top", 4, "--basis", "final")
    table = as_json(unembed(*arguments, "--json"))
    lm = package.load(gpt2_folder)
    hf = lm.hf
    with torch.no_grad():  # the model's own norm and readout of the row of the second FFN matrix
        scores = hf.lm_head(hf.transformer.ln_f(hf.transformer.h[1].mlp.c_proj.weight[5]))
    listed = scores.masked_fill(lm.unlisted, -torch.inf)
    assert [row["promoted_id"] for row in table["rows"]] == listed.topk(4).indices.tolist()
    listed = scores.masked_fill(lm.unlisted, torch.inf)
    assert [row["suppressed_id"] for row in table["rows"]] == listed.topk(4, largest=False).indices.tolist()
    card = shown(unembed(*arguments))
    assert "through the final norm" in card and "promotes" in card and "suppresses" in card


def test_a_memory_is_named_in_two_ways(unembed: Run, gpt2_folder: Path) -> None:
    named = [("L1M5",), ("1.5",), ("1", "5")]
    shown_by = [shown(unembed("value", *words, "--model", gpt2_folder, "--csv")) for words in named]
    assert shown_by[0] == shown_by[1] == shown_by[2]
    for words in (("1",), ("x", "5"), ("L1M5", "5")):
        assert unembed("value", *words, "--model", gpt2_folder).exit_code == 2


def test_the_card_of_a_memory_shows_its_description_and_triggers(
    unembed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unembed import Index, load

    lm = load()
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    bare = shown(unembed("value", "L7M985", "--top", 5))
    assert "prepositions" in bare and "Triggers" not in bare
    index = Index.build(lm, ["The lake is 15 km wide.", "He was born on 16 August."], tmp_path / "mine.index")
    card = shown(unembed("value", "L7M985", "--top", 5, "--index", index.path, "--plain"))
    assert "Triggers of key L7M985" in card
    for row in list(index.triggers(7, 985, 5).rows()):
        assert f"[{row['token'].replace(' ', '·')}]" in card
    for command in (("value", "L7M985", "--index", index.path), ("index", "triggers", index.path, "L7M985")):
        link = f"In the explorer: unembed serve --index {index.path} --view 'memory?memory=L7M985'"
        assert unembed(*command).stderr.splitlines()[-1] == link


def test_a_card_from_an_index_is_the_models_and_opens_no_model(
    unembed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("The lake is 15 km wide. He was born on 16 August.\n")
    forms = (("--json",), ("--plain",))
    from_weights = [shown(unembed("value", "L7M985", *form)) for form in forms]
    shown(unembed("index", "build", "--corpus", tmp_path / "text.txt", "--top-tokens", 12))
    with monkeypatch.context() as patched:
        patched.setattr("unembed.cli.model_loading.opened", None)
        from_index = [shown(unembed("value", "L7M985", *form)) for form in forms]
        for weights in (("--top", 13), ("--basis", "final"), ("--show-unlearned",), ("--dtype", "bfloat16")):
            assert unembed("value", "L7M985", *weights).exit_code != 0
    ours, theirs = (json.loads(text[0]) for text in (from_index, from_weights))
    assert ours["provenance"] == theirs["provenance"] and ours["title"] == theirs["title"]
    for row, other in zip(ours["rows"], theirs["rows"], strict=True):
        assert row == pytest.approx(other, abs=1e-5)
    card = from_weights[1].split("\n\n")[0]
    assert "prepositions" in card
    assert from_index[1].startswith(card) and "Triggers of key L7M985" in from_index[1]


def test_an_index_of_other_weights_is_not_read_for_a_model(
    unembed: Run, gpt2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("The lake is 15 km wide.\n")
    arguments = ("index", "build", "--corpus", tmp_path / "text.txt", "--out", tmp_path / "index")
    shown(unembed(*arguments, "--model", gpt2_folder))
    failed = unembed("value", "L1M5", "--index", tmp_path / "index")
    assert failed.exit_code == 1 and "was not built for wren" in failed.stderr
    assert "of tiny" in shown(unembed("value", "L1M5", "--index", tmp_path / "index", "--model", gpt2_folder))


def test_three_commands_to_try_next_are_about_the_memory_that_matters_most(unembed: Run, gpt2_folder: Path) -> None:
    prompt = "The lake is 15"
    rows = as_json(unembed("trace", prompt, "--json"))["memories"]["rows"]
    best = min((row for row in rows if row["score"] > 0 and row["without"] is not None), key=lambda row: row["without"])
    name = f"L{best['layer']}M{best['index']}"
    lines = shown(unembed("trace", prompt, "--next")).split("Try next\n")[1].splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        f"unembed value {name}",
        f"unembed trace '{prompt}' --set {name}=0",
        f"unembed serve '{prompt}'",
    ]
    other = shown(unembed("trace", PROMPT, "--model", gpt2_folder, "--next", "--plain"))
    at_80 = shown(unembed("trace", prompt, "--next")).split("Try next\n")[1]
    assert f"unembed trace '{prompt}' --set {name}=0  " in at_80
    assert f"\nunembed serve '{PROMPT}' --model {gpt2_folder}\n" in other  # one line, though it is too wide
    assert "Try next" not in shown(unembed("trace", prompt))


def test_models_lists_what_ships(unembed: Run) -> None:
    names = [model["name"] for model in as_json(unembed("models", "--json"))["models"]]
    assert names == ["wren", "attn-0l", "attn-1l", "attn-2l", "smollm2"]
    assert "attn-2l" in shown(unembed("models"))


@pytest.mark.parametrize("family", ["gpt_neox", "attention-only", "mixtral", "gemma2"])
def test_models_without_some_part_are_traced_without_it(unembed: Run, tmp_path: Path, family: str) -> None:
    folder = save_model(tmp_path / "tiny", family)
    text = shown(unembed("trace", PROMPT, "--model", folder))
    assert ("after attention" in text) == (family in ("mixtral", "gemma2"))
    assert ("Memories behind" in text) == (family in ("gpt_neox", "gemma2", "mixtral"))
    assert "relative error" in shown(unembed("explain", PROMPT, "-t", " January", "--model", folder))


def test_the_page_is_self_contained(unembed: Run, gpt2_folder: Path, tmp_path: Path) -> None:
    result = unembed("trace", PROMPT, "--model", gpt2_folder, "--html", tmp_path / "trace.html")
    assert shown(result) == ""
    assert f"wrote {tmp_path / 'trace.html'}" in result.stderr
    page = (tmp_path / "trace.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "://" not in page
    assert "Memories behind" in page


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160, 300])
def test_output_fits_the_terminal_from_60_to_160_columns(
    unembed: Run, gpt2_folder: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for command in (("trace", PROMPT), ("explain", PROMPT, "-t", " January")):
        lines = shown(unembed(*command, "--model", gpt2_folder)).splitlines()
        assert max(cell_len(line) for line in lines) <= max(60, min(160, width))


def test_what_is_no_terminal_gets_no_colour(unembed: Run, gpt2_folder: Path) -> None:
    assert "\x1b" not in shown(unembed("trace", PROMPT, "--model", gpt2_folder))


def test_plain_has_neither_bars_nor_signs(unembed: Run, gpt2_folder: Path) -> None:
    text = shown(unembed("trace", PROMPT, "--model", gpt2_folder, "--plain"))
    assert not set(text) & set("█▌▐│◆✕")
    assert "sum of contributions" in text


def test_the_seed_is_in_the_provenance(unembed: Run, gpt2_folder: Path) -> None:
    assert as_json(unembed("trace", PROMPT, "--model", gpt2_folder, "--seed", 7, "--json"))["provenance"]["seed"] == 7


def test_the_version_is_printed(unembed: Run) -> None:
    assert shown(unembed("--version")) == f"unembed {package.__version__}\n"
