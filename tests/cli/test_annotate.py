"""`unembed annotate`: a file out, filled in, checked, and compared."""

from __future__ import annotations

import json
from pathlib import Path


def test_export_import_agreement(unembed, gpt2_folder: Path, tmp_path: Path) -> None:
    files = []
    for name, tokens in (("a", [0, 1, 2, 3]), ("b", [0, 1, 2, 4])):
        path = tmp_path / f"{name}.json"
        result = unembed("annotate", "export", path, "--model", gpt2_folder, "--memory", "0.1", "--top", 10)
        assert result.exit_code == 0, result.stderr
        assert "1 vectors" in result.stderr
        sheet = json.loads(path.read_text())
        sheet["vectors"][0]["patterns"] = [{"description": "d", "kind": "names", "tokens": tokens}]
        path.write_text(json.dumps(sheet))
        files.append(path)
    read = unembed("annotate", "import", *files, "--json", "--out", tmp_path / "p.parquet")
    assert [row["in_a_pattern"] for row in json.loads(read.stdout)["rows"]] == [0.4, 0.4]
    assert (tmp_path / "p.parquet").exists()
    both = unembed("annotate", "agreement", *files, "--json")
    row = json.loads(both.stdout)["rows"][0]
    assert abs(row["kappa"] - (0.8 - 0.52) / 0.48) < 1e-12
    three = unembed("annotate", "agreement", *files, "--automatic", "--model", gpt2_folder, "--json")
    assert three.exit_code == 0, three.stderr
    assert any(row["annotators"] == "a and b and unembed" for row in json.loads(three.stdout)["rows"])


def test_bad_input_is_one_line(unembed, tmp_path: Path) -> None:
    result = unembed("annotate", "import", tmp_path / "none.json")
    assert result.exit_code == 1
    assert "cannot read" in result.stderr
    assert unembed("annotate", "export", tmp_path / "x.json", "--memory", "y").exit_code == 2


def test_a_file_given_twice_is_refused(unembed, gpt2_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "ann.json"
    assert unembed("annotate", "export", path, "--model", gpt2_folder, "--memory", "0.1").exit_code == 0
    for command in ("agreement", "import"):
        twice = unembed("annotate", command, path, tmp_path / "." / "ann.json")
        assert twice.exit_code == 1
        assert "ann.json is given twice: each annotator counts once" in twice.stderr
