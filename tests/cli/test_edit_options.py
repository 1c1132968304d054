"""Edits as they are written on the command line: each is the library's edit, and a malformed one is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import Result

import unembed as package
from tests.cli.conftest import PROMPT
from unembed.cli.command import fields_of, value_of
from unembed.cli.edit_options import EditOptions

Run = Callable[..., Result]


def written(**texts: Any) -> EditOptions:
    """The options, from their texts."""
    return EditOptions(**{p.name: value_of(p, texts.get(p.name)) for p in fields_of(EditOptions())})


def test_every_edit_of_the_library_can_be_written(gpt2_folder: Path, tmp_path: Path) -> None:
    lm = package.load(gpt2_folder)
    vector = torch.arange(lm.d_model) / 7
    np.save(tmp_path / "v.npy", vector.numpy())
    (tmp_path / "v.json").write_text(json.dumps(vector.tolist()))
    saved = package.steering.save_edits([package.scale_head(0, 1, 3.0)], tmp_path / "edits.json", model=lm.name)
    given = written(
        set_=["L1M3=2.5", "1.4=-1e-1"],
        scale=["L0M2=0", "L1H1=0", "ffn1=0.5", "attention 0=2"],
        add=["L1M5=1"],
        add_vector=[f"1=-2*{tmp_path / 'v.npy'}", f"L0={tmp_path / 'v.json'}"],
        replace_stream=[f"1=2*{tmp_path / 'v.npy'}"],
        edits_file=[saved],
    )
    assert given.edits(lm) == [
        package.scale_head(0, 1, 3.0),
        package.set_coefficient(1, 3, 2.5),
        package.set_coefficient(1, 4, -0.1),
        package.scale_coefficient(0, 2, 0.0),
        package.scale_head(1, 1, 0.0),
        package.scale_ffn(1, 0.5),
        package.scale_attention(0, 2.0),
        package.add_to_coefficient(1, 5, 1.0),
        package.add_vector(1, vector, -2.0),
        package.add_vector(0, vector),
        package.replace_stream(1, 2 * vector.double()),
    ]
    assert given and not written()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_vector_from_two_prompts_is_the_difference_of_their_streams(gpt2_folder: Path, dtype: str) -> None:
    lm = package.load(gpt2_folder, dtype=dtype)
    (edit,) = written(add_vector=["0=3*The first month|The year"]).edits(lm)
    ends = [lm.hf(lm.encode(text), output_hidden_states=True).hidden_states[1][0, -1] for text in
            ("The first month", "The year")]  # fmt: skip
    assert edit.vector == tuple((ends[0].float() - ends[1].float()).tolist())
    assert (edit.layer, edit.value, edit.positions) == (0, 3.0, "all")


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        ("set_", "L1M3", "such as L5M733=3.0"),
        ("set_", "L1H3=0", "such as L5M733=3.0"),
        ("add", "1.3=x", "such as L5M733=3.0"),
        ("scale", "ffn=0", "L1H5=0 or ffn3=0.5"),
        ("scale", "L1H3", "L1H5=0 or ffn3=0.5"),
        ("add_vector", "v.npy", "a layer and a vector"),
        ("replace_stream", "x=v.npy", "a layer and a vector"),
    ],
)
def test_what_is_no_edit_is_named_before_a_model_opens(option: str, text: str, why: str) -> None:
    with pytest.raises(typer.BadParameter, match=why):
        written(**{option: [text]})


def test_commands_apply_the_edits(unembed: Run, gpt2_folder: Path, tmp_path: Path) -> None:
    lm = package.load(gpt2_folder)
    edits = [package.scale_head(1, 0, 0.0), package.scale_ffn(0, 0.25)]
    expected = lm.run(PROMPT, edits=edits).logits[0, -1].topk(5).indices.tolist()
    options = ("--scale", "L1H0=0", "--scale", "ffn0=0.25")
    view: dict[str, Any] = json.loads(unembed("trace", PROMPT, "--model", gpt2_folder, *options, "--json").stdout)
    assert [c["id"] for c in view["prediction"]] == expected
    path = tmp_path / "edits.json"
    steered = unembed("steer", PROMPT, "--model", gpt2_folder, *options, "--save", path, "--cost-tokens", 0)
    assert steered.exit_code == 0, steered.stderr
    assert package.steering.load_edits(path, model=lm.name) == edits
    again = unembed(
        "explain", PROMPT, "--model", gpt2_folder, "--token", " January", "--edits", path, "--by", "component", "--json"
    )
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["edits"] == view["edits"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--scale", "L9H0=0"), "layer 9"),
        (("--scale", "L1H99=0"), "head 99"),
        (("--add-vector", "1=nowhere.npy"), "cannot read a vector from nowhere.npy"),
        (
            ("--add-vector", "1=nested.json"),
            "cannot read a vector from nested.json: its lists or objects are nested too",
        ),
        (("--add-vector", "1=empty.npy"), "cannot read a vector from empty.npy: No data left in file"),
        (("--add-vector", "9=a|b"), "layer 9"),
        (("--edits", "nowhere.json"), "cannot read edits from nowhere.json"),
    ],
)
def test_edits_that_fit_no_model_fail_in_one_line(
    unembed: Run,
    gpt2_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, str],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nested.json").write_text("[" * 200_000)
    Path("empty.npy").touch()
    result = unembed("trace", PROMPT, "--model", gpt2_folder, *options)
    assert result.exit_code == 1
    assert why in result.stderr and result.stderr.count("\n") == 1


def test_a_number_counts_along_the_pole_that_is_named(gpt2_folder: Path) -> None:
    lm = package.load(gpt2_folder)
    given = written(set_=["-L1M3=2.5"], add=["-L1M5=1"], scale=["-L0M2=0.5"])
    assert given.edits(lm) == [
        package.set_coefficient(1, 3, -2.5),
        package.scale_coefficient(0, 2, 0.5),
        package.add_to_coefficient(1, 5, -1.0),
    ]
