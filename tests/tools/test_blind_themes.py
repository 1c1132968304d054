"""The sheet of a blind judge: every value and random vector once, mixed, and the themes by name afterwards."""

from __future__ import annotations

import json

import pytest
import torch
from tools.blind_themes import main
from tools.model_cards import named_vectors
from tools.training.vocabulary import save_tokenizer, tokenizer_of
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

WORDS = [f" word{i}" for i in range(40)]


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    d_vocab = 257 + len(WORDS)
    config = GPT2Config(vocab_size=d_vocab, n_embd=16, n_layer=4, n_head=2, n_inner=32, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    save_tokenizer(tokenizer_of([(word, -1.0 - i) for i, word in enumerate(WORDS)]), tmp_path, context=16)
    (tmp_path / "token_counts.json").write_text(json.dumps([0] * 257 + [500] * len(WORDS)))
    return tmp_path


def test_a_sheet_has_every_vector_once_in_mixed_order_and_the_key_names_them(folder):
    sheet, key = folder / "sheet.json", folder / "key.json"
    assert main(["sheet", str(folder), str(folder), str(sheet), str(key)]) == 0
    items, names = json.loads(sheet.read_text()), json.loads(key.read_text())
    model = AutoModelForCausalLM.from_pretrained(folder)
    named = dict(named_vectors(model))
    assert sorted(names) == sorted(named) and len(named) == 120
    assert any(name.startswith("random") for name in names[:60]) and any(name[0].isdigit() for name in names[60:])
    unembedding = model.get_output_embeddings().weight.detach()
    for item, name in zip(items, names, strict=True):
        scores = {word: float(unembedding[257 + i] @ named[name]) for i, word in enumerate(WORDS)}
        assert item == {"tokens": sorted(scores, key=lambda word: -scores[word])[:20], "theme": ""}


def test_themes_are_those_of_the_items_that_have_one(folder):
    sheet, key, out = folder / "sheet.json", folder / "key.json", folder / "themes.json"
    sheet.write_text(json.dumps([{"tokens": [], "theme": "months"}, {"tokens": [], "theme": ""}]))
    key.write_text(json.dumps(["3.17", "random 0"]))
    assert main(["themes", str(sheet), str(key), str(out)]) == 0
    assert json.loads(out.read_text()) == {"3.17": "months"}


def test_other_words_print_how_it_is_used(capsys):
    assert main(["judge"]) == 2
    assert "tools.blind_themes sheet" in capsys.readouterr().err
