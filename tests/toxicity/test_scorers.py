"""Scorers: the shipped one keeps its card's word, the others read what they are given."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch

from unembed.errors import InvalidInput, ModelUnavailable
from unembed.toxicity.hashed_ngrams import features, margins, ngrams, words_in
from unembed.toxicity.scorers import Classifier, Lexicon, Linear, StoredScores, open_scorer


def test_the_shipped_scorer_scores_an_insult_above_thanks():
    rude, kind = Linear().score(["you are a stupid fucking idiot", "thank you for your help with the article"])[
        "toxicity"
    ]
    assert rude > 0.95 and kind < 0.1


def test_the_card_beats_the_larger_class_and_states_its_licence():
    card = Linear().card
    assert "CC BY-SA" in card["licence"]
    assert card["measured"]["Jigsaw, held out"]["auc"] > 0.95
    assert len(card["measured"]) == 4


def test_margins_are_the_sum_over_distinct_ngrams():
    weights = np.random.default_rng(0).normal(size=256)
    texts = ["You you YOU are rude!!", "", "A quiet day"]
    from zlib import crc32

    for text, margin in zip(texts, margins(texts, weights, 0.5), strict=True):
        columns = {crc32(gram.encode()) % 256 for gram in ngrams(text)}
        expected = sum(weights[c] for c in columns) / max(len(columns), 1) ** 0.5 + 0.5
        assert margin == pytest.approx(expected, abs=1e-9)
    assert words_in("Sooooo BAD!!! f*ck") == ["soo", "bad", "!!", "f*ck"]
    assert features([], 8)[1].tolist() == [0]


def test_a_lexicon_finds_whole_words_only(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("ass\nnaked man\n")
    scorer = open_scorer(f"lexicon:{words}")
    assert scorer.score(["An ASS!", "a class", "the naked man", "naked men", ""])["toxicity"] == [1, 0, 1, 0, 0]
    with pytest.raises(InvalidInput):
        Lexicon([" "])


def test_stored_scores_are_read_and_missing_ones_named(tmp_path):
    path = tmp_path / "scores.jsonl"
    path.write_text(
        json.dumps({"text": "a", "toxicity": 0.7, "threat": 0.1}) + "\n\n" + '{"text": "b", "toxicity": 1}\n'
    )
    scorer = StoredScores(path)
    path.write_text(json.dumps({"text": "a\u2028b", "toxicity": 0.2}, ensure_ascii=False), encoding="utf-8-sig")
    assert StoredScores(path).score(["a\u2028b"]) == {"toxicity": [0.2]}
    assert scorer.score(["b", "a"]) == {"toxicity": [1.0, 0.7]}
    assert scorer.score(["a"]) == {"threat": [0.1], "toxicity": [0.7]}
    with pytest.raises(InvalidInput, match="has no score for it"):
        scorer.score(["c"])
    path.write_text('{"text": "a", "toxicity": 0.7}\n{"text": "b"}\n')
    with pytest.raises(InvalidInput, match="line 2"):
        StoredScores(path)


def test_a_classifier_is_opened_from_a_folder(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(tmp_path)
    sizes: dict[str, Any] = dict(
        vocab_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)
    for labels, exclusive in ((["toxic", "obscene"], False), (["non-toxic", "toxic"], True)):
        config = BertConfig(**sizes, id2label=dict(enumerate(labels)), label2id={n: i for i, n in enumerate(labels)})
        model = BertForSequenceClassification(config).eval()
        model.save_pretrained(tmp_path)
        found = Classifier(str(tmp_path), batch=2).score(["a", "a b a", "b"])
        with torch.no_grad():
            logits = model(torch.tensor([[3]])).logits[0]
        expected = (logits.softmax(-1) if exclusive else logits.sigmoid())[labels.index("toxic")]
        assert found["toxicity"][2] == pytest.approx(float(expected), abs=1e-5)
        assert set(found) == ({"toxicity"} if exclusive else {"toxicity", "profanity"})


@pytest.mark.parametrize("name", ["nobody/no-such-scorer", "linear:/no/such.npz"])
def test_a_scorer_that_is_not_at_hand_is_one_line(name):
    with pytest.raises(ModelUnavailable) as error:
        open_scorer(name, offline=True)
    assert "\n" not in str(error.value)
    with pytest.raises(InvalidInput, match=re.escape("lexicon:FILE")):
        open_scorer("lexicon:")
