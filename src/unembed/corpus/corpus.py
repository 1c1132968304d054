"""A corpus: where its text comes from, how it is segmented, and its fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from unembed.corpus.hub import PREFIX, HubData
from unembed.corpus.markup import detokenized
from unembed.corpus.moses import moses_tokenized
from unembed.corpus.readers import SHIPPED, Reading, documents_of, paths_of
from unembed.errors import CorpusUnreadable, InvalidInput
from unembed.validation import as_str, as_tuple, one_of, positive_int

if TYPE_CHECKING:  # a corpus is opened without torch
    from unembed.corpus.segments import Batch, Document, Encoder, Segment
    from unembed.corpus.token_stream import TokenStream


MOST_TOKENIZED = 1 << 22
"""Largest number of tokens of a text that `Corpus.tokenized` stores (16 MB)."""


@dataclass(frozen=True)
class Corpus:
    """A collection of documents, and how they are split into segments. Create one with `open_corpus`."""

    name: str
    files: tuple[Path, ...]
    texts: tuple[str, ...]
    reading: Reading = field(default_factory=Reading)
    segmentation: str = "sentences"
    window: int | None = None
    overlap: int | None = None
    detokenize: bool = False
    max_documents: int | None = None
    hub: HubData | None = None
    moses: bool = False
    tokenized: dict[tuple[object, ...], TokenStream] | None = field(default=None, compare=False, repr=False)
    """Cached tokens of the text, by tokenizer and segmentation. `segments` fills and reads the cache, so that a text is
    tokenised only once; if it is None, a text is tokenised at every call. Copies made by `dataclasses.replace` share
    the cache."""

    def documents(self) -> Iterator[Document]:
        """Yield every document in order; documents without text are left out.

        Raises:
            CorpusUnreadable: a file cannot be read or decoded, or there is no text at all.
        """
        from unembed.corpus.segments import Document

        number, begin = 0, 0.0
        for name, text, end in islice(self._named_texts(), self.max_documents):
            end = end if self.max_documents is None else (number + 1) / self.max_documents
            yield Document(number, name, self._written(text), (begin, end))
            number, begin = number + 1, end
        if number == 0:
            raise CorpusUnreadable(f"corpus {self.name}", why="it contains no text", instead="Give one with text")

    def _written(self, text: str) -> str:
        if self.moses:
            return moses_tokenized(text)
        return detokenized(text) if self.detokenize else text

    def _named_texts(self) -> Iterator[tuple[str, str, float]]:
        """Yield (name, text, share of the corpus up to the document's end) of each document that is not empty."""
        for number, text in enumerate(self.texts):
            if text.strip():
                yield f"text {number}", text, (number + 1) / len(self.texts)
        if self.hub is not None:
            yield from (document for document in self.hub.documents() if document[1].strip())
        sizes = [path.stat().st_size for path in self.files] if self.files else []
        whole, before = max(sum(sizes), 1), 0
        for path, size in zip(self.files, sizes, strict=True):
            for name, text, share in documents_of(path, self.reading):
                if text.strip():
                    yield name, text, (before + share * size) / whole
            before += size

    def segments(self, encoder: Encoder, documents: Iterator[Document] | None = None) -> Iterator[Segment]:
        """Yield every segment in order, tokenised for a model.

        With segmentation "sentences", each sentence is a segment. A sentence longer than the window is split into
        overlapping windows with the same sentence number; statistics count a token that is in two windows once.

        Args:
            encoder: the model, or another object with its tokenizer and context length.
            documents: the documents to split; `documents()` when None.
        """
        from unembed.corpus.segmentation import segments_of

        by_sentence = self.segmentation == "sentences"
        read = self.documents() if documents is None else documents
        made = segments_of(read, encoder, self.window, self.overlap, by_sentence=by_sentence)
        if documents is None and self.tokenized is not None:
            return self._tokenised_once(self.tokenized, encoder, made)
        return made

    def _tokenised_once(
        self, tokenized: dict[tuple[object, ...], TokenStream], encoder: Encoder, made: Iterator[Segment]
    ) -> Iterator[Segment]:
        """Yield the stored segments; if there are none, yield those of `made`, and store them if there is room.

        There is room for `MOST_TOKENIZED` tokens.
        """
        from unembed.corpus.segmentation import leading
        from unembed.corpus.token_stream import TokenStream

        cut = (self.segmentation, self.window, self.overlap, self.max_documents, self.detokenize, self.moses)
        key = (getattr(encoder, "tokenizer", encoder), encoder.n_ctx, tuple(leading(encoder)), *cut)
        if key in tokenized:
            yield from tokenized[key].segments()
            return
        read: list[Segment] = []
        tokens = 0
        for segment in made:
            yield segment
            tokens += len(segment)
            if tokens <= MOST_TOKENIZED:
                read.append(segment)
            else:
                read.clear()
        if read:
            tokenized[key] = TokenStream.of(read)

    def batches(self, encoder: Encoder, tokens: int = 2048, ahead: int = 256) -> Iterator[Batch]:
        """Yield batches of segments with similar lengths; the batches are the same in every run.

        Args:
            tokens: largest number of tokens in a batch, padding included; one long segment can have more.
            ahead: number of batches whose segments are sorted by length together; a larger number means less padding.
        """
        from unembed.corpus.batches import bucketed

        return bucketed(self.segments(encoder), positive_int("tokens", tokens), positive_int("ahead", ahead))

    @cached_property
    def fingerprint(self) -> str:
        """The first 16 hexadecimal digits of a SHA-256 hash of the content and segmentation; this reads all files."""
        digest = hashlib.sha256()
        cut = (self.segmentation, self.window, self.overlap, self.detokenize, self.max_documents, self.reading)
        digest.update(repr(cut if not self.moses else (*cut, "moses")).encode())
        if self.hub is not None:
            digest.update(self.hub.fingerprint())
        for text in self.texts:
            digest.update(b"text" + len(text).to_bytes(8, "big") + text.encode(errors="surrogatepass"))
        for path in self.files:
            digest.update(path.suffix.encode() + path.stat().st_size.to_bytes(8, "big"))
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()[:16]

    def describe(self) -> dict[str, object]:
        """Return name, files, options and fingerprint of the corpus as JSON values, for manifests and provenance."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "files": [str(path) for path in self.files],
            "texts": len(self.texts),
            "segmentation": self.segmentation,
            "window": self.window,
            "overlap": self.overlap,
            "detokenize": self.detokenize,
            "moses": self.moses,
            "max_documents": self.max_documents,
            "column": self.reading.column,
            "errors": self.reading.errors,
            "markup": self.reading.markup,
        }


CorpusSource = Corpus | str | Path | Sequence[str] | None
"""A corpus, or anything that `open_corpus` can open as one."""


def open_corpus(
    source: CorpusSource = None,
    *,
    segmentation: str = "sentences",
    window: int | None = None,
    overlap: int | None = None,
    column: str = "text",
    errors: str = "strict",
    markup: str = "auto",
    detokenize: bool = False,
    moses: bool = False,
    max_documents: int | None = None,
) -> Corpus:
    """Open a corpus. The contents of its files are not read yet.

    Args:
        source: None or "shipped" for the WikiText-103 validation text that ships with unembed; a file (.jsonl and
            .parquet have their own formats, others are plain text), a folder, or a pattern such as "data/*.jsonl";
            "datasets:NAME:CONFIG:SPLIT" for a data set that is streamed from the Hugging Face hub; or a list of texts,
            each a document. A `Corpus` is returned unchanged.
        segmentation: "sentences", so that the model reads each sentence separately, as in Geva et al. 2021, section 3;
            or "windows", which splits documents into overlapping windows.
        window: largest number of tokens in a segment; when None, the model's context length, but at most 1,024.
        overlap: number of tokens that a window repeats from the one before it as context; a quarter of the window when
            None.
        column: the field of JSON lines or Parquet that contains the text.
        errors: what to do with bytes that are not UTF-8: "strict" (an error), "replace" or "ignore".
        markup: "wikitext" to split files at the titles of WikiText articles, "plain" not to split them, "auto" to split
            those that begin with such a title.
        detokenize: convert the spacing of WikiText (` @-@ `, ` , `) to that of ordinary text; Geva et al. did not.
        moses: tokenise with Moses first (needs sacremoses), as the code released by Geva et al. did for WikiLM.
        max_documents: largest number of documents to read; all when None.

    Raises:
        CorpusUnreadable: there is no such file.
        InvalidInput: an option has an invalid value.
        ExtraMissing: `moses` without sacremoses, when the text is read.
    """
    if isinstance(source, Corpus):
        return source
    for name, value, allowed in (
        ("segmentation", segmentation, ("sentences", "windows")),
        ("errors", errors, ("strict", "replace", "ignore")),
        ("markup", markup, ("auto", "wikitext", "plain")),
    ):
        one_of(name, value, allowed)
    if window is not None:
        window = positive_int("window", window, 2)
    if overlap is not None and (positive_int("overlap", overlap, 0) < 0 or (window is not None and overlap >= window)):
        raise InvalidInput(f"overlap={overlap}", why="it must be at least 0 and smaller than the window")
    if max_documents is not None:
        max_documents = positive_int("max_documents", max_documents)
    reading = Reading(as_str("column", column), errors, markup)
    if detokenize and moses:
        raise InvalidInput("both detokenize and moses", why="one reverses the other", instead="Choose one")
    rest = (reading, segmentation, window, overlap, detokenize, max_documents)
    if source is None or (isinstance(source, str) and source == "shipped"):
        return Corpus("wikitext-103 validation", (Path(str(SHIPPED)),), (), *rest, moses=moses)
    if isinstance(source, str) and source.startswith(PREFIX):
        return Corpus(source, (), (), *rest, HubData.parse(source, column), moses)
    if isinstance(source, str | Path):
        return Corpus(str(source), tuple(paths_of(source)), (), *rest, moses=moses)
    texts = as_tuple("texts", source)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidInput("corpus", why="an item of the list is not a string", instead="Give a list of strings")
    if not any(text.strip() for text in texts):
        raise CorpusUnreadable("corpus in memory", why="it contains no text", instead="Give at least one text")
    return Corpus("texts in memory", (), texts, *rest, moses=moses)
