"""Convert between tokens and text, and find tokens that the model never learned."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import cache, cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from unembed.errors import InvalidInput, NotOneToken, UnembedWarning
from unembed.models.chat import Chat, Message, chat_of
from unembed.validation import as_str

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FRAGMENT = re.compile(r"(\\x[0-9a-f]{2})+")
_WORD_MARK = "\u2581"
RARE = 100
"""A token that occurs fewer times than this in training is treated as never learned."""
_OUTLYING = 5.0


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character represents in the vocabulary of byte-level BPE.

    A printable character below U+0100 represents the byte with its own number. Characters from U+0100 on represent the
    other bytes.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(other)}


class Vocabulary:
    """The tokens of a tokenizer: their texts, and which of them are special, unused or incomplete characters."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, d_vocab: int, *, special_tokens: bool = True) -> None:
        """Wrap a transformers tokenizer.

        Args:
            d_vocab: the number of rows of the unembedding; it may be larger than the tokenizer's vocabulary (padding).
            special_tokens: whether to add the tokenizer's special tokens, such as a begin token, to texts.
        """
        self._tokenizer = tokenizer
        self._d_vocab = d_vocab
        self._adds = special_tokens
        self._said: set[str] = set()
        self._roles: dict[tuple[int, ...], tuple[str | None, ...]] = {}

    def encode(self, text: str) -> Int[Tensor, "1 pos"]:
        """Convert a text to token ids.

        Raises:
            InvalidInput: the text is empty, gives no tokens, or is not valid Unicode.
        """
        if text is None or not as_str("prompt", text):
            raise InvalidInput("the prompt is empty", instead="Give at least one word")
        check_unicode(text)
        if self._adds and not self._is_chat(text):
            ids = self._as_meant(text, self._tokenizer(text, verbose=False)["input_ids"])
        else:
            ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) == 0:
            raise InvalidInput("the prompt has no tokens", why=f"the tokenizer converts {text!r} into nothing")
        return torch.tensor([ids], dtype=torch.long)

    def chat(self, messages: str | Sequence[Message], system: str | None = None) -> Chat:
        """Convert a conversation to text and token ids with the chat template; see `unembed.models.chat.chat_of`."""
        made = chat_of(self._tokenizer, messages, system)
        self._roles[made.ids] = made.roles
        return made

    def roles(self, ids: Sequence[int]) -> tuple[str | None, ...] | None:
        """Return the role of each token of a conversation that `chat` converted; None for other token ids.

        Within the tuple, None stands for tokens that the chat template adds.
        """
        return self._roles.get(tuple(ids)) or None

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer has a chat template, which means that the model was trained on conversations."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def is_without_chat(self, texts: Sequence[str]) -> bool:
        """Return True if the tokenizer has a chat template but some of these texts were not made with it."""
        return self.has_chat_template and not all(map(self._is_chat, texts))

    def _is_chat(self, text: str) -> bool:
        """Tell whether a text was made with the chat template, by its start: the template's first special token."""
        return bool(self._opening_token) and text.startswith(self._opening_token)

    @cached_property
    def _opening_token(self) -> str:
        """The special token with which the chat template begins; empty if there is none."""
        if not self.has_chat_template:
            return ""
        try:
            first = chat_of(self._tokenizer, "a").ids[0]
        except (InvalidInput, IndexError):
            return ""
        return str(self._tokenizer.decode([first])) if first in self._tokenizer.all_special_ids else ""

    def _as_meant(self, text: str, ids: list[int]) -> list[int]:
        """Return the token ids without an end token, and with only one begin token.

        A tokenizer that closes every text (BERT's, T5's) would make the model predict what follows the end. The text of
        a chat template already contains its begin token.
        """
        plain = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        closing = self._closing
        if closing and len(ids) > len(plain) and ids[-len(closing) :] == closing:
            self._say_once(
                f"the tokenizer ends every text with {' '.join(self.strings(closing))}, which is left out: "
                "the model continues the text"
            )
            ids = ids[: -len(closing)]
        begin: int | None = self._tokenizer.bos_token_id  # pyright: ignore[reportAssignmentType]
        if begin is not None and ids[:2] == [begin, begin] and plain[:1] == [begin]:
            self._say_once(f"the text begins with {self.strings([begin])[0]}, so the tokenizer's own is left out")
            ids = ids[1:]
        return ids

    @cached_property
    def _closing(self) -> list[int]:
        """The special tokens that the tokenizer appends to every text."""
        plain: list[int] = self._tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
        whole: list[int] = self._tokenizer("a", verbose=False)["input_ids"]  # pyright: ignore[reportAssignmentType]
        starts = [i for i in range(len(whole) - len(plain) + 1) if whole[i : i + len(plain)] == plain]
        closing = whole[starts[0] + len(plain) :] if plain and starts else []
        return closing if set(closing) <= set(self._tokenizer.all_special_ids) else []

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, UnembedWarning, stacklevel=5)

    def encode_all(self, texts: Sequence[str]) -> list[Int[Tensor, " pos"]]:
        """Convert many texts to token ids, as `encode` does; a text without tokens gives an empty tensor, no error."""
        if not texts:
            return []
        encoded = self._tokenizer(list(texts), add_special_tokens=self._adds, verbose=False)["input_ids"]
        n = len(self._closing) if self._adds else 0
        return [torch.tensor(ids[:-n] if n and ids[-n:] == self._closing else ids, dtype=torch.long) for ids in encoded]

    def decode(self, ids: Tensor | Sequence[int]) -> str:
        """Convert token ids to text."""
        return str(self._tokenizer.decode(self._checked(ids)))

    def continuations(self, ids: Int[Tensor, "row pos"], start: int) -> list[str]:
        """Return the text of each row from column `start` on, with a leading space where the text before it needs one.

        Special tokens are left out, except for an unknown word.
        """
        texts = []
        for row in ids.tolist():
            before, content = ([i for i in part if i not in self._silent] for part in (row[:start], row[start:]))
            # Whether a space stands between two tokens can be seen only by decoding them together.
            last = str(self._tokenizer.decode(before[-1:])) if before else ""
            text = str(self._tokenizer.decode(before[-1:] + content))
            texts.append(text[len(last) :] if text.startswith(last) else str(self._tokenizer.decode(content)))
        return texts

    @cached_property
    def _silent(self) -> set[int]:
        """The ids of special tokens that have no text, such as begin, end and padding."""
        tokenizer = self._tokenizer
        unknown = getattr(tokenizer, "unk_token_id", None)
        marks = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        return set(tokenizer.all_special_ids) - ({unknown} if unknown not in marks else set())

    @cached_property
    def _strings(self) -> list[str]:
        special = set(self._tokenizer.all_special_tokens)
        decoded = self._decoded_alone()
        return [piece if piece in special else self._text(i, piece, decoded) for i, piece in enumerate(self._pieces)]

    def _decoded_alone(self) -> list[str] | None:
        """The text of every id, decoded alone in one call; None if the tokenizer can only decode them one by one."""
        tokenizer = self._tokenizer
        own = type(tokenizer)
        is_plain = own.decode is PreTrainedTokenizerBase.decode and own._decode is PreTrainedTokenizerFast._decode  # pyright: ignore[reportPrivateUsage]
        if not is_plain or not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.clean_up_tokenization_spaces:
            return None
        return tokenizer.backend_tokenizer.decode_batch([[i] for i in range(self._d_vocab)], skip_special_tokens=False)

    @cached_property
    def _pieces(self) -> list[str | None]:
        """The string of each id in the tokenizer's vocabulary; None for ids without a token (ids may have gaps)."""
        pieces: list[str | None] = [None] * self._d_vocab
        for piece, i in self._tokenizer.get_vocab().items():
            if 0 <= i < self._d_vocab:
                pieces[i] = piece
        return pieces

    @cached_property
    def has_text(self) -> Bool[Tensor, " d_vocab"]:
        """Mark the ids for which the tokenizer has a token."""
        return torch.tensor([piece is not None for piece in self._pieces])

    def _text(self, i: int, piece: str | None, decoded: Sequence[str] | None) -> str:
        if piece is None:
            return f"<unused {i}>"
        if _BYTE_PIECE.fullmatch(piece):
            byte = int(piece[3:5], 16)
            return chr(byte) if byte < 0x80 else f"\\x{byte:02x}"
        if _WORD_MARK in piece:  # decode() of a single piece drops its leading space in some tokenizers
            return piece.replace(_WORD_MARK, " ")
        text = str(self._tokenizer.decode([i])) if decoded is None else decoded[i]
        if "\ufffd" not in text:
            return text
        alphabet = _byte_alphabet()
        if all(c in alphabet for c in piece):
            return bytes(alphabet[c] for c in piece).decode("utf-8", errors="backslashreplace")
        return text

    @cached_property
    def fragments(self) -> Bool[Tensor, " d_vocab"]:
        """Mark the tokens that are only some bytes of a character, and therefore not text on their own."""
        return torch.tensor([_FRAGMENT.fullmatch(text) is not None for text in self._strings])

    def strings(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return the text of each token."""
        return [self._strings[i] for i in self._checked(ids)]

    def _checked(self, ids: Tensor | Sequence[int]) -> list[int]:
        try:
            flat = torch.as_tensor(ids).flatten().tolist()
            inside = not flat or 0 <= min(flat) <= max(flat) < self._d_vocab
        except (RuntimeError, TypeError, ValueError):
            flat, inside = [], False
        if not inside or any(isinstance(i, float) for i in flat):
            raise InvalidInput("token ids", why=f"they must be whole numbers between 0 and {self._d_vocab - 1}")
        return flat

    @cached_property
    def _by_string(self) -> dict[str, int]:
        return {s: i for i, s in reversed(list(enumerate(self._strings)))}

    def single(self, text: str) -> int:
        """Return the id of the token with this text; if several have it, the one that the tokenizer produces.

        Raises:
            NotOneToken: the text is several tokens or none, or the vocabulary lacks it.
        """
        check_unicode(text, "{} is not one token", NotOneToken)
        ids = self._checked(self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else [])
        found = self._only(text, ids)
        if found is None:
            raise self._not_one(text, ids)
        return found

    def singles(self, texts: Sequence[str]) -> list[int | None]:
        """Return for each text the id that `single` returns, and None where `single` refuses the text."""
        readable = [text for text in texts if not _has_half_characters(text)]
        if not readable:
            return [None] * len(texts)
        encoded = self._tokenizer(readable, add_special_tokens=False)["input_ids"]
        self._checked([ids[0] for ids in encoded if len(ids) == 1])
        found = {text: self._only(text, ids) for text, ids in zip(readable, encoded, strict=True)}
        return [found.get(text) for text in texts]

    def _only(self, text: str, ids: Sequence[int]) -> int | None:
        """Return the id of the token with this text, or None; `ids` are those to which the tokenizer converts it."""
        if len(ids) == 1 and self._strings[ids[0]] == text:
            return ids[0]
        if text in self._by_string:
            return self._by_string[text]
        return ids[0] if len(ids) == 1 and ids[0] != self._tokenizer.unk_token_id else None

    def _not_one(self, text: str, ids: Sequence[int]) -> NotOneToken:
        """Return the error that explains why a text is not one token."""
        if ids and all(i == self._tokenizer.unk_token_id for i in ids):
            return NotOneToken(
                f"{text[:200]!r} is not one token",
                why=f"the vocabulary lacks it, and the tokenizer reads {self._strings[ids[0]]} instead",
                instead="Choose a word of the vocabulary",
            )
        pieces = " + ".join(repr(s) for s in self.strings(ids[:20])) or "nothing"
        pieces += f" and {len(ids) - 20} more" if len(ids) > 20 else ""
        spaced = f" {text}"
        hint = (
            f"Try {spaced!r} with its leading space"
            if not text.startswith(" ") and spaced in self._by_string
            else self._advice(text)
        )
        return NotOneToken(f"{text[:200]!r} is not one token", why=f"it is {pieces}", instead=hint)

    def _advice(self, text: str) -> str:
        """Say what to give instead of a text of several tokens: its first token, if that has at least two letters."""
        words = text.strip()
        if not words:
            return "Give a token"
        first = self.strings(self._tokenizer(f" {words}", add_special_tokens=False)["input_ids"][:1])
        is_sensible = bool(first) and sum(map(str.isalpha, first[0])) > 1
        which = f"such as {first[0]!r}" if is_sensible else "with its leading space if it begins a word"
        return f"Give one token, {which}"


def unlearned_by_counts(counts: Int[Tensor, " known"], d_vocab: int) -> Bool[Tensor, " d_vocab"]:
    """Mark the tokens that occurred fewer than `RARE` times in the training text."""
    rare = torch.ones(d_vocab, dtype=torch.bool)
    n = min(d_vocab, counts.shape[0])
    rare[:n] = counts[:n] < RARE
    return rare


def unlearned_by_embedding(
    rows: Float[Tensor, "d_vocab d_model"], known: Bool[Tensor, " d_vocab"] | None = None
) -> Bool[Tensor, " d_vocab"]:
    """Mark the tokens whose unembedding was not trained: their rows are much closer to the mean row than others.

    A row is marked if the logarithm of its distance from the mean row lies more than 5 robust standard deviations below
    the median. Ids without a token (False in `known`) are always marked.
    """
    known = torch.ones(len(rows), dtype=torch.bool) if known is None else known
    of_tokens = known.to(rows.device)
    distance = (rows.float() - rows.float().mean(dim=0)).norm(dim=-1).clamp_min(1e-12).log()
    middle = distance[of_tokens].median()
    spread = 1.4826 * (distance[of_tokens] - middle).abs().median().clamp_min(1e-3)
    return ((distance < middle - _OUTLYING * spread) | ~of_tokens).cpu()


def _has_half_characters(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def check_unicode(text: str, what: str = "text {}", error: type[InvalidInput] = InvalidInput) -> None:
    """Refuse text that no tokenizer can read: bytes that are not UTF-8, and halves of surrogate pairs.

    Args:
        text: the text. In it, U+DC80 to U+DCFF represent bytes that Python could not decode.
        what: the beginning of the error message; {} stands for the text.
        error: the class of the error.

    Raises:
        InvalidInput: the text is not valid Unicode.
    """
    if not _has_half_characters(text):
        return
    try:
        given = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise error(
            what.format(ascii(text[:60])),
            why="it contains only half of a character (one of a surrogate pair, such as one \\u escape out of two)",
            instead="Give whole characters",
        ) from None
    shown = what.format(repr(given[:60])[1:])
    try:
        given.decode()
    except UnicodeDecodeError as fault:
        raise error(
            shown,
            why=f"it is not UTF-8: byte 0x{given[fault.start]:02X} at offset {fault.start} begins no valid character",
            instead="Convert it, for example with iconv -t UTF-8",
        ) from None
    raise error(
        shown,
        why="it is UTF-8, but the locale makes Python expect another encoding",
        instead="Set PYTHONUTF8=1, or a UTF-8 locale such as LC_ALL=C.UTF-8",
    )
