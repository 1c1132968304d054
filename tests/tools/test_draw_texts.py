"""The texts that a reader judges: drawn from the whole package, the same ones from the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import draw_texts

ROOM = '''"""The room."""


def open_door(key: str) -> None:
    """Open the door."""
    # Keys wear out,
    # so a copy is tried too.
    if not key:
        raise InvalidInput("no key", why="#1")


option(help="Which key.")
Key = Annotated[str, Option("The key to try.", "k")]
DOORS = 3
"""Number of
doors."""
'''


def test_a_seed_draws_the_same_texts_and_another_seed_others() -> None:
    assert draw_texts.draw(20, 1) == draw_texts.draw(20, 1)
    assert draw_texts.draw(20, 1) != draw_texts.draw(20, 2)


def test_every_kind_is_drawn_equally_often() -> None:
    kinds = [text.kind for text in draw_texts.draw(40, 3)]
    assert {kind: kinds.count(kind) for kind in draw_texts.KINDS} == dict.fromkeys(draw_texts.KINDS, 10)


def test_texts_are_found_where_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_texts, "PACKAGE", tmp_path / "unembed")
    file = tmp_path / "unembed" / "room.py"
    file.parent.mkdir()
    file.write_text(ROOM)
    found = {(text.kind, text.place): text.text for text in draw_texts.texts_of(file)}
    assert found == {
        ("docstring", "unembed/room.py:1"): "The room.",
        ("docstring", "unembed/room.py:4"): "def open_door(key: str) -> None:\nOpen the door.",
        ("docstring", "unembed/room.py:15"): "DOORS = 3\nNumber of doors.",
        ("error", "unembed/room.py:9"): 'InvalidInput("no key", why="#1")',
        ("help", "unembed/room.py:12"): "Which key.",
        ("help", "unembed/room.py:13"): "The key to try.",
        ("comment", "unembed/room.py:6"): "# Keys wear out,\n# so a copy is tried too.\nif not key:",
    }
