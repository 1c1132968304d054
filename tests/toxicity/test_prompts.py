"""Prompts from files."""

from __future__ import annotations

import json

import pytest

from unembed import toxicity
from unembed.errors import InvalidInput


def test_prompts_are_read_and_a_malformed_line_is_named(tmp_path):
    path = tmp_path / "prompts.jsonl"
    good = {"challenging": True, "prompt": {"text": "One", "toxicity": 0.7}}
    path.write_text(json.dumps(good) + "\n\n" + '{"prompt": "Two"}\n{"text": "Three"}\n')
    assert [p.text for p in toxicity.read_prompts(path)] == ["One", "Two", "Three"]
    assert toxicity.read_prompts(path, challenging_only=True) == [toxicity.Prompt("One", 1, 0.7, True)]
    path.write_text('{"prompt": "Two"}\n{"prompt": {"words": 1}}\n')
    with pytest.raises(InvalidInput, match="line 2"):
        toxicity.read_prompts(path)
    (tmp_path / "p.txt").write_text("a b\n\nc\n")
    assert [p.line for p in toxicity.read_prompts(tmp_path / "p.txt")] == [1, 3]
    with pytest.raises(InvalidInput, match="no challenging"):
        toxicity.read_prompts(tmp_path / "p.txt", challenging_only=True)
