"""Declared analyses: the manifest is what the modules declare, and an option means one thing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import pytest

from unembed import analyses
from unembed.analyses import MANIFEST, MODULES, Analysis, Cost, Needs, listings, manifest
from unembed.names import HeadAddress, parse_head
from unembed.options import Option, Top


def declared(function) -> Analysis:
    return Analysis("one", function, Needs.MODEL, Cost.INSTANT)


def test_the_manifest_is_what_the_modules_declare() -> None:
    """`python -m tools.analyses` writes it anew."""
    assert MANIFEST.read_text(encoding="utf-8") == manifest()


def test_the_manifest_gives_back_the_declarations() -> None:
    for listing in listings()[: len(MODULES)]:
        analysis = listing.load()
        assert [replace(p, option=replace(p.option, parse=None)) for p in listing.parameters] == [
            replace(p, option=replace(p.option, parse=None)) for p in analysis.parameters
        ]
        for ours, own in zip(listing.parameters, analysis.parameters, strict=True):
            assert (ours.option.parse is None) == (own.option.parse is None)


def test_a_signature_says_what_the_options_are() -> None:
    def one(
        lm: object,
        head: Annotated[HeadAddress, Option("A head.", parse=parse_head)],
        *,
        top: Top = 3,
        kinds: Annotated[list[str] | None, Option("Kinds.")] = None,
        mode: Annotated[Literal["q", "k"] | None, Option("A mode.")] = None,
        where: Annotated[Path, Option("A folder.")] = Path("x"),
    ) -> None:
        """Do one thing.

        It does it well.

        Args:
            lm: a model.
        """

    listing = declared(one).listing("here")
    head, top, kinds, mode, where = listing.parameters
    assert (head.kind, head.required, head.argument) == ("text", True, True)
    assert (top.kind, top.default, top.option.letter, top.argument) == ("int", 3, "k", False)
    assert (kinds.kind, kinds.repeated, kinds.default) == ("str", True, None)
    assert (mode.choices, mode.default) == (("q", "k"), None)
    assert (where.kind, where.default) == ("path", "x")
    assert listing.help == "Do one thing.\n\nIt does it well."


def test_an_undeclared_option_is_refused() -> None:
    def without_help(lm: object, top: int = 3) -> None: ...

    def of_no_type(lm: object, part: Annotated[complex, Option("A number.")] = 0j) -> None: ...

    with pytest.raises(TypeError, match="'top' has no help"):
        _ = declared(without_help).parameters
    with pytest.raises(TypeError, match="parse="):
        _ = declared(of_no_type).parameters


def test_a_name_of_an_option_means_one_thing_in_all_analyses() -> None:
    meanings: dict[str, set[tuple[str, str, str]]] = {}
    for listing in listings():
        for one in listing.parameters:
            meanings.setdefault(one.name, set()).add((one.option.help, one.kind, one.option.letter))
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_an_entry_point_that_is_no_analysis_is_refused() -> None:
    from importlib.metadata import EntryPoint

    from unembed.errors import InvalidInput

    with pytest.raises(InvalidInput, match="is not an object of the class Analysis"):
        analyses._of_third_party(EntryPoint("x", "unembed.names:parse_head", analyses.GROUP))
