"""The shipped folders: small enough, complete, and as their cards say."""

from __future__ import annotations

import json
import re

import pytest
import torch
from tools.evaluation import prefix_matching_scores
from transformers import AutoModelForCausalLM, AutoTokenizer

import unembed.models.architectures.attention_only  # noqa: F401 (registers the architecture)
from tools.training import recipes
from unembed.models.shipped_models import SHIPPED, shipped_folder, tokenizer_folder


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_folder_has_weights_curve_counts_and_card_of_its_recipe(name):
    folder = shipped_folder(name)
    recipe = recipes.load(folder / "recipe.json")
    n_tokens = len(AutoTokenizer.from_pretrained(tokenizer_folder(name)))
    assert len(json.loads((folder / "token_counts.json").read_text())) == n_tokens <= recipe.shape.d_vocab
    curve = [json.loads(line) for line in (folder / "loss.jsonl").read_text().splitlines()]
    assert curve[-1]["step"] == recipe.steps
    card = (folder / "README.md").read_text()
    assert f"{curve[-1]['tokens'] / 1e6:.1f} million tokens" in card
    assert "CC BY-SA 3.0" in card
    for phase in recipe.phases:
        assert re.search(rf"^\| \d+ \| {phase.until} \| {phase.context} \|", card, flags=re.MULTILINE)


def test_the_shipped_models_are_below_45_megabytes_together():
    files = [file for name in (*SHIPPED, "tokenizer") for file in shipped_folder(name).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 45e6


def test_an_induction_head_and_the_head_it_builds_on_have_formed_in_attn_2l():
    model = AutoModelForCausalLM.from_pretrained(shipped_folder("attn-2l"), dtype=torch.float32).eval()
    induction, previous = prefix_matching_scores(model)
    assert induction[1].max() > 0.3
    assert previous[0].max() > 0.3
    card = (shipped_folder("attn-2l") / "README.md").read_text()
    cells = [line.split(" | ")[2:] for line in card.splitlines() if line.startswith("| induction |")]
    written = torch.tensor([[float(cell.strip(" |")) for cell in row] for row in cells])
    torch.testing.assert_close(written, induction, atol=2e-3, rtol=0)  # three decimals; kernels differ by machine


def test_the_claims_of_wrens_card_exceed_their_thresholds():
    card = (shipped_folder("wren") / "README.md").read_text()
    row = re.search(r"^\| held-back corpus text \| ([\d.]+) \| ([\d.]+) \|$", card, flags=re.MULTILINE)
    assert row is not None
    assert float(row[1]) <= 1.55
    assert float(row[1]) < float(row[2]) - 0.1
