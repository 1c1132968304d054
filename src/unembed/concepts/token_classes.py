"""The classes that a vocabulary's tokens can belong to, such as months; concepts are chosen from these classes.

Each class is of one kind:

- semantic: a WordNet class of meaning, forms of one word, numbers;
- syntactic: part of speech, inflection, derivation, closed classes of words;
- names: named things of WordNet by their class, given names;
- stopwords: words of little meaning, and punctuation; the papers count them separately;
- form: pieces of words, capitals; not counted, because human annotators would call them noise;
- embedding: clusters of similar token embeddings of the model; not counted, because they are no independent evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Int

from unembed.concepts.token_cleaning import CleanToken, clean
from unembed.concepts.word_lists import CLOSED, GIVEN_NAMES, PREFIXES, STOP_WORDS, SUFFIXES
from unembed.concepts.wordnet import LEXICOGRAPHERS, wordnet

KINDS = ("semantic", "syntactic", "names", "stopwords", "form", "embedding")
COUNTED = ("semantic", "syntactic", "names")
"""Kinds that count as concepts, as in the papers."""
MIN_TOKENS = 4
"""Smallest number of tokens that make a pattern (Geva et al. 2022, appendix A.2)."""
MIN_INFORMATION = 3.5
"""Smallest information content, in bits, of a WordNet class that is used; a class with less contains about a tenth of
all words, or more."""
_RARE_SENSE = 0.1
_CLOSED = {name: frozenset(words.split()) for name, words in CLOSED.items()}
_GIVEN_NAMES = frozenset(GIVEN_NAMES.split())
_PARTS = {"n": "nouns", "v": "verbs", "a": "adjectives", "r": "adverbs"}
_YEAR = re.compile(r"1[0-9]{3}|20[0-9]{2}")


@dataclass(frozen=True, eq=False)
class Classes:
    """All classes with at least `MIN_TOKENS` tokens of a vocabulary, and the classes of every token."""

    tokens: tuple[CleanToken, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    evidence: tuple[str, ...]
    """Where the class comes from: "WordNet person.n.1", "ending -ly", "embedding"."""
    sizes: Int[np.ndarray, " class"]
    """Number of tokens of the vocabulary in each class."""
    starts: Int[np.ndarray, " token_and_one"]
    classes: Int[np.ndarray, " pair"]
    """The classes of token t are `classes[starts[t]:starts[t + 1]]`."""

    def of(self, token: int) -> Int[np.ndarray, " class"]:
        """Return the classes that a token belongs to."""
        return self.classes[self.starts[token] : self.starts[token + 1]]

    @classmethod
    def build(cls, tokens: Sequence[str]) -> Classes:
        """Build the classes of a vocabulary, without those of kind "embedding".

        Args:
            tokens: the text of every token, with its leading space.
        """
        cleaned = clean(tokens)
        members: dict[tuple[str, str, str], list[int]] = {}
        for i, token in enumerate(cleaned):
            for key in _classes_of(token):
                members.setdefault(key, []).append(i)
        large = {key: found for key, found in members.items() if len(found) >= MIN_TOKENS}
        names, kinds, evidence = zip(*large, strict=True) if large else ((), (), ())
        pairs = np.array([(t, c) for c, found in enumerate(large.values()) for t in found], dtype=np.int64)
        return cls._of_pairs(tuple(cleaned), names, kinds, evidence, pairs.reshape(-1, 2))

    def with_neighbours(self, clusters: Int[np.ndarray, " token"]) -> Classes:
        """Return these classes with clusters of token embeddings added as classes of kind "embedding".

        Args:
            clusters: the cluster of every token's embedding.
        """
        sizes = np.bincount(clusters)
        large = np.flatnonzero(sizes >= MIN_TOKENS)
        number = np.full(len(sizes), -1)
        number[large] = len(self.names) + np.arange(len(large))
        tokens = np.flatnonzero(number[clusters] >= 0)
        own = np.repeat(np.arange(len(self.tokens)), np.diff(self.starts))
        pairs = np.concatenate(
            [np.stack([own, self.classes], axis=1), np.stack([tokens, number[clusters[tokens]]], axis=1)]
        )
        return self._of_pairs(
            self.tokens,
            (*self.names, *(f"neighbours {n}" for n in large.tolist())),
            (*self.kinds, *["embedding"] * len(large)),
            (*self.evidence, *["cluster of the embedding"] * len(large)),
            pairs,
        )

    @classmethod
    def _of_pairs(
        cls,
        tokens: tuple[CleanToken, ...],
        names: tuple[str, ...],
        kinds: tuple[str, ...],
        evidence: tuple[str, ...],
        pairs: Int[np.ndarray, "pair 2"],
    ) -> Classes:
        """Build classes from pairs (token id, class number), in any order; class numbers are indices into `names`."""
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        starts = np.searchsorted(pairs[:, 0], np.arange(len(tokens) + 1))
        sizes = np.bincount(pairs[:, 1], minlength=len(names))
        return cls(tokens, names, kinds, evidence, sizes, starts, pairs[:, 1].copy())


def _classes_of(token: CleanToken) -> Iterator[tuple[str, str, str]]:
    if token.kind == "punctuation":
        yield "punctuation", "stopwords", "characters"
    elif token.kind == "number":
        yield "numbers", "semantic", "digits"
        if _YEAR.fullmatch(token.text):
            yield "years", "semantic", "digits"
        if token.text.endswith("s"):
            yield "decades", "semantic", "digits"
        if token.text[-2:] in ("st", "nd", "rd", "th"):
            yield "ordinal numbers", "semantic", "digits"
    elif token.kind == "piece":
        yield "pieces inside words", "form", "no space before it"
    if token.kind in ("word", "piece") and token.capitalised:
        yield "capitalised", "form", "capital"
        if token.text.isupper() and len(token.text) > 1:
            yield "all capitals", "form", "capitals"
    if token.word is not None:
        yield from _word_classes(token.word, token.capitalised)


@cache
def _word_classes(word: str, capitalised: bool) -> tuple[tuple[str, str, str], ...]:
    found: dict[tuple[str, str, str], None] = {}
    closed = False
    for name, words in _CLOSED.items():
        if word in words:
            found[name, "syntactic", "list of a closed class"] = None
            # Function words get no WordNet classes, because WordNet would list "He" as helium. Capitalised modal verbs
            # are an exception: "May" is also a month, and "Will" a name.
            closed = closed or not (capitalised and name == "modal verbs")
    if word in STOP_WORDS:
        found["stop words", "stopwords", "list of stop words"] = None
    if capitalised and word in _GIVEN_NAMES:
        found["given names", "names", "list of given names"] = None
    if closed or len(word) < 2:
        return tuple(found)
    for key in _meanings(word, capitalised):
        found[key] = None
    for key in _grammar(word):
        found[key] = None
    return tuple(found)


def _meanings(word: str, capitalised: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the WordNet classes that contain the word in its common senses, as (name, kind, evidence)."""
    net = wordnet()
    senses = net.senses(word)
    total = sum(int(net.counts[s]) + 1 for s in senses)
    usual = [s for s in senses if net.counts[s] + 1 >= _RARE_SENSE * total and (capitalised or not net.instance[s])]
    information = net.information
    for sense in usual:
        kind = "names" if net.instance[sense] else "semantic"
        above = net.ancestors(sense)
        for synset in above:
            if synset != sense and net.instance[synset]:
                continue
            if information[synset] >= MIN_INFORMATION and not (net.instance[sense] and synset == sense):
                name = net.names[synset]
                yield name.rsplit(".", 2)[0].replace("_", " "), kind, f"WordNet {name}"
        if not net.instance[sense] and net.files[sense] not in (0, 1, 2, 3):
            file = LEXICOGRAPHERS[net.files[sense]]
            yield file, "semantic", f"WordNet lexicographer file {net.files[sense]}"
    for form in dict.fromkeys(net.base_forms(word).values()):
        yield f"forms of '{form}'", "semantic", "one base form"


