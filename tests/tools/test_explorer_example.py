"""The bundled example is what the library computes today."""

from __future__ import annotations

import json

from tests.server.closeness import close

import unembed
from tools import explorer_example as example


def test_the_example_is_what_the_library_computes() -> None:
    stored, now = json.loads(example.FILE.read_text()), example.example(unembed.load())
    for found in (stored, now):
        del found["trace"]["provenance"], found["position"]["provenance"]
    close(stored, now, rel=1e-3, abs_=1e-4)  # five digits are stored
