"""`unembed circuits`: attention heads by their weights and by what they do; the commands are declared analyses."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="circuits",
    help="Analyse attention heads as circuits: what they match, what they move, how they compose.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
