"""`unembed circuits`: every command, its forms, and numbers equal to the library's."""

import json

import pytest
from typer.testing import CliRunner

import unembed
from tests.cli.conftest import save_model
from unembed.cli.commands import app

SMALL = ["--sequences", "3", "--length", "8"]
COMMANDS = {
    "heads": ["heads", *SMALL],
    "head": ["head", "L1H2", "-k", "3"],
    "composition": ["composition", "--kind", "k", "-k", "4"],
    "skip-trigrams": ["skip-trigrams", "0", "1", "-m", "attn-2l", "-k", "4"],
    "expand": ["expand", "The first month of the"],
    "induction": ["induction", *SMALL],
    "stream": ["stream", "-m", "attn-2l", "-k", "3"],
    "offsets": ["offsets", "0", "5", "--to", "6"],
    "virtual-weights": ["virtual-weights", "L0H5", "-m", "attn-2l", "-k", "3"],
    "head at an offset": ["head", "1", "2", "-k", "3", "--offset", "4"],
    "look": ["look", "1", "5", "The first month of the first"],
    "scores": ["scores", "0", "5", "The first month of the first"],
    "virtual-head": ["virtual-head", "L0H5", "1.5", "--prompt", "The first month of the first", "-k", "3"],
    "direct-path": ["direct-path", "-m", "attn-2l", "--tokens", "5", "--max-tokens", "3000"],
    "term-importance": ["term-importance", "--max-tokens", "300"],
    "in-context": ["in-context", "--without", "L1H5", "--windows", "2", "--window", "64"],
}


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["circuits", *arguments], env={"COLUMNS": "150"})


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_prints_tables_and_json(name: str, tmp_path) -> None:
    page = tmp_path / "page.html"
    done = invoke(*COMMANDS[name], "--json", "--html", str(page))
    assert done.exit_code == 0, done.output
    view = json.loads(done.stdout)
    assert view["schema"] == "unembed.circuits/1" and view["provenance"]["model"] == "attn-2l" and view["tables"]
    assert all(table["rows"] for table in view["tables"].values())
    html = page.read_text()
    assert "<html" in html and ("<svg" in html or name in ("skip-trigrams", "direct-path", "virtual-weights"))
    shown = invoke(*COMMANDS[name], "--plain")
    assert shown.exit_code == 0 and "attn-2l · float32" in shown.stdout
    first = next(iter(view["tables"].values()))
    assert first["title"].split(" (")[0] in shown.stdout


