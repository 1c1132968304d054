"""`unembed clusters`: the library's clusters in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unembed as package
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered
from unembed.results import Table


def test_cards_are_the_librarys(unembed, gpt2_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "clusters.parquet"
    result = unembed("clusters", "--model", gpt2_folder, "--clusters", 7, "--top", 3, "--json", "--out", out)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    found = package.cluster_values(package.load(gpt2_folder), 7)
    assert rows == list(found.cards(top=3).rows())
    assert [row["cluster"] for row in Table.from_parquet(out).rows()] == found.labels.tolist()


def test_one_memorys_cluster_and_the_terminal_form(unembed, gpt2_folder: Path) -> None:
    result = unembed("clusters", "--model", gpt2_folder, "--clusters", 5, "--memory", "1.3", "--csv")
    assert result.exit_code == 0, result.stderr
    number = package.cluster_values(package.load(gpt2_folder), 5).of(1, 3)
    assert result.stdout.splitlines()[1].startswith(f"{number},")
    assert "coherence" in unembed("clusters", "--model", gpt2_folder, "--layer", 0).stdout


def test_a_tenth_of_the_values_of_dense_and_expert_layers_is_the_number_of_clusters(unembed, tmp_path: Path) -> None:
    tiny_model("glm4_moe").save_pretrained(tmp_path)
    tokenizer = lettered("gpt2").tokenizer
    assert tokenizer is not None
    tokenizer.save_pretrained(tmp_path)
    for layers, title in (
        ((), "56 clusters of 560 values"),
        (("--layer", 0, "--layer", 2), "24 clusters of 240 values"),
    ):
        result = unembed("clusters", "--model", tmp_path, *layers, "--json")
        assert result.exit_code == 0 and title in result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--clusters", 10_000), 1, "value vectors in these layers"),
        (("--memory", "5"), 2, "not a memory"),
        (("--memory", "99.0"), 1, "layer 99"),
        (("--layer", 9), 1, "layer 9"),
        (("--json", "--csv"), 2, "choose one"),
    ],
)
def test_bad_input_is_one_line(unembed, gpt2_folder: Path, arguments, status, message) -> None:
    result = unembed("clusters", "--model", gpt2_folder, *arguments)
    assert result.exit_code == status
    assert message in result.stderr
    assert "Traceback" not in result.stderr
