"""A vocabulary in which every piece is frequent: Unigram, pruned by count, bytes only as fallback.

A memory's reading is a list of tokens. Embeddings of pieces that are rare in the text stay close to their initial
values and fill readings with noise, so a piece stays only if the encoded training text uses it often enough.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import regex
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
PIECE_COST = 20.0
"""Nats that each piece costs, so that the encoding with the fewest pieces wins, and of these the most probable."""
BYTES = [f"<0x{value:02X}>" for value in range(256)]

# A space belongs to the word after it. Letters, digits and signs never share a piece, so the text "<0x41>" cannot be
# taken for the byte piece.
WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}{1,4}| ?[^\s\p{L}\p{M}\p{N}]+|\s"


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """Counts of each word (with its leading space), number, run of punctuation, and single whitespace character."""
    pattern = regex.compile(WORDS)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(pattern.findall(text))
    return counts


def tokenizer_of(pieces: list[tuple[str, float]]) -> Tokenizer:
    """A Unigram tokenizer over the end-of-text token, the 256 bytes, and these pieces with their log-probabilities."""
    floor = min((score for _, score in pieces), default=0.0) - 20.0
    vocabulary = [(END_OF_TEXT, floor), *((piece, floor) for piece in BYTES), *pieces]
    # Every character outside the vocabulary becomes bytes, so the unknown id is never produced; it needs no separate
    # token.
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def fit_vocabulary(counts: Counter[str], *, size: int, fragments: int = 2000, least: int = 200) -> Tokenizer:
    """The most frequent whole words, and the fragments that the remaining words need.

    Whole words come first, because stems such as " Palestin" make lists of tokens hard to read. Fragments come from
    Unigram training on the remaining words. Fragments that the text uses too rarely are dropped, and the next most
    common words take their slots.

    Args:
        counts: the words of the training text and how often each occurs.
        size: at most this many pieces remain, the bytes and the end-of-text token not counted.
        fragments: how many fragments to begin with.
        least: every piece occurs at least this often in the encoded text.
    """
    fragments = min(fragments, size)
    words = [word for word, count in counts.most_common() if count >= least]
    n_words = max(0, size - fragments)
    whole = set(words[:n_words])
    others = Counter({word: count for word, count in counts.items() if word not in whole})
    common = Counter({word: count for word, count in others.items() if count >= least // 10})
    proposed = {piece: score for piece, score in _unigram(common, fragments) if piece not in whole}
    while True:
        chosen = words[: max(0, size - len(proposed))]
        for word in chosen[n_words:]:
            others.pop(word, None)
            proposed.pop(word, None)
        share = math.log(max(1, others.total()) / counts.total())
        pieces = [(word, math.log(counts[word] / counts.total())) for word in chosen]
        pieces += [(piece, score + share) for piece, score in proposed.items()]
        tokenizer = tokenizer_of([(piece, score - PIECE_COST) for piece, score in pieces])
        used = piece_counts(tokenizer, others)[-len(proposed) :] if proposed else np.zeros(0)
        rare = sorted((int(n), piece) for piece, n in zip(proposed, used, strict=True) if n < least)
        if not rare:
            return tokenizer
        # Half at a time: the uses of a dropped piece pass to other pieces, which may then reach the threshold.
        for _, piece in rare[: max(50, len(rare) // 2)]:
            del proposed[piece]


def piece_counts(tokenizer: Tokenizer, counts: Counter[str]) -> np.ndarray:
    """How often each token id occurs in the encoded text that these words were counted in."""
    total = [0] * tokenizer.get_vocab_size()
    words = list(counts)
    for start in range(0, len(words), 50_000):
        chunk = words[start : start + 50_000]
        for word, encoded in zip(chunk, tokenizer.encode_batch(chunk), strict=True):
            for token in encoded.ids:
                total[token] += counts[word]
    return np.array(total, dtype=np.int64)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, context: int) -> None:
    """Write what `AutoTokenizer.from_pretrained(folder)` opens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def _unigram(counts: Counter[str], size: int) -> list[tuple[str, float]]:
    """Pieces of these words and their log-probabilities by Unigram training."""
    if not counts:
        return []
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    trainer = trainers.UnigramTrainer(vocab_size=size, max_piece_length=16, shrinking_factor=0.5, show_progress=False)
    tokenizer.train_from_iterator(("\n".join([word] * count) for word, count in counts.items()), trainer)
    reserved = {END_OF_TEXT, *BYTES, "<unk>", "\n"}
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in vocabulary if piece not in reserved]
