"""The vocabulary: exact round trips, frequent pieces, what AutoTokenizer makes of it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.training.vocabulary import BYTES, END_OF_TEXT, fit_vocabulary, piece_counts, save_tokenizer, word_counts
from transformers import AutoTokenizer

HOSTILE = [
    "",
    " ",
    "\n\n\n  \t x  ",
    "tab\tand\r\nreturn",
    "literal <0x41> and <0x0A>, and a piece mark ▁here",
    "😀 emoji 👩‍👩‍👧, combining e\u0301, 中文字 and \u202eright-to-left",
    "\x00\x07 control",
    "1234567890 3.14 1999-2001",
    "don't can't I'm 'quoted' \"so\"...!?",
    "unheardofword " * 3,
]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = random.Random(0)
    words = ["the", "king", "and", "queen", "said", "that", "walked", "slowly", "into", "January", "many", "stones"]
    return [" ".join(rng.choices(words, k=200)) + ".\nThe end, said the king." for _ in range(60)]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return fit_vocabulary(word_counts(texts), size=60, fragments=40, least=5)


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_comes_back_as_it_was(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@given(st.text())
def test_drawn_text_comes_back_as_it_was(tokenizer, text):
    if END_OF_TEXT not in text:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_text_that_spells_a_byte_piece_is_not_that_byte(tokenizer):
    assert tokenizer.token_to_id("<0x41>") not in tokenizer.encode("<0x41>").ids


def test_a_common_word_is_one_piece_with_its_space(tokenizer):
    ids = tokenizer.encode(" January").ids
    assert [tokenizer.decode([i]) for i in ids] == [" January"]


def test_every_piece_but_bytes_is_frequent_in_the_text(tokenizer, texts):
    used = piece_counts(tokenizer, word_counts(texts))
    assert len(used) == tokenizer.get_vocab_size() <= 60 + len(BYTES) + 1
    assert used[len(BYTES) + 1 :].min() >= 5


def test_counts_by_word_are_the_counts_of_the_encoded_text(tokenizer, texts):
    used = piece_counts(tokenizer, word_counts(texts))
    whole = [0] * tokenizer.get_vocab_size()
    for text in texts:
        for token in tokenizer.encode(text).ids:
            whole[token] += 1
    assert used.tolist() == whole


def test_the_saved_folder_opens_as_a_fast_tokenizer_with_offsets(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path, context=32)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    text = "The king\n walked <0x41> 😀"
    encoded = opened(text, return_offsets_mapping=True)
    assert encoded["input_ids"] == tokenizer.encode(text).ids
    assert opened.decode(encoded["input_ids"]) == text
    assert "".join(text[a:b] for a, b in encoded["offset_mapping"][:2]) == text[: encoded["offset_mapping"][1][1]]
    assert opened.eos_token_id == opened.bos_token_id == 0


def test_a_vocabulary_smaller_than_the_fragments_stays_small():
    rng = random.Random(0)
    counts = Counter({"".join(rng.choices("abcdefgh", k=6)): 300 for _ in range(400)})
    assert fit_vocabulary(counts, size=45, fragments=2000, least=1).get_vocab_size() <= 45 + len(BYTES) + 1
