"""`unembed annotate export`: write the file in which a person annotates the top tokens of value vectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from unembed.cli.command import command
from unembed.cli.option_groups import Opening
from unembed.options import Memories, Option, PerLayer, Seed, TopTokens
from unembed.results import check_writable


@command("annotate export", "unembed annotate export sheet.json --per-layer 10 --seed 1")
def export(
    out: Annotated[Path, Option("The JSON file to write.", metavar="FILE")],
    memories: Memories = None,
    per_layer: PerLayer = 10,
    top_tokens: TopTokens = 30,
    opening: Opening = Opening(),
    seed: Seed = 0,
) -> None:
    """Write the top tokens of value vectors, with definitions and instructions, for a person to annotate."""
    check_writable(out)
    import unembed
    from unembed.results import visible

    lm = opening.open(seed)
    found = unembed.value_concepts(
        lm, memories or None, per_layer=per_layer, seed=seed, top=top_tokens, embedding=False
    )
    path = unembed.annotation.export(found, out)
    print(f"wrote {len(found.labels)} vectors to {visible(str(path), prose=True)}", file=sys.stderr)
