"""How the shipped part of WordNet is made from the database files of WordNet 3.0 (Debian: `wordnet-base`).

    python -m tools.wordnet_build /usr/share/wordnet src/unembed/concepts/wordnet

Kept: lemmas of one word, their first `SENSES` senses of each part of speech, everything above those senses, how often
each sense was tagged, irregular forms, and the definition (without examples) of each lemma's first sense. Left out:
lemmas of several words, which are no tokens, other senses, and all other relations.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

SENSES = 3
PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
_ABOVE = ("@", "@i", "&")
"""Hypernym, instance hypernym, and the head that a satellite adjective is similar to."""
_LEMMA = re.compile(r"[a-z][a-z'.-]*")


def make(source: Path, target: Path) -> tuple[int, int]:
    """Write `synsets.txt`, `lemmas.txt`, `irregular.txt` and the licence; how many synsets and lemmas they hold."""
    target.mkdir(parents=True, exist_ok=True)
    tagged = _tag_counts(source)
    synsets: dict[tuple[str, str], dict] = {}
    senses: dict[str, list[tuple[str, str]]] = {}
    numbers: dict[tuple[str, str, str], int] = {}
    for part, letter in PARTS.items():
        synsets |= _synsets(source / f"data.{part}", letter)
        for line in _lines(source / f"index.{part}"):
            fields = line.split()
            count, pointers = int(fields[2]), int(fields[3])
            numbers |= {(fields[0], letter, offset): i + 1 for i, offset in enumerate(fields[6 + pointers :])}
            if _LEMMA.fullmatch(fields[0]):
                offsets = fields[6 + pointers : 6 + pointers + min(count, SENSES)]
                senses.setdefault(fields[0], []).extend((letter, offset) for offset in offsets)
    words: dict[tuple[str, str], None] = {}
    todo = [key for keys in senses.values() for key in keys]
    while todo:
        key = todo.pop()
        if key not in words:
            words[key] = None
            todo += [above for _, above in synsets[key]["above"]]
    order = {key: i for i, key in enumerate(sorted(words))}
    described = {keys[0] for keys in senses.values()}
    with (target / "synsets.txt").open("w", encoding="utf-8") as out:
        for key in order:
            entry = synsets[key]
            word = entry["words"][0][0].lower()
            name = f"{word}.{key[0]}.{numbers[word, *key]}"
            above = " ".join(f"{order[to]}{'i' if kind == '@i' else ''}" for kind, to in entry["above"])
            count = sum(tagged[word.lower(), key[0], entry["file"], sense] for word, sense in entry["words"])
            gloss = entry["gloss"].split(";")[0].strip() if key in described else ""
            out.write(f"{name}\t{entry['file']}\t{above}\t{count}\t{gloss}\n")
    with (target / "lemmas.txt").open("w", encoding="utf-8") as out:
        for lemma in sorted(senses):
            out.write(f"{lemma}\t{' '.join(str(order[key]) for key in senses[lemma])}\n")
    with (target / "irregular.txt").open("w", encoding="utf-8") as out:
        for part, letter in PARTS.items():
            for line in (source / f"{part}.exc").read_text(encoding="utf-8").splitlines():
                form, *lemmas = line.split()
                if _LEMMA.fullmatch(form) and lemmas[0] in senses:
                    out.write(f"{form}\t{letter}\t{lemmas[0]}\n")
    header = [
        line.split(maxsplit=1)[1].strip() if len(line.split()) > 1 else ""
        for line in (source / "data.noun").open(encoding="latin-1")
        if line.startswith("  ")
    ]
    (target / "LICENSE.txt").write_text("\n".join(header).strip() + "\n", encoding="utf-8")
    return len(order), len(senses)


def _lines(path: Path) -> list[str]:
    """The lines of a database file, its licence header left out."""
    return [line for line in path.read_text(encoding="latin-1").splitlines() if not line.startswith("  ")]


def _synsets(path: Path, letter: str) -> dict[tuple[str, str], dict]:
    found = {}
    for line in _lines(path):
        data, _, gloss = line.partition(" | ")
        fields = data.split()
        n_words = int(fields[3], 16)
        pairs = zip(fields[4 : 4 + 2 * n_words : 2], fields[5 : 5 + 2 * n_words : 2], strict=True)
        words = [(re.sub(r"\(.*\)", "", word), int(sense, 16)) for word, sense in pairs]
        at = 4 + 2 * n_words
        above = [
            (symbol, ("a" if part == "s" else part, to))
            for symbol, to, part in (fields[i : i + 3] for i in range(at + 1, at + 1 + 4 * int(fields[at]), 4))
            if symbol in _ABOVE
        ]
        # Heads and satellites point at each other; only the way up is kept.
        above = [(symbol, to) for symbol, to in above if symbol != "&" or fields[2] == "s"]
        found[letter, fields[0]] = {"words": words, "file": int(fields[1]), "above": above, "gloss": gloss}
    return found


def _tag_counts(source: Path) -> Counter[tuple[str, str, int, int]]:
    """How often each word was tagged with each sense, by lexicographer's file and number in it."""
    counts: Counter[tuple[str, str, int, int]] = Counter()
    for line in (source / "cntlist.rev").read_text(encoding="latin-1").splitlines():
        key, _, count = line.split()
        lemma, sense = key.split("%")
        kind, file, number = (int(field) for field in sense.split(":")[:3])
        counts[lemma, "nvara"[kind - 1], file, number] += int(count)
    return counts


if __name__ == "__main__":
    print("{} synsets, {} lemmas".format(*make(Path(sys.argv[1]), Path(sys.argv[2]))))
