"""`unembed serve`: open the explorer, an interactive page for one model, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer

from unembed.cli.command import command
from unembed.cli.option_groups import Opening
from unembed.options import Atlas, IndexFolder, Option

Host = Annotated[str, Option("Address to listen on; default: this machine only.")]
Port = Annotated[int, Option("Port to listen on; 0: any free port.", low=0, high=65535)]


@command("serve", "unembed serve --model wren --port 8000")
def serve(
    prompt: Annotated[str | None, Option("The prompt to show first; default: an example.", argument=True)] = None,
    view: Annotated[
        str | None,
        Option(
            "The view to show first: the part of the page's address after #/, such as heads?head=L1H0.", metavar="VIEW"
        ),
    ] = None,
    index: IndexFolder = None,
    atlas: Atlas = None,
    host: Host = "127.0.0.1",
    port: Port = 7333,
    browser: Annotated[bool, Option("Open the page in the default browser.")] = True,
    opening: Opening = Opening(),
) -> None:
    """Open the explorer in a browser: analyse predictions, edit activations, label memories (FFN neurons) and heads.

    Without --atlas, the atlas in the index is shown, if there is one.
    """
    from unembed.cli.stored_index import KnownIndex, NamedModel

    if prompt is not None and view is not None:
        raise typer.BadParameter("a prompt and --view both choose the first screen; give one of them")
    model = NamedModel(opening)
    lm = model.open()
    from unembed.server.serve import serve as serving

    found = KnownIndex(model, index)()
    name = None if found is None else found.path.name if index else found.provenance.notes.get("corpus_name")
    source = str(Path(opening.model).resolve()) if Path(opening.model).is_dir() else opening.model
    first = view if prompt is None else "trace?" + urlencode({"prompt": prompt})
    serving(lm, found, index_name=name, source=source, atlas=atlas, host=host, port=port, browser=browser, view=first)
