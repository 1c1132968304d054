"""Documents as one array of token ids, stored on disk so that a resumed training reads the same tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import regex
from tokenizers import Tokenizer

from tools.training.documents import Document
from tools.training.vocabulary import WORDS
from tools.training.windows import EncodedCorpus
from unembed.results import whole_file


def encode(tokenizer: Tokenizer, documents: Iterable[Document]) -> EncodedCorpus:
    """Token ids of every document, each closed by the end-of-text token (id 0).

    A word is tokenized once and looked up afterwards: pieces never cross words, so this equals encoding the document
    as a whole.
    """
    pattern, known = regex.compile(WORDS), {}
    lines, sources, n_bytes = [], [], []
    end = np.zeros(1, dtype=np.uint16)
    for document in documents:
        words = pattern.findall(document.text)
        new = list({word for word in words if word not in known})
        for word, encoded in zip(new, tokenizer.encode_batch(new), strict=True):
            known[word] = np.array(encoded.ids, dtype=np.uint16)
        lines.append(np.concatenate([*(known[word] for word in words), end]))
        sources.append(document.source)
        n_bytes.append(len(document.text.encode()))
    return EncodedCorpus(
        tokens=np.concatenate(lines),
        lengths=np.array([len(line) for line in lines]),
        sources=np.array(sources),
        n_bytes=np.array(n_bytes),
        vocabulary=hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:16],
    )


def save(corpus: EncodedCorpus, path: Path) -> None:
    """Write the corpus whole, as NumPy arrays."""
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            tokens=corpus.tokens,
            lengths=corpus.lengths,
            source=corpus.sources,
            bytes=corpus.n_bytes,
            vocabulary=np.array(corpus.vocabulary),
        )


def load(path: Path) -> EncodedCorpus:
    """What `save` wrote."""
    with np.load(path) as file:
        vocabulary = str(file["vocabulary"]) if "vocabulary" in file else ""
        return EncodedCorpus(file["tokens"], file["lengths"], file["source"], file["bytes"], vocabulary)
