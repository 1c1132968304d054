"""Make the commands of the analyses in `unembed.analyses`: load the model or index, call the analysis, print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.analyses import Listing, Needs
from unembed.cli.command import Command, fields_of
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Conversation, Opening, Output
from unembed.cli.progress import ProgressLine
from unembed.cli.prompts import PromptTexts
from unembed.cli.stored_index import KnownIndex, NamedModel
from unembed.options import Option, Parameter

if TYPE_CHECKING:
    from unembed.document import Answer
    from unembed.index.index import Index

_SEED = Parameter("seed", "int", Option("Seed of all random choices.", hidden=True))
"""Every command accepts --seed; help lists it only for commands with random choices."""
_PROMPTS = ("prompt", "clean", "corrupted")
"""Parameters that are a prompt; with --chat, each is sent as a user's message."""
_FOLDER = Parameter("folder", "path", Option("Folder of the index.", metavar="DIR"), required=True, argument=True)


def command_of(listing: Listing) -> Command:
    """Return the command of an analysis."""
    own: dict[str, Any] = {one.name: one for one in listing.parameters if not one.option.given}
    match listing.needs:
        case Needs.INDEX:
            model = replace(next(one for one in fields_of(Opening()) if one.name == "model"), default=None)
            slots = {"folder": _FOLDER, **own, "model": model}
            function = _on_index(listing)
        case Needs.FILES_OF_INDEX:
            slots, function = {"folder": _FOLDER, **own}, _on_files_of_index(listing)
        case Needs.NOTHING:
            slots, function = own, _alone(listing)
        case _:
            slots, function = _slots_of_model(listing), _on_model(listing)
    return Command(listing.name, function, {**slots, "output": Output()}, listing.help, listing.example)


def _slots_of_model(listing: Listing) -> dict[str, Any]:
    """Return an analysis's options by name: its own, then those for edits, the conversation and the model."""
    slots: dict[str, Any] = {}
    for one in listing.parameters:
        if one.kind == "prompts":
            slots[one.name] = PromptTexts()
        elif one.kind == "index":
            slots[one.name] = replace(one, kind="path")
        elif not one.option.given:
            slots[one.name] = one
    slots |= {one.name: EditOptions() for one in listing.parameters if one.kind == "edits"}
    if _texts(listing) or any(one.kind == "prompts" for one in listing.parameters):
        slots["conversation"] = Conversation()
    slots["opening"] = Opening(model=listing.model)
    slots.setdefault(_SEED.name, _SEED)
    return slots


def _texts(listing: Listing) -> list[str]:
    return [one.name for one in listing.parameters if one.name in _PROMPTS and one.kind == "str"]


def _on_model(listing: Listing) -> Callable[..., None]:
    names = [one.name for one in listing.parameters]
    given = {one.name: one.kind for one in listing.parameters if one.option.given}
    texts = _texts(listing)

    def command(opening: Opening, output: Output, **chosen: Any) -> None:
        conversation: Conversation = chosen.pop("conversation", Conversation())
        several = {name: chosen[name].texts(conversation) for name, kind in given.items() if kind == "prompts"}
        model = NamedModel(opening, chosen["seed"] if _SEED.name in names else 0)
        if listing.needs is not Needs.UNOPENED:
            model.open()  # fails before torch is imported if the model's name is unknown
        if read := [name for name in texts if chosen[name] is not None]:
            chosen.update(zip(read, conversation.texts(model.open(), [chosen[name] for name in read]), strict=True))
        folder, line = None, ProgressLine(minutes=True)
        for name, kind in given.items():
            match kind:
                case "index":
                    folder = chosen[name]
                    chosen[name] = KnownIndex(model, folder)
                case "edits":
                    chosen[name] = chosen[name].edits(model.open())
                case "prompts":
                    pieces = chosen[name].cut(model.open(), conversation.texts(model.open(), several[name]))
                    chosen[name] = [one.text if one.tokens is None else one.tokens for one in pieces]
                case "progress":
                    chosen[name] = line
                case _:
                    chosen[name] = getattr(opening, kind)
        answer = listing.load().function(_subject(listing.needs, model), **{name: chosen[name] for name in names})
        line.end()
        sizes = {} if listing.needs is Needs.UNOPENED else _sizes(model)
        _deliver(listing, answer, output, sizes, opening, folder)

    return command


def _on_index(listing: Listing) -> Callable[..., None]:
    def command(folder: Path, model: str | None, output: Output, **chosen: Any) -> None:
        import unembed
        from unembed.cli.model_loading import opened

        index = unembed.Index.open(folder)
        if model is not None:
            index.attach(opened(Opening(model=model, dtype=index.provenance.dtype)))
        _deliver_of_index(listing, index, folder, output, chosen)

    return command


def _on_files_of_index(listing: Listing) -> Callable[..., None]:
    def command(folder: Path, output: Output, **chosen: Any) -> None:
        import unembed

        _deliver_of_index(listing, unembed.Index.open(folder, partial=True), folder, output, chosen)

    return command


def _deliver_of_index(listing: Listing, index: Index, folder: Path, output: Output, chosen: Mapping[str, Any]) -> None:
    """Run an analysis on an index and write its answer.

    If the model ships with the package, the command that opens the result in the explorer is printed too. For another
    model that command would need the model's path, which an index does not record.
    """
    from unembed.models import SHIPPED

    answer, model = listing.load().function(index, **chosen), index.provenance.model
    _deliver(listing, answer, output, {}, Opening(model=model) if model in SHIPPED else None, folder)


def _alone(listing: Listing) -> Callable[..., None]:
    def command(output: Output, **chosen: Any) -> None:
        _deliver(listing, listing.load().function(**chosen), output)

    return command


def _deliver(
    listing: Listing,
    found: Any,
    output: Output,
    sizes: Mapping[str, Any] = {},  # never modified
    opening: Opening | None = None,
    index: Path | None = None,
) -> None:
    """Write an answer, then the command that opens the explorer on the same result."""
    from unembed.cli.answer import deliver

    answer: Answer = deliver(listing, sizes, found, output)
    if answer.screen is not None and output.for_terminal and opening is not None:
        screen = answer.screen
        print_explorer_link(opening, screen.name, index=index, edits=screen.edits, **screen.state)
    if answer.is_fault:
        import typer

        raise typer.Exit(1)


def _sizes(model: NamedModel) -> dict[str, Any]:
    lm = model.open()
    return {"layers": lm.n_layers, "heads a layer": lm.n_heads, "d_head": lm.d_head}


def _subject(needs: Needs, model: NamedModel) -> Any:
    """Return the first argument of an analysis's function."""
    if needs is Needs.UNOPENED:
        return model
    if needs is Needs.CIRCUITS:
        import unembed

        return unembed.circuits(model.open())
    return model.open()
