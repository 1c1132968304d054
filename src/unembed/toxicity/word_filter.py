"""Ban words from generated text, however the tokenizer splits them.

The argument `bad_words_ids` of `transformers` bans token sequences: it does not ban a word in another case, without its
leading space, or tokenised in another way, but it bans harmless words that contain the sequence. This filter looks at
the text instead: a token is banned if the text with it would end in a banned word, or contain one as a whole word. A
banned word that could become the start of a longer word with the next token ("ass" in "assassin") is banned too,
because a token cannot be taken back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from unembed.errors import InvalidInput, reading
from unembed.models.vocabulary import Vocabulary

_HEX = re.compile(r"(?:\\x[0-9a-f]{2})+")
_SPACES = bytes.maketrans(b"\t\n\r\v\f", b"     ")


def is_word_byte(byte: int) -> bool:
    """Return whether a byte can be part of a word: letters, digits, underscore, and bytes outside ASCII."""
    return byte >= 0x80 or chr(byte).isalnum() or byte == 0x5F


def token_bytes(tokenizer: Any) -> list[bytes]:
    """Return the bytes of each token's text, in lower case, with spaces for white space; empty for special tokens."""
    size = len(tokenizer)
    special = set(tokenizer.all_special_ids)
    found = []
    for i, text in enumerate(Vocabulary(tokenizer, size).strings(range(size))):
        if i in special:
            found.append(b"")
        elif _HEX.fullmatch(text):
            found.append(bytes.fromhex(text.replace("\\x", "")).translate(_SPACES))
        else:
            found.append(text.lower().encode("utf-8", "replace").translate(_SPACES))
    return found


class WordFilter(LogitsProcessor):
    """A logits processor that sets the logit of every token that would complete a banned word to minus infinity.

    It works in any `transformers` generation: `model.generate(..., logits_processor=[WordFilter(words, tokenizer)])`.
    """

    def __init__(self, words: Iterable[str], tokenizer: Any) -> None:
        """Compute, for each beginning of a banned word, which tokens complete the word.

        Args:
            words: words or phrases; case does not matter.
            tokenizer: the tokenizer of the model that will generate.

        Raises:
            InvalidInput: no words.
        """
        banned = {w.strip().lower().encode(errors="surrogatepass").translate(_SPACES) for w in words if w.strip()}
        if not banned:
            raise InvalidInput("a word filter without words", instead="Give at least one")
        self._bytes = token_bytes(tokenizer)
        self._longest = max(map(len, banned))
        self._words = banned
        # Maps each beginning of a banned word to all that can follow it; b"" is mapped to all banned words.
        self._rest: dict[bytes, list[bytes]] = {}
        for word in banned:
            for k in range(len(word)):
                self._rest.setdefault(word[:k], []).append(word[k:])
        self._completing: dict[bytes, list[int]] = {}
        always = []
        rests = {rest for found in self._rest.values() for rest in found}
        for i, text in enumerate(self._bytes):
            for k in range(1, min(len(text), self._longest) + 1):
                if text[:k] in rests and (k == len(text) or not (is_word_byte(text[k - 1]) and is_word_byte(text[k]))):
                    self._completing.setdefault(text[:k], []).append(i)
            if self._inside(text):
                always.append(i)
        self._always = torch.tensor(always, dtype=torch.long)

    def _inside(self, text: bytes) -> bool:
        """Return whether a token contains a whole banned word that starts after its first byte."""
        return any(
            text[start : start + size] in self._words and self._bounded(text, start, start + size)
            for start in range(1, len(text))
            for size in range(1, min(self._longest, len(text) - start) + 1)
        )

    @staticmethod
    def _bounded(text: bytes, start: int, end: int) -> bool:
        left = start == 0 or not (is_word_byte(text[start - 1]) and is_word_byte(text[start]))
        right = end == len(text) or not (is_word_byte(text[end - 1]) and is_word_byte(text[end]))
        return left and right

    def banned_after(self, ids: list[int]) -> list[int]:
        """Return the tokens that are banned after this text, without those that are banned after any text."""
        tail, at = b"", len(ids)
        while at > 0 and len(tail) <= self._longest:
            at -= 1
            tail = (self._bytes[ids[at]] if ids[at] < len(self._bytes) else b"") + tail
        found: list[int] = []
        for k in range(min(self._longest - 1, len(tail)) + 1):
            begun = tail[len(tail) - k :] if k else b""
            for rest in self._rest.get(begun, ()):
                before = tail[len(tail) - k - 1] if len(tail) > k else None
                first = begun[0] if begun else rest[0]
                if before is None or not (is_word_byte(before) and is_word_byte(first)):
                    found += self._completing.get(rest, ())
        return found

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return a copy of the scores with banned tokens at minus infinity."""
        scores = scores.clone()
        scores[:, self._always.to(scores.device)] = -torch.inf
        for row, ids in enumerate(input_ids.tolist()):
            if banned := self.banned_after(ids):
                scores[row, torch.tensor(banned, device=scores.device)] = -torch.inf
        return scores


def read_words(path: str | Path) -> list[str]:
    """Read the words of a file, one on each line.

    Raises:
        InvalidInput: the file cannot be read or holds no word.
    """
    with reading(f"cannot read words from {path}", instead="Write one word on each line"):
        words = [w for line in Path(path).read_text(encoding="utf-8-sig").split("\n") if (w := line.strip())]
    if not words:
        raise InvalidInput(f"{path} contains no words", instead="Write one word on each line")
    return words