def _grammar(word: str) -> Iterator[tuple[str, str, str]]:
    """Yield the word's classes by part of speech (the most frequent one), inflection and derivation."""
    net = wordnet()
    forms = net.base_forms(word)
    if not forms:
        return
    weight = {
        part: sum(int(net.counts[s]) + 1 for s in net.lemmas[form] if net.names[s].rsplit(".", 2)[1] == part)
        for part, form in forms.items()
    }
    inflected = forms.get("v", word) != word and (not word.endswith("s") or weight["v"] >= weight.get("n", 0))
    part = "v" if inflected else max(weight, key=lambda p: weight[p])
    yield _PARTS[part], "syntactic", "part of speech"
    if inflected:
        end = "-ing" if word.endswith("ing") else "-s" if word.endswith("s") else "past"
        name = {"-ing": "verbs in -ing", "-s": "verbs in -s", "past": "past forms of verbs"}[end]
        yield name, "syntactic", "inflection"
    elif part == "v":
        yield "base forms of verbs", "syntactic", "inflection"
    if forms.get("n", word) != word and word.endswith("s"):
        yield "plural nouns", "syntactic", "inflection"
    if forms.get("a", word) != word:
        yield "comparatives and superlatives", "syntactic", "inflection"
    for name, end in SUFFIXES.items():
        if word.endswith(end) and len(word) > 5 and name.startswith(("words", _PARTS[part])):
            yield name, "syntactic", "ending"
    for start in PREFIXES:
        if word.startswith(start) and len(word) > len(start) + 2 and net.base_forms(word[len(start) :]):
            yield f"words with {start}-", "syntactic", "beginning"
