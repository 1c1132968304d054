"""The commands of the declared analyses: open what the analysis needs, call it, and print what it returns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.analyses import Listing, Needs
from unembed.cli.command import Command, fields_of
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Conversation, Opening, Output
from unembed.cli.progress import ProgressLine
from unembed.cli.stored_index import KnownIndex
from unembed.options import Option, Parameter

if TYPE_CHECKING:
    from unembed import LanguageModel

_SEED = Parameter("seed", "int", Option("Seed of all random choices.", hidden=True))
"""Understood everywhere, shown where a choice is random."""
_PROMPTS = ("prompt", "clean", "corrupted")
"""Parameters that are a text for the model to read, which may be a message of a conversation."""


def command_of(listing: Listing) -> Command:
    """Return the command of an analysis."""
    if listing.needs is Needs.INDEX:
        return _of_index(listing)

    def command(opening: Opening, output: Output, **chosen: Any) -> None:
        conversation = chosen.pop("conversation", None)
        # Before torch is imported: a name that no hub answers for ends here.
        lm = opening.open(chosen["seed"] if _SEED.name in names else 0)
        from unembed.cli.answer import deliver

        if conversation is not None and (read := [name for name in prompts if chosen[name] is not None]):
            chosen.update(zip(read, conversation.texts(lm, [chosen[name] for name in read]), strict=True))
        folder, line = None, ProgressLine()
        for name, kind in given.items():
            if kind == "index":
                folder = chosen[name]
                chosen[name] = KnownIndex(opening, lm, folder)
            elif kind == "edits":
                chosen[name] = chosen[name].edits(lm)
            else:
                chosen[name] = line if kind == "progress" else getattr(opening, kind)
        answer = listing.load().function(_subject(listing.needs, lm), **{name: chosen[name] for name in names})
        line.end()
        deliver(listing, lm, answer, output)
        _print_screen(answer, opening, folder, output)

    names = [one.name for one in listing.parameters]
    given = {one.name: one.kind for one in listing.parameters if one.option.given}
    prompts = [one.name for one in listing.parameters if one.name in _PROMPTS and one.kind == "str"]
    slots: dict[str, Any] = {}
    for one in listing.parameters:
        if one.kind == "index":
            slots[one.name] = replace(one, kind="path")
        elif one.name not in given:
            slots[one.name] = one
    slots |= {name: EditOptions() for name, kind in given.items() if kind == "edits"}
    slots |= {"conversation": Conversation()} if prompts else {}
    slots |= {"opening": Opening(model=listing.model), "output": Output()}
    slots.setdefault(_SEED.name, _SEED)
    return Command(listing.name, command, slots, listing.help, listing.example)


def _of_index(listing: Listing) -> Command:
    def command(folder: Path, model: str | None, output: Output, **chosen: Any) -> None:
        import unembed
        from unembed.cli.answer import deliver
        from unembed.cli.model_loading import opened
        from unembed.models import SHIPPED

        index = unembed.Index.open(folder)
        if model is not None:
            index.attach(opened(model, dtype=index.provenance.dtype))
        answer = listing.load().function(index, **chosen)
        deliver(listing, None, answer, output)
        if index.provenance.model in SHIPPED:  # the place of another model is not known
            _print_screen(answer, Opening(model=index.provenance.model), folder, output)

    folder = Parameter("folder", "path", Option("The index's folder.", metavar="DIR"), required=True, argument=True)
    model = replace(next(one for one in fields_of(Opening()) if one.name == "model"), default=None)
    own = {parameter.name: parameter for parameter in listing.parameters}
    slots = {"folder": folder, **own, "model": model, "output": Output()}
    return Command(listing.name, command, slots, listing.help, listing.example)


def _print_screen(answer: Any, opening: Opening, index: Path | None, output: Output) -> None:
    """Print, below the result, which screen of the explorer shows the same."""
    screen = getattr(answer, "screen", None)
    if screen is not None and output.for_terminal:
        print_explorer_link(opening, screen.name, index=index, edits=screen.edits, **screen.state)


def _subject(needs: Needs, lm: LanguageModel) -> Any:
    """Return the first argument of the function."""
    if needs is Needs.CIRCUITS:
        import unembed

        return unembed.circuits(lm)
    return lm
