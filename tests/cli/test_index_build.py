"""`unembed index` on a tiny model: the forms agree with the library, costs come first, faults are one line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len
from typer.testing import Result

from unembed.index import Index, IndexSettings

Run = Callable[..., Result]
TEXT = (
    "The first month of the year is January . The year is the first of the month .\n"
    "January is the month of the year . The first of the month is the first .\n"
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "small.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def folder(gpt2_folder: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from unembed.language_model import load

    path = tmp_path_factory.mktemp("index") / "built"
    Index.build(load(gpt2_folder), corpus, path, top=5, settings=IndexSettings(top_tokens=12))
    return path


def shown(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_bytes_of_a_character_are_shown_as_the_character() -> None:
    from unembed.cli.output import show
    from unembed.cli.passages import draw_passages
    from unembed.results import Provenance, Table

    row = {"coefficient": 2.0, "prefix": "the city \\xe5\\x8c", "token": "\\x97", "next_token": "\\xe4"}
    table = Table("Triggers", {name: [value] for name, value in row.items()}, Provenance("m", None, "float32"))
    with redirect_stdout(io.StringIO()) as printed:
        show(lambda width: draw_passages(table, width, plain=True), plain=True)
    assert "the city [北]" in printed.getvalue().replace("  ", " ").replace("city[", "city [")
    assert "\\xe5" not in printed.getvalue()


def firing_key(folder: Path) -> tuple[int, int]:
    index = Index.open(folder)
    return next((1, i) for i in range(192) if len(index.triggers(1, i)) == 5)


def test_build_prints_the_cost_first_and_then_what_it_built(
    unembed: Run, gpt2_folder: Path, corpus: Path, tmp_path: Path
) -> None:
    arguments = ("index", "build", "--corpus", corpus, "--out", tmp_path / "i", "--model", gpt2_folder, "--top", 3)
    dry = unembed(*arguments, "--dry-run", "--json")
    cost = json.loads(shown(dry))
    assert not (tmp_path / "i").exists()
    assert cost["is_exact"] and cost["keys"] == 384
    done = unembed(*arguments, "--json")
    status = json.loads(shown(done))
    assert f"384 keys over {cost['tokens']:,} tokens" in done.stderr
    assert status["facts"]["tokens"] == cost["tokens"]
    assert status["facts"]["segments"] == cost["segments"]
    assert status["state"] == "complete"
    assert status["bytes"] == sum(entry.size for entry in Index.open(tmp_path / "i").manifest.files)
    assert "complete" in shown(unembed("index", "status", tmp_path / "i"))


def test_build_of_one_layer_costs_and_holds_that_layer_only(
    unembed: Run, gpt2_folder: Path, corpus: Path, folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "part"
    arguments = ("index", "build", "--corpus", corpus, "--out", place, "--model", gpt2_folder, "--top", 5)
    cost = json.loads(shown(unembed(*arguments, "--layer", 1, "--dry-run", "--json")))
    assert cost["keys"] == 192
    shown(unembed(*arguments, "--layer", 1))
    part, whole = Index.open(place), Index.open(folder)
    assert part.manifest.layers == (0, 192)
    assert part.triggers(1, 7).to_dict()["columns"] == whole.triggers(1, 7).to_dict()["columns"]
    every = unembed(*arguments)
    assert every.exit_code == 1 and "another" in every.stderr
    beyond = unembed(*arguments[:4], "--out", tmp_path / "none", *arguments[6:], "--layer", 5)
    assert beyond.exit_code == 1 and "layer 5" in beyond.stderr


def test_triggers_mark_the_last_token(unembed: Run, folder: Path) -> None:
    layer, key = firing_key(folder)
    rows = list(Index.open(folder).triggers(layer, key).rows())
    done = unembed("index", "triggers", folder, layer, key, "--plain")
    text = shown(done)
    assert "In the explorer" not in done.stderr  # the index names its model, "tiny", and not the folder of it
    lines = [line for line in text.splitlines() if line.lstrip().startswith(("+", "−"))]
    assert len(lines) == 5
    for line, row in zip(lines, rows, strict=True):
        assert line.lstrip().startswith(f"{row['coefficient']:+.2f}")
        assert f"[{row['token'].replace(' ', '·')}]" in line
        assert line.rstrip().endswith("end" if row["next_token"] is None else row["next_token"].replace(" ", "·"))
    table = json.loads(shown(unembed("index", "triggers", folder, layer, key, "--json")))
    assert table["rows"] == rows
    found = list(csv.DictReader(io.StringIO(shown(unembed("index", "triggers", folder, layer, key, "--csv")))))
    assert [row["prefix"] for row in found] == [row["prefix"] for row in rows]


@pytest.mark.parametrize("width", [60, 100, 160])
def test_passages_fit_every_width(unembed: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    layer, key = firing_key(folder)
    for arguments in (("triggers", folder, layer, key), ("search", folder, "year")):
        for line in shown(unembed("index", *arguments)).splitlines():
            assert cell_len(line.rstrip()) <= width


def test_each_question_in_json_is_the_librarys_answer(unembed: Run, folder: Path, gpt2_folder: Path) -> None:
    from unembed.language_model import load

    index = Index.open(folder, load(gpt2_folder))
    for arguments, expected in (
        (("search", folder, "first month"), index.search("first month")),
        (("promoting", folder, " January"), index.promoting(" January")),
        (("firing", folder, "The year", "--model", gpt2_folder), index.firing_on("The year")),
        (("similar", folder, 0, 3, "--among", "keys", "--model", gpt2_folder), index.similar(0, 3, among="keys")),
        (("sql", folder, "SELECT count(*) AS n FROM triggers"), index.sql("SELECT count(*) AS n FROM triggers")),
    ):
        assert json.loads(shown(unembed("index", *arguments, "--json"))) == json.loads(expected.to_json())


def test_exports_hold_every_trigger(unembed: Run, folder: Path, tmp_path: Path) -> None:
    index = Index.open(folder)
    n = int((index.trigger_lists["positive"][1] >= 0).sum())
    for ending in ("parquet", "jsonl", "csv"):
        path = tmp_path / f"out.{ending}"
        assert json.loads(shown(unembed("index", "export", folder, path, "--json")))["rows"] == n
        if ending == "parquet":
            rows: list[Any] = pq.read_table(path).to_pylist()
        elif ending == "jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        else:
            rows = list(csv.DictReader(io.StringIO(path.read_text())))
        assert len(rows) == n
        layer, key = firing_key(folder)
        mine = [row for row in rows if (int(row["layer"]), int(row["index"])) == (layer, key)]
        assert [row["prefix"] + row["token"] for row in mine] == [
            row["prefix"] + row["token"] for row in index.triggers(layer, key).rows()
        ]
    assert "wrote" in unembed("index", "export", folder, tmp_path / "l.csv", "--layer", 0).stderr


def test_faults_are_one_line(unembed: Run, folder: Path, tmp_path: Path, gpt2_folder: Path, corpus: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "values/score.npy").write_bytes(b"short")
    verified = unembed("index", "verify", copy)
    assert verified.exit_code == 1
    assert "values/score.npy  5 bytes instead of" in verified.stdout and "1 of " in verified.stdout
    assert unembed("index", "verify", folder).exit_code == 0
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 noir\n")
    build = ("index", "build", "--model", gpt2_folder, "--out")
    for arguments, says in (
        (("index", "status", tmp_path / "nowhere"), "no index at"),
        (("index", "triggers", folder, 9, 0), "layer 9"),
        (("index", "promoting", folder, "Quetzal"), "is not one token"),
        (("index", "sql", folder, "DROP TABLE triggers"), "a DROP statement"),
        (("index", "sql", folder, "INSERT INTO labels VALUES (1)"), "an INSERT statement"),
        (("index", "sql", folder, "SELECT x FROM nowhere"), "the query failed"),
        (("index", "export", folder, tmp_path / "out.xlsx"), "export as 'xlsx'"),
        (("index", "firing", folder, "a", "--model", "attn-2l"), "was not built for attn-2l"),
        ((*build, folder, "--corpus", corpus, "--top", 9), "another top"),
        ((*build, tmp_path, "--corpus", corpus), "contains other files"),
        ((*build, tmp_path / "x", "--corpus", tmp_path / "empty.txt"), "no text"),
        ((*build, tmp_path / "x", "--corpus", tmp_path / "gone.txt"), "gone.txt"),
        ((*build, tmp_path / "x", "--corpus", tmp_path / "latin.txt"), "byte 3: 0xe9 is not UTF-8 here. "),
        ((*build, tmp_path / "x", "--corpus", tmp_path / "latin.txt"), "--errors replace"),
    ):
        result = unembed(*arguments)
        assert result.exit_code == 1, (arguments, result.stdout)
        assert says in result.stderr.splitlines()[-1]
        assert result.stdout == ""
    assert unembed("index", "triggers", folder, 0, 0, "--json", "--csv").exit_code == 2


def test_a_trace_shows_the_top_trigger_of_each_memory(
    unembed: Run, folder: Path, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    arguments = ("trace", "The year is", "--model", gpt2_folder, "--memories", 200)
    assert "fires most on" not in shown(unembed(*arguments))
    view = json.loads(shown(unembed(*arguments, "--index", folder, "--json")))
    index, seen = Index.open(folder), 0
    for memory in view["memories"]["rows"]:
        best = list(index.triggers(memory["layer"], memory["index"], 1, context=24).rows())
        if memory["coefficient"] < 0 or not best:
            assert memory["trigger"] is None
        else:
            seen += 1
            assert memory["trigger"] == {name: best[0][name] for name in memory["trigger"]}
    assert seen > 5
    for width in (60, 80, 100, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        text = shown(unembed(*arguments, "--index", folder))
        assert "fires most on" in text or width == 60  # where the heading is cut
        assert [line for line in text.splitlines() if cell_len(line.rstrip()) > width] == []
    page = tmp_path / "page.html"
    assert unembed(*arguments, "--index", folder, "--html", page).exit_code == 0
    assert page.read_text().count("<mark>") == seen


def test_a_ready_index_is_found_only_by_its_own_model(
    unembed: Run, gpt2_folder: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    arguments = ("trace", "The year is", "--model", gpt2_folder)
    assert unembed("index", "build", "--corpus", corpus, "--model", gpt2_folder).exit_code == 0
    assert "fires most on" in shown(unembed(*arguments))
    import shutil

    changed = Path(shutil.copytree(gpt2_folder, tmp_path / gpt2_folder.name))
    weights = load_file(changed / "model.safetensors")
    weights["transformer.h.0.mlp.c_fc.weight"][0, 0] += torch.tensor(0.5)
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    assert "fires most on" not in shown(unembed("trace", "The year is", "--model", changed))
    (built,) = (tmp_path / "cache").glob("*/")
    (built / "tokens/token.npy").unlink()  # a ready index that is not whole is not used
    assert "fires most on" not in shown(unembed(*arguments))
    assert unembed("trace", "The year is", "--model", changed, "--index", built).exit_code == 1
