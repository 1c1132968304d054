"""The commands of the declared analyses: each opens what the analysis needs, calls it, and delivers what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from unembed.analyses import Listing, Needs, listings
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output, grouped
from unembed.cli.parameters import as_typer, command_class, values

if TYPE_CHECKING:
    from unembed import LanguageModel
    from unembed.models.decoder import Decoder


def add_analyses(app: typer.Typer, groups: dict[str, typer.Typer]) -> None:
    """Add the command of every analysis to its group.

    Args:
        app: the whole command line.
        groups: those that there are; an analysis of another package may begin a new one.
    """
    for listing in listings():
        *group, name = listing.name.split()
        home = app
        if group and (home := groups.get(group[0])) is None:
            home = groups[group[0]] = typer.Typer(name=group[0], help="Analyses of other packages.")
            app.add_typer(home)
        home.command(name, cls=command_class(listing.parameters))(_command(listing))


def _command(listing: Listing) -> Callable[..., None]:
    def command(opening: Opening, output: Output, **given: Any) -> None:
        chosen = values(listing.parameters, given)
        lm = opening.open(chosen.get("seed", 0))  # before torch is imported: a name that no hub answers for ends here
        answer = listing.load().function(_subject(listing.needs, lm), **chosen)
        from unembed.cli.answer import deliver

        deliver(listing, lm, answer, output)
        if listing.screen and output.for_terminal:
            screen, _, state = listing.screen.partition("?")
            print_explorer_link(opening, screen, **_state(lm, state, chosen))  # pyright: ignore[reportArgumentType]

    groups = {"opening": Opening(model=listing.model), "output": Output()}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [as_typer(parameter) for parameter in listing.parameters]
    parameters += [inspect.Parameter(name, kind, default=group) for name, group in groups.items()]
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__doc__ = listing.help
    return grouped(command)


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