def test_numbers_are_those_of_the_library() -> None:
    circuits = unembed.circuits(unembed.load("attn-2l"))
    tables = json.loads(invoke(*COMMANDS["heads"], "--json").stdout)["tables"]
    rows = tables["heads"]["rows"]
    scores, copying = circuits.head_scores(n_sequences=3, length=8), circuits.copying_scores()
    row = next(one for one in rows if (one["layer"], one["head"]) == (1, 3))
    assert row["induction"] == pytest.approx(float(scores.induction[1, 3]), rel=1e-5)
    by_weights = next(table["rows"] for table in tables.values() if "copying_score" in table["columns"])
    weights = next(one for one in by_weights if (one["layer"], one["head"]) == (1, 3))
    assert weights["copying_score"] == pytest.approx(float(copying[1, 3]), rel=1e-6)
    best = json.loads(invoke(*COMMANDS["composition"], "--json").stdout)["tables"]["k_composition"]["rows"][0]
    assert best["ratio"] == pytest.approx(float(circuits.composition("k").max()), rel=1e-6)
    terms = json.loads(invoke(*COMMANDS["expand"], "--token", " year", "--json").stdout)["tables"]
    expansion = circuits.expand("The first month of the")
    assert terms["expansion_terms"]["rows"][0]["path"] == expansion.top(" year", 1)[0][0]
    total = sum(r["contribution"] for r in terms["expansion_orders"]["rows"])
    token = circuits.lm.single_token(" year")
    assert total == pytest.approx(float(expansion.logits[token]), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["head", "0", "9"], "head 9"),
        (["head", "5", "0"], "layer 5"),
        (["expand", "a b", "-p", "99"], "position 99"),
        (["heads", "--length", "400"], "at most"),
        (["look", "0", "0", "a b", "-p", "9"], "position 9"),
        (["look", "0", "9", "a b"], "head 9"),
        (["scores", "0", "0", "a b", "-p", "-9"], "position -9"),
        (["virtual-head", "1.0", "0.0"], "later layer"),
        (["skip-trigrams", "0", "0", "-m", "attn-2l", "--source", "two words"], "two words"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and message in lines[0]


@pytest.mark.parametrize("arguments", [["virtual-head", "1.0", "L1M3"], ["in-context", "--without", "17"]])
def test_what_is_no_head_is_refused_before_the_model_is_opened(arguments: list[str]) -> None:
    done = invoke(*arguments, "-m", "no such model")
    assert done.exit_code == 2 and "is not a head, such as L0H3" in done.stderr


def test_heads_on_a_prompt_are_those_of_the_library() -> None:
    circuits, prompt = unembed.circuits(unembed.load("attn-2l")), "The first month of the first"
    rows = json.loads(invoke(*COMMANDS["look"], "-t", " month", "--json").stdout)["tables"]["look"]["rows"]
    effects = circuits.source_effects(prompt, 1, 5, -1, " month")
    assert [row["attention"] for row in rows] == pytest.approx(effects.attention.tolist(), rel=1e-5)
    assert [row["effect"] for row in rows] == pytest.approx(effects.effect.tolist(), rel=1e-4, abs=1e-6)
    rows = json.loads(invoke(*COMMANDS["scores"], "-p", "3", "--json").stdout)["tables"]["scores"]["rows"]
    terms = circuits.score_terms(prompt, 0, 5)
    assert len(rows) == 4
    assert [row["position_x_position"] for row in rows] == pytest.approx(
        terms.terms["position x position"][3, :4].tolist()
    )
    tables = json.loads(invoke(*COMMANDS["virtual-head"], "--json").stdout)["tables"]
    pair = circuits.virtual_head((0, 5), (1, 5))
    moved = pair.pattern(prompt)[0, -1].tolist()
    assert [row["attention"] for row in tables["virtual_pattern"]["rows"]] == pytest.approx(moved, rel=1e-5)
    assert tables["virtual_head"]["rows"][0]["score"] == pytest.approx(float(pair.ov_full().top(1).values), rel=1e-5)


def test_the_basis_is_that_of_the_report_where_none_is_named(tmp_path) -> None:
    folder = save_model(tmp_path / "tiny", "gpt2")
    both = [invoke("composition", "-m", str(folder), "--json", *more).stdout for more in ([], ["--basis", "folded"])]
    assert both[0] == both[1] and json.loads(both[0])["provenance"]["basis"] == "folded"
    assert json.loads(invoke(*COMMANDS["composition"], "--json").stdout)["provenance"]["basis"] == "raw"


def test_offsets_and_virtual_weights_are_those_of_the_library() -> None:
    circuits = unembed.circuits(unembed.load("attn-2l"))
    rows = json.loads(invoke(*COMMANDS["offsets"], "--json").stdout)["tables"]["offsets"]["rows"]
    assert [row["score"] for row in rows] == pytest.approx(circuits.scores_by_offset(0, 5, range(7)).tolist(), rel=1e-5)
    rows = json.loads(invoke(*COMMANDS["virtual-weights"], "--json").stdout)["tables"]["readers"]["rows"]
    best = circuits.readers_of("L0H5", 3)
    assert [(row["reader"], row["input"]) for row in rows] == [(w.reader, w.input) for w in best]
    assert [row["ratio"] for row in rows] == pytest.approx([w.ratio for w in best], rel=1e-5)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_word_of_a_table_is_cut_and_columns_that_do_not_fit_follow_below(width: int) -> None:
    shown = CliRunner().invoke(app, ["circuits", *COMMANDS["scores"]], env={"COLUMNS": str(width)}).stdout
    lines = shown.splitlines()
    assert "…" not in shown
    assert all(len(line) <= width and line == line.rstrip() for line in lines)
    names = json.loads(invoke(*COMMANDS["scores"], "--json").stdout)["tables"]["scores"]["columns"]
    words = set(" ".join(names).replace("_", " ").split())
    assert words <= set(shown.split())


def test_the_paths_of_an_expansion_are_its_csv() -> None:
    lm = unembed.load("attn-2l")
    found = unembed.circuits(lm).expand("The first month of the", 2)
    lines = invoke("expand", "The first month of the", "-k", "500", "--csv").stdout.splitlines()
    assert lines[0] == "path,order,contribution"
    assert sorted(line.split(",")[0] for line in lines[1:]) == sorted(found.labels)


def test_a_heads_eigenvalues_are_drawn() -> None:
    lm = unembed.load("attn-2l")
    shown = CliRunner().invoke(app, ["circuits", "head", "1", "5", "-k", "3"], env={"COLUMNS": "80"}).stdout
    plot = shown.split("Head L1H5: copying score")[1].split("to the right:")[0].splitlines()[1:]
    points = [(line, column) for line, text in enumerate(plot) for column, c in enumerate(text) if c in "·•●"]
    assert 1 < len(points) <= lm.d_head
    # This head copies: its eigenvalues are positive, so their points lie right of the vertical axis.
    middle = next(text.index("┼") for text in plot if "┼" in text)
    assert sum(column > middle for _, column in points) > len(points) / 2


def test_a_head_is_written_as_elsewhere() -> None:
    prompt = "The first month of the first"
    for command, rest in (("look", [prompt]), ("scores", [prompt]), ("head", ["-k", "3"]), ("offsets", ["--to", "4"])):
        first, *others = (invoke(command, *head, *rest).output for head in (["L1H5"], ["1.5"], ["1", "5"]))
        assert "Head L1H5" in first or "head L1H5" in first
        assert others == [first, first]


def test_a_context_that_is_too_short_for_the_usual_length_shortens_it(gpt2_folder) -> None:
    def rows(*options: str) -> list[dict[str, float]]:
        given = ("heads", "--model", str(gpt2_folder), "--sequences", "2", "--json", *options)
        done = invoke(*given)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["tables"]["heads"]["rows"]

    context = unembed.load(gpt2_folder).n_ctx
    assert context is not None and context < 2 * 64
    assert rows() == rows("--length", str(context // 2))
