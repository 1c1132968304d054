"""Every file of an index with a bit changed, cut short, or gone: named by `verify`, never answered from, repaired."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.made import World, contents
from unembed.errors import UnembedError
from unembed.index import Index

KINDS = ("changed", "cut", "gone")
QUESTIONS: dict[str, Callable[[Index], Any]] = {
    "triggers": lambda index: index.triggers(1, 3),
    "value": lambda index: index.value_tokens(0, 7),
    "promoting": lambda index: index.promoting(" January"),
    "firing": lambda index: index.firing_on("The first month"),
    "search": lambda index: index.search("first month"),
    "similar": lambda index: index.similar(0, 5),
    "sql triggers": lambda index: index.sql("SELECT * FROM triggers ORDER BY ALL"),
    "sql values": lambda index: index.sql('SELECT * FROM "values" ORDER BY ALL'),
    "sql statistics": lambda index: index.sql("SELECT * FROM statistics ORDER BY ALL"),
    "status": lambda index: {name: value for name, value in index.status().items() if name != "path"},
}


@dataclass(frozen=True)
class Outcome:
    """One damage: to which file, and what came of it.

    Attributes:
        refused: questions answered with one line.
        right: questions answered as by the sound index.
        wrong: questions answered otherwise: a wrong number, or an error that nobody foresaw.
        named: `verify` (for the manifest, opening) said that this file is damaged, and no other.
        repaired: the same build made every byte what it was; a damaged manifest is refused instead.
    """

    file: str
    kind: str
    refused: tuple[str, ...]
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    named: bool
    repaired: bool


def answers(world: World, folder: Path) -> dict[str, str]:
    """What each question is answered with: a result as JSON without the folder's name, or "refused: ..."."""
    return dict(_answers(world, folder))


def _answers(world: World, folder: Path) -> Iterator[tuple[str, str]]:
    for name, ask in QUESTIONS.items():
        try:
            found = ask(Index.open(folder, world.lm))
            yield name, json.dumps(found) if isinstance(found, dict) else found.to_json()
        except UnembedError as error:
            assert "\n" not in str(error)
            yield name, f"refused: {error}"
        except Exception as error:  # what nobody foresaw is what is looked for
            yield name, f"broke: {error!r}"


def tried(world: World, file: str, kind: str, draw: random.Random, expected: dict[str, str]) -> Outcome:
    """One damage to a copy of the index, everything asked, then the build run again."""
    folder = world.folder / "damaged"
    shutil.copytree(world.index, folder)
    try:
        harm(folder / file, kind, draw)
        found = answers(world, folder)
        groups: dict[str, list[str]] = {"refused": [], "right": [], "wrong": []}
        for name, answer in found.items():
            group = "refused" if answer.startswith("refused: ") else "right" if answer == expected[name] else "wrong"
            groups[group].append(name if group != "wrong" else f"{name}: {answer[:200]}")
        named, repaired = _named_and_repaired(world, folder, file)
        return Outcome(file, kind, *(tuple(group) for group in groups.values()), named=named, repaired=repaired)
    finally:
        shutil.rmtree(folder)


def harm(path: Path, kind: str, draw: random.Random) -> None:
    """Change one bit of a random byte, cut a random length off the end, or delete the file."""
    data = bytearray(path.read_bytes())
    if kind == "changed":
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
    elif kind == "cut":
        path.write_bytes(data[: draw.randrange(len(data))])
    else:
        path.unlink()


def _named_and_repaired(world: World, folder: Path, file: str) -> tuple[bool, bool]:
    try:
        index = Index.open(folder, partial=True)
    except UnembedError as error:
        named = file == "manifest.json" and str(folder) in str(error)
        try:
            world.build(folder)
        except UnembedError:
            return named, True
        return named, False
    rows = index.verify().rows()
    named = {row["file"] for row in rows if row["fault"]} == {file} or file == "manifest.json"
    world.build(folder)
    return named, {**contents(folder), "manifest.json": b""} == {**world.built, "manifest.json": b""}
