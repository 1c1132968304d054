"""What a reader of the numbers should know is one line on stderr, and stdout stays what was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

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
    assert done.stderr.splitlines() == [
        f"unembed: the files of {folder} hold weights that its architecture does not use: extra.weight."
    ]
