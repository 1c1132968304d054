"""A vocabulary in which every piece is frequent: Unigram, pruned by count, bytes only as fallback.

A memory's reading is a list of tokens. Where the vocabulary holds pieces that hardly occur in the text, their
embeddings stay near where they began and fill the readings with noise; so a piece stays only if the encoded training
text uses it often enough.
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
BYTES = [f"<0x{value:02X}>" for value in range(256)]

# A space belongs to the word after it. Letters, digits and signs never share a piece, so the text "<0x41>" cannot be
# taken for the byte piece.
WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}{1,4}| ?[^\s\p{L}\p{M}\p{N}]+|\s"


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """How often each word (with its leading space), number, run of signs or single white space occurs."""
    pattern = regex.compile(WORDS)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(pattern.findall(text))
    return counts


def tokenizer_of(pieces: list[tuple[str, float]]) -> Tokenizer:
    """A Unigram tokenizer over the end-of-text token, the 256 bytes, and these pieces with their log-probabilities."""
    floor = min((score for _, score in pieces), default=0.0) - 20.0
    vocabulary = [(END_OF_TEXT, floor), *((piece, floor) for piece in BYTES), *pieces]
    # Every character outside the vocabulary becomes bytes, so the unknown id is never produced; it needs no token of
    # its own.
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def fit_vocabulary(
    texts: Iterable[str],
    counts: Counter[str],
    *,
    size: int,
    first: int = 16_000,
    word_least: int = 150,
    least: int = 120,
    fragment_weight: float = 0.4,
) -> Tokenizer:
    """Unigram pieces and every common whole word, the least used dropped until `size` remain and each is frequent.

    Unigram training alone keeps stems (" Palestin") that a person reading a list of tokens stumbles over; a whole word
    beats a fragment of up to 1 / `fragment_weight` times its count.

    Args:
        texts: what the first pieces and their probabilities are learned from; a fair sample is enough.
        counts: words of the training text and how often each occurs.
        size: at most this many pieces remain, the bytes and the end-of-text token not counted.
        first: pieces that Unigram training proposes.
        word_least: whole words that occur this often are proposed too.
        least: occurrences in the encoded training text below which a piece goes, whatever the size.
        fragment_weight: what one use of a fragment counts beside one use of a whole word.
    """
    total = counts.total()
    scores = dict(_trained(texts, first))
    for word, count in counts.items():
        if count >= word_least:
            scores[word] = max(scores.get(word, -math.inf), math.log(count / total / 1.4))
    pieces = list(scores.items())
    while True:
        tokenizer = tokenizer_of(pieces)
        used = piece_counts(tokenizer, counts)[len(BYTES) + 1 :]
        is_word = np.array([counts[piece] >= 0.5 * count for (piece, _), count in zip(pieces, used, strict=True)])
        order = np.argsort(used * np.where(is_word, 1.0, fragment_weight), kind="stable")
        rare = [int(i) for i in order if used[i] < least]
        surplus = len(pieces) - size
        if surplus <= 0 and not rare:
            return tokenizer
        # A third at a time: what a dropped piece was used for goes to others, and may lift them over the line.
        n_now = max(len(rare), surplus)
        n_now = max(min(n_now, 100), n_now // 3)
        drop = set((order if surplus > 0 else rare)[:n_now])
        pieces = [piece for i, piece in enumerate(pieces) if i not in drop]


def piece_counts(tokenizer: Tokenizer, counts: Counter[str]) -> np.ndarray:
    """How often each token id occurs in the encoded text that these words were counted in."""
    total = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
    words = list(counts)
    for start in range(0, len(words), 50_000):
        chunk = words[start : start + 50_000]
        for word, encoded in zip(chunk, tokenizer.encode_batch(chunk), strict=True):
            np.add.at(total, encoded.ids, counts[word])
    return total


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


def _trained(texts: Iterable[str], size: int) -> list[tuple[str, float]]:
    """Pieces and log-probabilities of Unigram training, not yet pruned."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    trainer = trainers.UnigramTrainer(vocab_size=size, max_piece_length=20, shrinking_factor=0.8, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    reserved = {END_OF_TEXT, *BYTES, "<unk>"}
    return [
        (piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"] if piece not in reserved
    ]
