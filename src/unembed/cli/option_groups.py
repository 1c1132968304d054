"""Options that many commands share, each group defined once and written into a command by `grouped`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from unembed.cli import options
from unembed.results import check_writable

if TYPE_CHECKING:
    from unembed import LanguageModel
    from unembed.results import Table


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each group among its parameters replaced by the group's fields.

    A parameter is a group if its default is an instance of one; that instance gives the defaults.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        default = parameter.default
        if not is_dataclass(default):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = type(default)
        hints = get_type_hints(type(default), include_extras=True)
        parameters += [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=getattr(default, f.name), annotation=hints[f.name]
            )
            for f in fields(default)
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        whole = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**given, **whole)

    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Which model, and how it is opened."""

    model: options.Model = "wren"
    revision: options.Revision = None
    tokenizer: options.Tokenizer = None
    offline: options.Offline = False
    dtype: options.DType = None
    device: options.Device = None

    @property
    def is_default(self) -> bool:
        """Whether the model is opened as it is saved: in its own dtype, with its own tokenizer."""
        return self.dtype is None and self.tokenizer is None

    def open(self, seed: int | None = None) -> LanguageModel:
        """The opened model; torch's random numbers start from the seed.

        Raises:
            ModelUnavailable: no such model, folder or network.
        """
        from unembed.cli.model_loading import opened

        return opened(
            self.model,
            tokenizer=self.tokenizer,
            revision=self.revision,
            offline=self.offline,
            dtype=self.dtype,
            device=self.device,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class Output:
    """In which form the result is written."""

    as_json: options.Json = False
    csv: options.Csv = False
    plain: options.Plain = False
    html: options.Html = None

    def __post_init__(self) -> None:
        """Check the forms before anything costs time.

        Raises:
            typer.BadParameter: two forms for stdout.
            InvalidInput: the page cannot be written there.
        """
        if self.as_json and self.csv:
            raise typer.BadParameter("--json and --csv both write to stdout; choose one")
        if self.html is not None:
            check_writable(self.html)

    @property
    def for_terminal(self) -> bool:
        """Whether only the terminal's form is requested."""
        return not self.as_json and not self.csv and self.html is None

    def deliver(self, table: Table) -> None:
        """Write a table."""
        from unembed.cli.output import deliver_table

        deliver_table(table, as_json=self.as_json, csv=self.csv, plain=self.plain, html=self.html)


@dataclass(frozen=True, kw_only=True)
class TextOutput:
    """In which form a result that is not one table is written."""

    as_json: options.Json = False
    plain: options.Plain = False

    def deliver(self, table: Table) -> None:
        """Write a table."""
        from unembed.cli.output import deliver_table

        deliver_table(table, as_json=self.as_json, csv=False, plain=self.plain, html=None)
