"""The word filter against brute force over texts, self-debiasing against the formula and full passes."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

import unembed
from unembed.control.toxicity.self_debiasing import SelfDebiasing, debiased
from unembed.control.toxicity.word_filter import WordFilter, read_words, token_bytes
from unembed.errors import InvalidInput

WORDS = ["king", "old man", "the sea", "cats"]


@pytest.fixture(scope="module")
def wren():
    return unembed.load("wren")


def holds(text: str, words: list[str], end: int) -> bool:
    """Whether a banned word ends after `end`, at word boundaries."""
    for word in words:
        for m in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", re.sub(r"\s", " ", text.lower())):
            if m.end() > end:
                return True
    return False


@pytest.mark.parametrize("text", ["The ki", "An old", "He liked c", "thinki", "near the s"])
def test_the_filter_bans_what_completes_a_word_and_nothing_else(wren, text):
    ids = wren.encode(text)
    shown = WordFilter(WORDS, wren.tokenizer)(ids, torch.zeros(1, wren.d_vocab))[0]
    banned = set(torch.isinf(shown).nonzero()[:, 0].tolist())
    special = set(wren.tokenizer.all_special_ids)
    before = wren.decode(ids[0])
    strings = wren.token_strings(range(wren.d_vocab))
    for i in range(wren.d_vocab):
        if i in special or "\\x" in strings[i]:
            continue
        assert (i in banned) == holds(before + strings[i], WORDS, len(before)), (text, strings[i])


def test_every_cut_and_case_of_a_word_is_caught(wren):
    """However the word is cut into tokens, its last piece is banned."""
    filter_ = WordFilter(["king"], wren.tokenizer)
    ids_of = {}
    for i, b in enumerate(token_bytes(wren.tokenizer)):
        ids_of.setdefault(b, []).append(i)
    caught = 0
    for cut in itertools.product([False, True], repeat=3):
        pieces, word = [], b" king"
        bounds = [0, *(k + 2 for k in range(3) if cut[k]), len(word)]
        pieces = [word[a:b] for a, b in itertools.pairwise(bounds)]
        if all(p in ids_of for p in pieces):
            for way in itertools.product(*(ids_of[p] for p in pieces)):
                scores = filter_(torch.tensor([[5, *way[:-1]]]), torch.zeros(1, wren.d_vocab))
                assert torch.isinf(scores[0, way[-1]])
                caught += 1
    assert caught >= 4


def test_a_filtered_generation_never_says_the_words(wren):
    words = ["the", "she", "he", "was"]
    prompts = ["Once upon a time there", "The king and his son"]
    filter_ = WordFilter(words, wren.tokenizer)
    for options in ({}, {"seed": 1}, {"num_beams": 3}):
        texts = wren.generate(prompts, max_new_tokens=25, logits_processor=[filter_], **options)
        for prompt, text in zip(prompts, texts, strict=True):
            assert not re.findall(r"\b(the|she|he|was)\b", text[len(prompt) :].lower())
    assert re.findall(
        r"\b(the|she|he|was)\b", wren.generate(prompts[0], max_new_tokens=25)[0][len(prompts[0]) :].lower()
    )


def test_words_come_from_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("one\n\n two \n")
    assert read_words(path) == ["one", "two"]
    with pytest.raises(InvalidInput):
        read_words(tmp_path / "none.txt")


def test_debiasing_is_the_formula():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 11, generator=generator)
    announced = torch.randn(3, 2, 11, generator=generator)
    found = debiased(logits, announced, decay=50.0, epsilon=0.01)
    p, q = logits.double().softmax(-1), announced.double().softmax(-1)
    for b in range(2):
        new = []
        for w in range(11):
            delta = float(p[b, w]) - max(float(q[y, b, w]) for y in range(3))
            factor = 1.0 if delta >= 0 else max(2.718281828459045 ** (50 * delta), 0.01)
            new.append(float(p[b, w]) * factor)
        expected = torch.tensor(new) / sum(new)
        assert torch.allclose(found[b].exp(), expected, atol=1e-6)


def step_by_step(lm, prompt: str, n: int) -> str:
    """Greedy self-debiasing by full passes."""
    ids = lm.encode(prompt)
    processor = SelfDebiasing(lm.hf, lm.tokenizer)
    for _ in range(n):
        scores = processor.scores(ids)[0, -1]
        ids = torch.cat([ids, scores.argmax().view(1, 1)], dim=1)
    return lm.decode(ids[0])


def test_debiased_generation_equals_full_passes_in_batches(wren):
    prompts = ["The king said that the stupid", "I"]
    processor = SelfDebiasing(wren.hf, wren.tokenizer)
    batch = wren.generate(prompts, max_new_tokens=8, logits_processor=[processor])
    assert batch == [step_by_step(wren, p, 8) for p in prompts]
    # The same processor serves another prompt afterwards.
    assert wren.generate("We were", max_new_tokens=4, logits_processor=[processor]) == [
        step_by_step(wren, "We were", 4)
    ]


def test_beams_reorder_the_cache(wren):
    """With the cache thrown away before every step, beams come out the same."""

    class Forgetful(SelfDebiasing):
        def _order(self, input_ids):
            return None

    texts = []
    for kind in (SelfDebiasing, Forgetful):
        processor = kind(wren.hf, wren.tokenizer)
        texts.append(wren.generate("The old king", max_new_tokens=8, num_beams=3, logits_processor=[processor]))
    assert texts[0] == texts[1]


def test_a_context_too_short_for_the_prefixes_is_refused(wren):
    processor = SelfDebiasing(wren.hf, wren.tokenizer)
    ids = torch.full((1, wren.n_ctx - 2), 50)
    with pytest.raises(InvalidInput, match="context"):
        processor(ids, torch.zeros(1, wren.d_vocab))
