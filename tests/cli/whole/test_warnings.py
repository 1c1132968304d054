"""Warnings are one line on stderr, data on stdout is UTF-8, and custom code runs only where a command allows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from typer.testing import Result

from unembed.models.shipped_models import shipped_folder, tokenizer_folder


def test_a_warning_is_one_line_on_stderr(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for file in shipped_folder("attn-1l").iterdir():
        (folder / file.name).parent.mkdir(exist_ok=True)
        (folder / file.name).write_bytes(file.read_bytes())
    AutoTokenizer.from_pretrained(tokenizer_folder("attn-1l")).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "extra.weight": torch.zeros(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    command = [sys.executable, "-m", "unembed", "lens", "The war", "--model", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)
    warned, *others = done.stderr.splitlines()
    assert warned == f"unembed: the files of {folder} hold weights that its architecture does not use: extra.weight."
    assert [line.split(",")[0] for line in others] == ["read by the logit lens"]


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_data_is_utf8_where_the_terminal_is_not(unembed: Callable[..., Result], form: str) -> None:
    arguments = ["lens", "The war – né", "--model", "attn-1l", form]
    elsewhere = subprocess.run(
        [sys.executable, "-m", "unembed", *arguments],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},
    ).stdout
    assert unembed(*arguments).stdout_bytes == elsewhere and "é" in elsewhere.decode("utf-8")


def test_custom_code_runs_only_where_the_command_allows_it(tmp_path: Path) -> None:
    (tmp_path / "modeling_mine.py").write_text(
        "from transformers import LlamaConfig as Config\nfrom transformers import LlamaForCausalLM as Mine\n"
    )
    config = {
        "model_type": "mine",
        "architectures": ["Mine"],
        "auto_map": {"AutoConfig": "modeling_mine.Config", "AutoModelForCausalLM": "modeling_mine.Mine"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "unembed", "trace", "The", "--model", str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert refused.returncode == 1 and "allow it: --trust-remote-code" in refused.stderr
    allowed = subprocess.run([*command, "--trust-remote-code"], capture_output=True, text=True, check=False)
    assert (
        allowed.returncode == 1 and "it contains no weights" in allowed.stderr
    )  # its code ran; the folder has no weights
