"""A folder of text becomes a folder that opens, in one go or in two."""

from __future__ import annotations

import json
import lzma
import random

import pytest
import torch
from tools.train_models import train_model
from tools.training.networks import Shape
from tools.training.recipes import Phase, Recipe
from tools.training.shipped_models import encoded_text
from transformers import AutoModelForCausalLM, AutoTokenizer

from unembed.errors import CorpusUnreadable, InvalidInput

TINY = Recipe(Shape(1, 8, 2, 4, 16, 8192, 512), (Phase(2, 512, 1), Phase(4, 512, 1, lr=(1.0, 0.0))), warmup=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    words = ["the", "king", "and", "queen", "said", "that", "walked", "slowly", "into", "January", "many", "stones"]
    rows = [
        {"id": f"doc-{i}", "source": "books", "text": " ".join(rng.choices(words, k=60)) + ".\n"} for i in range(200)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "a.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    return folder


def test_one_model_from_text_to_a_folder_that_opens(corpus, tmp_path):
    rows = []
    whole = train_model("tiny", corpus=corpus, out=tmp_path / "a", recipe=TINY, compiled=False, progress=rows.append)
    # Unigram training adds in the order its threads finish, so the second run takes the first one's vocabulary.
    again = {"corpus": corpus, "out": tmp_path / "b", "recipe": TINY, "compiled": False}
    encoded_text(corpus, tmp_path / "b", TINY.shape.d_vocab, tmp_path / "a" / "tokenizer")
    train_model("tiny", **again, until=1)
    resumed = train_model("tiny", **again)
    assert (whole / "model.safetensors").read_bytes() == (resumed / "model.safetensors").read_bytes()
    model = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a" / "tokenizer")
    ids = tokenizer(" January", return_tensors="pt").input_ids
    assert ids.shape == (1, 1)
    assert model(ids).logits.shape == (1, 1, 8192)
    counts = json.loads((whole / "token_counts.json").read_text())
    assert len(counts) == len(tokenizer)
    assert counts[ids[0, 0]] > 100
    assert counts[0] == 200 - 4  # documents trained on; doc-87, -125, -148, -163 are held back


def test_an_unknown_model_is_refused_with_the_names(corpus, tmp_path):
    with pytest.raises(InvalidInput, match="Use one of wren, attn-0l, attn-1l, attn-2l"):
        train_model("robin", corpus=corpus, out=tmp_path)


def test_an_empty_corpus_leaves_no_half_made_text(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusUnreadable):
        train_model("wren", corpus=tmp_path / "empty", out=tmp_path / "out")
    assert not (tmp_path / "out" / "text" / "train.npz").exists()
