"""Write the mixed text of the published atlas: encyclopaedia, fiction, speech and code, as JSON lines.

    python -m tools.atlas_texts OUT.jsonl SHARD.jsonl.xz [SHARD.jsonl.xz ...]

The shards are those of wren's training corpus (one JSON object a line, with `source`, `title` and `text`). Only sources
that may be passed on under CC BY-SA, or freely, are used. The code is the Python standard library of the interpreter
that runs this (PSF licence). Each document is one passage of at most `CHARACTERS` characters, cut at the end of a line
or a sentence, so that a window of 512 tokens holds it whole. The order is drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

CHARACTERS = 1_800
WANTED = {"wikipedia": 780_000, "books": 640_000, "speeches": 280_000, "wikinews": 160_000, "code": 520_000}
"""Characters of each source."""


def passages(text: str, size: int = CHARACTERS) -> Iterator[str]:
    """Cut a text into passages of at most `size` characters, each ending at a line or sentence where there is one."""
    start = 0
    while start < len(text):
        end = min(len(text), start + size)
        if end < len(text):
            breaks = [text.rfind(mark, start + size // 2, end) for mark in ("\n", ". ")]
            end = max([*breaks, -1]) + 1 or end
        if piece := text[start:end].strip("\n"):
            yield piece
        start = end


def shard_passages(shards: Iterable[Path]) -> Iterator[tuple[str, str, str]]:
    """Yield source, title and one passage of every document of the shards: its first."""
    for path in shards:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                document = json.loads(line)
                if document["source"] in WANTED:
                    yield document["source"], document["title"], next(passages(document["text"]))


def code_passages(seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield passages of the standard library's modules: at most four of each, in a drawn order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py"))
    files = [file for file in files if not {"test", "tests", "site-packages", "idlelib"} & {*file.parts}]
    random.Random(seed).shuffle(files)
    for file in files:
        pieces = list(passages(file.read_text(encoding="utf-8", errors="ignore")))
        for piece in random.Random(f"{seed} {file.name}").sample(pieces, min(4, len(pieces))):
            yield "code", file.relative_to(folder).as_posix(), piece


def chosen(found: Iterable[tuple[str, str, str]], seed: int) -> list[dict[str, str]]:
    """Return passages until each source has the characters that are wanted, in a drawn order."""
    left, rows = dict(WANTED), []
    for source, title, text in found:
        if len(text) > 200 and left.get(source, 0) > 0:
            left[source] -= len(text)
            rows.append({"source": source, "title": title, "text": text})
    random.Random(seed).shuffle(rows)
    return rows


def main() -> None:
    """Write the file, and print the characters of each source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("shards", type=Path, nargs="+")
    options = parser.parse_args()
    rows = chosen([*shard_passages(sorted(options.shards)), *code_passages(0)], seed=0)
    with options.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row["source"]] = sizes.get(row["source"], 0) + len(row["text"])
    print(f"{len(rows)} passages: " + ", ".join(f"{name} {size:,}" for name, size in sorted(sizes.items())))


if __name__ == "__main__":
    main()
