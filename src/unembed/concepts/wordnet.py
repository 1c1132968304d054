"""The part of WordNet 3.0 that is needed for single words: senses, hypernyms, information content, definitions.

The files are a part of WordNet (see `tools/wordnet_build.py`), shipped under its own licence (`wordnet/LICENSE.txt`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from jaxtyping import Float, Int

_FILE_NAMES = (
    "adjective, adjective of relation, adverb, top noun, act, animal, artifact, attribute, body part, cognition, "
    "communication, event, feeling, food, group, location, motive, object, person, phenomenon, plant, possession, "
    "process, quantity, relation, shape, state, substance, time, verb of body, verb of change, verb of cognition, "
    "verb of communication, verb of competition, verb of consumption, verb of contact, verb of creation, verb of "
    "emotion, verb of motion, verb of perception, verb of possession, verb of social life, verb of being, verb of "
    "weather, participial adjective"
)
LEXICOGRAPHERS = tuple(_FILE_NAMES.split(", "))
"""Names of WordNet's 45 lexicographer files, by number."""

_RULES = {
    "n": (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "v": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}
"""Endings that WordNet's own morphology removes (morphy)."""


@dataclass(frozen=True, eq=False)
class WordNet:
    """WordNet's synsets (sets of synonyms) by number, and the synsets of each word."""

    names: list[str]
    """Name of each synset, such as `city.n.1`: its first word, part of speech (n, v, a, r) and number of the sense."""
    files: Int[np.ndarray, " synset"]
    """For each synset, the number of its lexicographer file: an index into `LEXICOGRAPHERS`."""
    above: list[tuple[int, ...]]
    """Hypernyms of each synset; for a satellite adjective, the adjective to which it is similar."""
    instance: list[bool]
    """For each synset, whether it is one named thing (a city, a person) rather than a class."""
    counts: Int[np.ndarray, " synset"]
    """For each synset, how often words in WordNet's own corpora were tagged with it."""
    glosses: list[str]
    lemmas: dict[str, list[int]]
    irregular: dict[tuple[str, str], str]

    def base_forms(self, word: str) -> dict[str, str]:
        """Return the base form of a lower-case word for each part of speech that WordNet lists it as.

        As in WordNet's morphy, irregular forms are tried first, then the word itself, then the word without its ending.
        """
        found = {}
        for part, rules in _RULES.items():
            candidates = [self.irregular.get((word, part), ""), word]
            candidates += [word[: -len(end)] + new for end, new in rules if word.endswith(end) and len(word) > len(end)]
            for form in candidates:
                if any(self.names[s].rsplit(".", 2)[1] == part for s in self.lemmas.get(form, ())):
                    found[part] = form
                    break
        return found

    def senses(self, word: str) -> list[int]:
        """Return the synsets of a lower-case word: all parts of speech, inflected forms included."""
        out: list[int] = []
        for part, form in self.base_forms(word).items():
            out += [s for s in self.lemmas[form] if self.names[s].rsplit(".", 2)[1] == part]
        return list(dict.fromkeys(out))

    def ancestors(self, synset: int) -> frozenset[int]:
        """Return a synset and all its direct and indirect hypernyms."""
        found = {synset}
        todo = [synset]
        while todo:
            for above in self.above[todo.pop()]:
                if above not in found:
                    found.add(above)
                    todo.append(above)
        return frozenset(found)

    @property
    def information(self) -> Float[np.ndarray, " synset"]:
        """The information content of each synset in bits: -log2 of its share of the tagged words of its part of speech.

        A word tagged with a synset counts for all hypernyms of that synset, too. One is added to the count of each
        sense, so that no share is 0. Source: Resnik 1995.
        """
        return _information(self)

    def definition(self, word: str) -> str | None:
        """Return the definition of a word's most frequent sense; None if WordNet does not have the word."""
        described = [s for s in self.senses(word.lower()) if self.glosses[s]]
        return self.glosses[max(described, key=lambda s: self.counts[s])] if described else None


@cache
def _information(wordnet: WordNet) -> np.ndarray:
    mass = np.zeros(len(wordnet.names))
    for synset, count in enumerate(wordnet.counts.tolist()):
        for above in wordnet.ancestors(synset):
            mass[above] += count + 1
    parts = np.array([name.rsplit(".", 2)[1] for name in wordnet.names])
    out = np.empty(len(mass))
    for part in "nvar":
        here = parts == part
        out[here] = -np.log2(mass[here] / (wordnet.counts[here] + 1).sum())
    return np.maximum(out, 0.0)


@cache
def wordnet() -> WordNet:
    """Return the shipped WordNet, which is read once (about half a second)."""
    folder = files("unembed.concepts") / "wordnet"
    rows = [line.split("\t") for line in (folder / "synsets.txt").read_text(encoding="utf-8").splitlines()]
    above = [row[2].split() for row in rows]
    lemmas = {}
    for line in (folder / "lemmas.txt").read_text(encoding="utf-8").splitlines():
        lemma, _, synsets = line.partition("\t")
        lemmas[lemma] = [int(s) for s in synsets.split()]
    irregular = {}
    for line in (folder / "irregular.txt").read_text(encoding="utf-8").splitlines():
        form, part, lemma = line.split("\t")
        irregular[form, part] = lemma
    return WordNet(
        names=[row[0] for row in rows],
        files=np.array([int(row[1]) for row in rows]),
        above=[tuple(int(s.rstrip("i")) for s in synsets) for synsets in above],
        instance=[bool(synsets) and all(s.endswith("i") for s in synsets) for synsets in above],
        counts=np.array([int(row[3]) for row in rows]),
        glosses=[row[4] for row in rows],
        lemmas=lemmas,
        irregular=irregular,
    )
