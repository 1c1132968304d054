"""`unembed serve`: the explorer in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unembed.cli import options


def serve(
    model: options.Model = "wren",
    index: Annotated[
        Path | None,
        typer.Option(help="An index of this model, for triggers, search and labels.", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only if you say so.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 7333,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page at once.")] = True,
    revision: options.Revision = None,
    offline: options.Offline = False,
    dtype: options.DType = None,
    device: options.Device = None,
) -> None:
    """Open the explorer: take a prediction apart, edit it and label it, in a browser on this machine."""
    from unembed.cli.opening import opened
    from unembed.errors import ExtraMissing

    try:
        from unembed.server.running import serve as serving
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            "the explorer's server", why=f"{error.name} is not installed", instead="pip install 'unembed[serve]'"
        ) from error
    lm = opened(model, revision=revision, offline=offline, dtype=dtype, device=device)
    found = None
    if index is not None:
        import unembed

        found = unembed.Index.open(index, lm)
    serving(lm, found, index_name=None if index is None else index.name, host=host, port=port, browser=browser)
