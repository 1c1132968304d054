"""A conversation with SmolLM2: the template's own system message is part of what the model reads, and is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from unembed.language_model import LanguageModel

QUESTION = "What is the capital of France?"


def test_the_ids_are_the_templates(smollm2: LanguageModel, smollm2_folder: Path) -> None:
    meant = AutoTokenizer.from_pretrained(smollm2_folder).apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_dict=False
    )
    ids = smollm2.chat(QUESTION)
    assert ids[0].tolist() == meant
    roles = smollm2.vocabulary.roles(meant)
    assert roles is not None
    assert [smollm2.token_strings([i])[0] for i, role in zip(meant, roles, strict=True) if role] == [
        *("What", " is", " the", " capital", " of", " France", "?")
    ]


@pytest.mark.usefixtures("named")
def test_the_commands_take_conversations(tmp_path: Path) -> None:
    from unembed.cli.commands import app

    talk = tmp_path / "talk.json"
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "The capital of France is"}]
    talk.write_text(json.dumps(turns), encoding="utf-8")
    done = CliRunner().invoke(app, ["trace", "--messages", str(talk), "--model", "smollm2", "--json"])
    told = json.loads(done.stdout)
    assert told["prediction"][0]["token"] == " Paris" and told["prediction"][0]["probability"] > 0.9
    assert told["roles"].count("user") == 7 and told["roles"].count("assistant") == 5
    assert "trained on conversations" not in done.stderr
    plain = CliRunner().invoke(app, ["trace", QUESTION, "--model", "smollm2", "--layer", "0", "--position", "3"])
    assert "trained on conversations" in plain.stderr and "roles" not in plain.stdout
    chat = CliRunner().invoke(app, ["trace", QUESTION, "--model", "smollm2", "--system", "Be brief."])
    assert "roles system 3 to 5, user 11 to 17; the other tokens are the chat template's" in " ".join(
        chat.stdout.split()
    )
