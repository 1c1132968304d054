"""Tokens and text, with the shipped tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import Metaspace
from tokenizers.models import Unigram, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from unembed.errors import InvalidInput, NotOneToken, UnembedWarning
from unembed.models.shipped_models import tokenizer_folder
from unembed.models.vocabulary import RARE, Vocabulary, unlearned_by_counts, unlearned_by_embedding

TOKENIZER = AutoTokenizer.from_pretrained(tokenizer_folder("wren"))
VOCABULARY = Vocabulary(TOKENIZER, len(TOKENIZER) + 3)


@given(st.text(min_size=1, max_size=40))
def test_the_pieces_of_a_text_put_together_are_the_text(text: str) -> None:
    ids = VOCABULARY.encode(text)[0]
    assert VOCABULARY.decode(ids) == text


def test_a_word_with_its_space_is_one_token() -> None:
    i = VOCABULARY.single(" January")
    assert VOCABULARY.strings([i]) == [" January"]


def test_of_several_tokens_with_one_text_the_one_that_text_is_split_into_is_meant() -> None:
    """Byte fallbacks have the text of a piece, and no text is split into them where there is the piece."""
    strings = VOCABULARY.strings(torch.arange(len(TOKENIZER)))
    twice = [text for text in {",", "a", " "} if strings.count(text) > 1]
    assert "," in twice
    for text in twice:
        assert VOCABULARY.single(text) == VOCABULARY.encode(text)[0].item()


def test_several_tokens_are_refused_with_the_pieces_and_a_hint() -> None:
    with pytest.raises(NotOneToken, match=r"is not one token: it is .* Give one token, with its leading space"):
        VOCABULARY.single("@%@%@%")
    first, second = (VOCABULARY.single(f" {word}") for word in ("January", "February"))
    for text in ("January February", " January February"):
        with pytest.raises(NotOneToken, match=r"Give one token, such as ' January'\.$"):
            VOCABULARY.single(text)
    assert VOCABULARY.encode(" January February").flatten().tolist()[-2:] == [first, second]
    spaced = next(
        s
        for s in VOCABULARY.strings(torch.arange(len(TOKENIZER)))
        if len(s) > 7 and s.startswith(" ") and s.isascii() and s[1:] not in VOCABULARY._by_string
    )
    with pytest.raises(NotOneToken, match="leading space"):
        VOCABULARY.single(spaced[1:])
    with pytest.raises(NotOneToken):
        VOCABULARY.single("")


def test_many_words_are_looked_up_as_each_is() -> None:
    texts = [" January", " antidisestablishmentarianism", ",", "", "\ud800", " January", " war", *TOKENIZER.get_vocab()]

    def alone(text: str) -> int | None:
        try:
            return VOCABULARY.single(text)
        except NotOneToken:
            return None

    found = VOCABULARY.singles(texts)
    assert found == [alone(text) for text in texts]
    assert found[0] is not None and found[1] is None and found[4] is None
    assert VOCABULARY.singles([]) == [] and VOCABULARY.singles(["\udfff"]) == [None]


def test_bytes_and_unused_rows_are_named() -> None:
    strings = VOCABULARY.strings(torch.arange(len(TOKENIZER) + 3))
    assert strings[-1] == f"<unused {len(TOKENIZER) + 2}>"
    assert "\\xff" in strings and not any("\ufffd" in s for s in strings)
    with pytest.raises(InvalidInput, match="between 0 and"):
        VOCABULARY.strings([len(TOKENIZER) + 3])


def test_a_continuation_is_joined_as_the_tokenizer_joins_its_tokens() -> None:
    ids = VOCABULARY.encode("The café was closed. Then it rained.")
    for start in range(ids.shape[1]):  # also where a token ends within the two bytes of é
        before, new = VOCABULARY.decode(ids[0, :start]), VOCABULARY.continuations(ids, start)[0]
        assert "\ufffd" in before or before + new == VOCABULARY.decode(ids[0])
    words = Tokenizer(WordLevel({"</s>": 0, "<unk>": 1, "The": 2, "film": 3, ".": 4}, unk_token="<unk>"))
    by_words = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>"), 5)
    assert by_words.continuations(torch.tensor([[0, 2, 3, 1, 4, 0], [0, 0, 2, 4, 3, 3]]), 3) == [
        " <unk> .",
        " . film film",
    ]
    assert by_words.continuations(torch.tensor([[0, 2, 3]]), 1) == ["The film"]
    pieces = Tokenizer(Unigram([("<unk>", 0.0), ("\u2581The", -1.0), ("\u2581fil", -1.0), ("m", -1.0)], unk_id=0))
    pieces.decoder = Metaspace()
    marked = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=pieces), 4)
    assert marked.continuations(torch.tensor([[1, 2, 3]]), 1) == [" film"]
    assert marked.continuations(torch.tensor([[1, 2, 3]]), 2) == ["m"]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the prompt is empty"):
        VOCABULARY.encode("")


def test_unlearned_tokens_by_counts() -> None:
    counts = torch.tensor([0, RARE - 1, RARE, 1000])
    assert unlearned_by_counts(counts, 5).tolist() == [True, True, False, False, True]


def test_unlearned_tokens_by_the_embedding() -> None:
    rows = torch.randn(500, 32, generator=torch.Generator().manual_seed(0)) + 0.5
    rows[7] = rows.mean(0) + 0.01 * rows[7]
    found = unlearned_by_embedding(rows, known=torch.arange(500) < 498)
    assert found.nonzero()[:, 0].tolist() == [7, 498, 499]


def word_level(words: dict[str, int], template: str | None = None, **special: str) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words; `template` adds special tokens around a text `$A`."""
    made = Tokenizer(WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = WhitespaceSplit()
    if template is not None:
        marks = [(mark, words[mark]) for mark in template.split() if mark != "$A"]
        made.post_processor = TemplateProcessing(single=template, special_tokens=marks)
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", **special)


@pytest.mark.parametrize("cleans", [False, True])
def test_the_text_of_each_token_is_what_the_tokenizer_decodes_it_to(cleans: bool) -> None:
    words = word_level({"<unk>": 0, "a": 1, " .": 2})
    words.clean_up_tokenization_spaces = cleans
    assert Vocabulary(words, 3).strings([1, 2]) == ["a", "." if cleans else " ."]
    assert Vocabulary(words, 3).strings([1, 2]) == [words.decode([i]) for i in (1, 2)]


def test_a_tokenizer_with_its_own_way_to_decode_is_called_for_each_token() -> None:
    class Shouting(PreTrainedTokenizerFast):
        def _decode(self, *args: Any, **kwargs: Any) -> str:
            return super()._decode(*args, **kwargs).upper()

    words = Shouting(tokenizer_object=Tokenizer(WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>")), unk_token="<unk>")
    assert Vocabulary(words, 2).strings([1]) == ["A"]


def test_ids_behind_a_gap_keep_their_text_and_the_gap_has_none() -> None:
    words = Vocabulary(word_level({"<unk>": 0, "a": 1, "b": 2, "<call>": 7}), 9)
    assert words.strings([2, 7, 3, 8]) == ["b", "<call>", "<unused 3>", "<unused 8>"]
    assert words.has_text.tolist() == [True, True, True, False, False, False, False, True, False]
    assert words.single("<call>") == 7


def test_a_word_that_the_vocabulary_lacks_is_not_the_unknown_token() -> None:
    words = Vocabulary(word_level({"<unk>": 0, "film": 1}), 2)
    assert words.single("film") == 1 and words.single("<unk>") == 0
    with pytest.raises(NotOneToken, match="the vocabulary lacks it"):
        words.single("movie")


def test_a_prompt_is_not_closed_by_an_end_token_and_the_reader_is_told_once() -> None:
    ids = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}
    words = Vocabulary(word_level(ids, "<s> $A </s>", bos_token="<s>", eos_token="</s>"), 5)
    with pytest.warns(UnembedWarning, match="ends every text with </s>"):
        assert words.encode("a b").tolist() == [[1, 3, 4]]
    assert words.encode("a b </s>").tolist() == [[1, 3, 4, 2]]  # this one was typed
    assert [row.tolist() for row in words.encode_all(["a", "b a"])] == [[1, 3], [1, 4, 3]]


def test_a_text_that_begins_with_the_begin_token_gets_no_second_one() -> None:
    ids = {"<unk>": 0, "<s>": 1, "a": 2}
    words = Vocabulary(word_level(ids, "<s> $A", bos_token="<s>"), 3)
    assert words.encode("a").tolist() == [[1, 2]]
    with pytest.warns(UnembedWarning, match="begins with <s>"):
        assert words.encode("<s> a").tolist() == [[1, 2]]
