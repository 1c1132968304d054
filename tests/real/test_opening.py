"""SmolLM2 opens by name, predicts facts, and says where its numbers come from."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner, Result

import unembed
from unembed.language_model import LanguageModel
from unembed.models.published_models import PUBLISHED

PROMPT = "The capital of France is"


def run(*words: str) -> Result:
    from unembed.cli.commands import app

    return CliRunner().invoke(app, list(words))


def test_the_model_is_the_one_that_is_documented(smollm2: LanguageModel) -> None:
    assert (smollm2.n_layers, smollm2.n_heads, smollm2.n_kv_heads, smollm2.d_model) == (30, 9, 3, 576)
    assert (smollm2.n_memories, smollm2.d_vocab) == (46_080, 49_152)
    logits = smollm2.run(PROMPT).logits[0, -1]
    assert smollm2.token_strings([int(logits.argmax())]) == [" Paris"]
    assert float(logits.softmax(-1).max()) == pytest.approx(0.772, abs=0.005)


def test_it_equals_plain_transformers(smollm2: LanguageModel, smollm2_folder: object) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain = AutoModelForCausalLM.from_pretrained(smollm2_folder)
    ids = AutoTokenizer.from_pretrained(smollm2_folder)(PROMPT, return_tensors="pt").input_ids
    assert torch.equal(smollm2.encode(PROMPT), ids)
    with torch.no_grad():
        assert torch.equal(smollm2.run(PROMPT).logits, plain(ids).logits)


@pytest.mark.usefixtures("named")
def test_its_name_opens_it_everywhere() -> None:
    lm = unembed.load("smollm2")
    assert lm.name == "smollm2" and lm.provenance().revision == PUBLISHED["smollm2"].sha256
    done = run("trace", PROMPT, "--model", "smollm2", "--json", "--offline")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["prediction"][0]["token"] == " Paris"
    assert "to fetch" not in run("models").stdout
