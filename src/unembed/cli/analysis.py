"""The commands of the declared analyses: each opens what the analysis needs, calls it, and delivers what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.analyses import Listing, Needs
from unembed.cli.command import Command
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output
from unembed.options import Option, Parameter

if TYPE_CHECKING:
    from unembed import LanguageModel
    from unembed.models.decoder import Decoder


def command_of(listing: Listing) -> Command:
    """The command of an analysis."""
    if listing.needs is Needs.INDEX:
        return _of_index(listing)

    def command(opening: Opening, output: Output, **chosen: Any) -> None:
        lm = opening.open(chosen.get("seed", 0))  # before torch is imported: a name that no hub answers for ends here
        if isinstance(edits := chosen.get("edits"), EditOptions):
            chosen["edits"] = edits.edits(lm)
        answer = listing.load().function(_subject(listing.needs, lm), **chosen)
        from unembed.cli.answer import deliver

        deliver(listing, lm, answer, output)
        if listing.screen and output.for_terminal:
            screen, _, state = listing.screen.partition("?")
            print_explorer_link(opening, screen, **_state(lm, state, chosen))  # pyright: ignore[reportArgumentType]

    slots: dict[str, Any] = {one.name: one for one in listing.parameters if one.kind != "edits"}
    slots |= {one.name: EditOptions() for one in listing.parameters if one.kind == "edits"}
    slots |= {"opening": Opening(model=listing.model), "output": Output()}
    return Command(listing.name, command, slots, listing.help, listing.example)


def _of_index(listing: Listing) -> Command:
    def command(folder: Path, model: str | None, output: Output, **chosen: Any) -> None:
        import unembed
        from unembed.cli.answer import deliver
        from unembed.cli.model_loading import opened

        index = unembed.Index.open(folder)
        if model is not None:
            index.attach(opened(model, dtype=index.provenance.dtype))
        deliver(listing, None, listing.load().function(index, **chosen), output)

    folder = Parameter("folder", "path", Option("The index's folder.", metavar="DIR"), required=True, argument=True)
    model = Parameter("model", "str", Option("Name of a shipped model, Hugging Face id, or folder.", "m"))
    own = {parameter.name: parameter for parameter in listing.parameters}
    slots = {"folder": folder, **own, "model": model, "output": Output()}
    return Command(listing.name, command, slots, listing.help, listing.example)


def _subject(needs: Needs, lm: LanguageModel) -> Any:
    """What the function takes first."""
    if needs is Needs.CIRCUITS:
        import unembed

        return unembed.circuits(lm)
    return lm


def _state(lm: Decoder, names: str, chosen: Mapping[str, Any]) -> dict[str, str | None]:
    """What the explorer's address holds after the screen, from `head={head}&position={position}`."""
    from unembed.cli.explorer_link import position_in_address

    found: dict[str, str | None] = {}
    for pair in filter(None, names.split("&")):
        name, _, option = pair.partition("=")
        value = chosen[option.strip("{}")]
        if name == "position":
            value = position_in_address(lm, chosen["prompt"], value)
        found[name] = None if value is None else str(value)
    return found
