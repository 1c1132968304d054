"""`unembed patch`, `unembed paths` and `unembed ablate`: what happens if activations are replaced or taken away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from unembed.cli.command import command
from unembed.cli.edit_options import EditOptions
from unembed.cli.explorer_link import print_explorer_link
from unembed.cli.option_groups import Opening, Output
from unembed.names import MemoryAddress, PatchPoint, read_memory
from unembed.options import (
    Against,
    Align,
    AnySeed,
    Clean,
    Corpus,
    Corrupted,
    IndexFolder,
    MaxTokens,
    Memories,
    Noising,
    Option,
    Token,
    Top,
    UnusedSeed,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from unembed import LanguageModel
    from unembed.causality import Ablation, Metric, Patching
    from unembed.results import Table

Point = Literal["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "heads", "patterns", "memories"]
_POINTS: dict[Point, PatchPoint] = {
    **{point: point for point in get_args(PatchPoint)},
    "heads": "z",
    "patterns": "pattern",
    "memories": "coefficients",
}
_ON_THE_PAGE = ("resid_pre", "attn_out", "mlp_out")
"""What the Compare screen maps; it shows heads and memories cell by cell."""


@command("patch", 'unembed patch "The blue car and the red" "The blue sky and the red" --points heads')
def patch(
    clean: Clean,
    corrupted: Corrupted,
    token: Token = None,
    against: Against = None,
    points: Annotated[Point, Option("Which activations to patch, one at a time.")] = "resid_pre",
    noising: Noising = False,
    align: Align = False,
    memories: Annotated[
        int,
        Option(
            "Memories (FFN neurons) patched at each layer and position.",
            low=1,
            aliases=("--top", "-k"),
            name="memories-each",
        ),
    ] = 10,
    edits: EditOptions = EditOptions(),
    opening: Opening = Opening(),
    seed: UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Patch activations of one prompt into another and measure how much of the answer they restore.

    Each cell is the fraction recovered of the difference between the two runs: 0 no effect, 1 all of it. The metric is
    the logit of --token after the last token, minus that of --against where it is given. Without either it is the logit
    of the clean prompt's prediction minus that of the corrupted prompt's, or of the runner-up where both predict the
    same.
    """
    from unembed.cli.output import show

    lm = opening.open(seed)
    changes, point = edits.edits(lm), _POINTS[points]
    found = lm.patch(
        clean,
        corrupted,
        point,
        _metric(token, against),
        direction="noising" if noising else "denoising",
        alignment="auto" if align else None,
        top=memories,
        edits=changes,
    )
    table = found.to_table()
    if not output.for_terminal:
        output.deliver(table)
        return
    show(lambda width: _heat_map(found, width), plain=output.plain)
    output.deliver(_with_characters(table.head(12), found))
    if point in _ON_THE_PAGE and not changes and not align:
        print_explorer_link(
            opening,
            "compare",
            prompt=clean,
            other=corrupted,
            point=point,
            direction=found.direction,
            token=token,
            against=against,
        )


@command(
    "paths", 'unembed paths "The blue car and the red" "The blue sky and the red" --reader logits --reader "layer 5"'
)
def paths(
    clean: Clean,
    corrupted: Corrupted,
    writers: Annotated[
        list[str] | None,
        Option(
            "Writers: a head (L0H3), a memory (FFN neuron, L5M278), attn_out 2, mlp_out 2, layer 2; repeatable. "
            "Default: all heads.",
            name="writer",
            metavar="WRITER",
            aliases=("--from",),
        ),
    ] = None,
    readers: Annotated[
        list[str] | None,
        Option(
            "Readers: a head's queries, keys or values (L1H4.q, .k, .v, or L1H4 for the three), attn_out 2, mlp_out 2, "
            "layer 2, logits; repeatable. Default: queries, keys and values of all heads.",
            name="reader",
            metavar="READER",
            aliases=("--to",),
        ),
    ] = None,
    token: Token = None,
    against: Against = None,
    noising: Noising = False,
    align: Align = False,
    top: Top = 12,
    edits: EditOptions = EditOptions(),
    opening: Opening = Opening(),
    seed: UnusedSeed = None,
    output: Output = Output(),
) -> None:
    """Replace a writer for one reader alone and measure the prediction: path patching.

    Everything else below the reader keeps its own activations, and everything above is recomputed. `recovered` is the
    fraction of the difference between the two runs: 0 no effect, 1 all of it; the metric is that of `patch`. Between
    two heads the composition score of their weights is shown with it.
    """
    lm = opening.open(seed)
    changes = edits.edits(lm)
    found = lm.patch(
        clean,
        corrupted,
        writers or "heads",
        _metric(token, against),
        through=readers or "heads",
        direction="noising" if noising else "denoising",
        alignment="auto" if align else None,
        edits=changes,
    )
    table = found.to_table()
    output.deliver(table.head(top) if output.for_terminal else table)


What = Literal["heads", "components", "layers", "screen"]
To = Literal["zero", "mean", "position-mean", "resample"]


@command("ablate", 'unembed ablate "Once upon a time there was a little" --token " girl" --against " boy"')
def ablate(
    prompt: Annotated[str | None, Option("The text to run the model on; none with --corpus.", argument=True)] = None,
    token: Token = None,
    against: Against = None,
    what: Annotated[
        What | None,
        Option(
            "heads, components (attention and FFN) or layers, one at a time; screen: heads and memories, effects "
            "estimated, the largest then measured. Default: heads.",
        ),
    ] = None,
    memory: Memories = None,
    cluster: Annotated[
        list[MemoryAddress] | None,
        Option("Ablate all memories in this memory's cluster; repeatable.", metavar="MEMORY", parse=read_memory),
    ] = None,
    concept: Annotated[
        list[str] | None, Option("Ablate all memories with this label in the index; repeatable.", metavar="NAME")
    ] = None,
    to: Annotated[
        To, Option("zero, the mean over a corpus (of all positions, or of each), or other segments' activations.")
    ] = "zero",
    corpus: Corpus = None,
    max_tokens: MaxTokens = 4000,
    by_token: Annotated[bool, Option("With --corpus: list the tokens whose loss one ablation changes most.")] = False,
    index: IndexFolder = None,
    top: Top = 12,
    edits: EditOptions = EditOptions(),
    opening: Opening = Opening(),
    seed: AnySeed = None,
    output: Output = Output(),
) -> None:
    """Ablate heads, components, layers or memories (FFN neurons) one at a time and measure the prediction.

    On a prompt, the effect is the drop in the metric, the total effect of the part with later layers included: the
    logit of --token, minus that of --against where it is given. Over a corpus, without a prompt, it is the rise in
    loss, in nats a token, with a 95 % interval; with a prompt, the corpus gives the means.
    """
    _check_ablation(prompt, corpus, what, to, by_token, token)
    metric = _metric(token, against)
    import unembed

    lm = opening.open(seed)
    changes = edits.edits(lm)
    groups: dict[str, list[tuple[int, int]]] = {
        lm.memory_name(*lm.memory(n, i)): [lm.memory(n, i)] for n, i in memory or []
    }
    groups |= _clusters(lm, cluster or []) | _concepts(lm, concept or [], index)
    chosen: dict[str, Any] = {"memories": groups} if groups else {what or "heads": "all"}
    if groups and what is not None:
        chosen[what] = "all"
    source = None if corpus in (None, "shipped") else corpus
    by_position, into = to == "position-mean", "mean" if to == "position-mean" else to
    if prompt is None:
        over = lm.ablate(
            unembed.open_corpus(source),
            **chosen,
            to=into,
            by_position=by_position,
            n_tokens=max_tokens,
            seed=seed or 0,
            edits=changes,
        )
        table = over.by_token() if by_token else over.to_table()
    elif what == "screen":
        table = lm.attribution_patching(prompt, metric, top=top, edits=changes).to_table()
    else:
        common: dict[str, Any] = {"to": into, "by_position": by_position, "corpus": source, "edits": changes}
        table = cast("Ablation", lm.ablate(prompt, **chosen, **common, metric=metric)).to_table()
    output.deliver(table.head(top) if output.for_terminal else table)
    if output.for_terminal and prompt is not None and groups and to == "zero":
        silenced = [unembed.scale_coefficient(*memory, 0.0) for group in groups.values() for memory in group]
        print_explorer_link(opening, "intervene", index=index, prompt=prompt, edits=[*changes, *silenced])


def _check_ablation(
    prompt: str | None, corpus: str | None, what: str | None, to: str, by_token: bool, token: str | None
) -> None:
    """Refuse options that do not go together, before a model is opened."""
    if prompt is None and corpus is None:
        raise typer.BadParameter("give a prompt, or --corpus", param_hint="PROMPT")
    if prompt is None and (what == "screen" or token is not None):
        raise typer.BadParameter("needs a prompt", param_hint="--token" if token is not None else "--what screen")
    if prompt is not None and by_token:
        raise typer.BadParameter(
            "the loss by token is measured over a corpus: leave the prompt out", param_hint="--by-token"
        )
    if prompt is not None and to == "resample":
        raise typer.BadParameter("other segments come from a corpus: leave the prompt out", param_hint="--to resample")
    if prompt is not None and corpus is not None and to == "zero":
        raise typer.BadParameter("give a prompt or a corpus; both only with --to mean", param_hint="--corpus")


def _clusters(lm: LanguageModel, memories: list[MemoryAddress]) -> dict[str, list[tuple[int, int]]]:
    """The clusters that some memories' values are in, cut as `unembed clusters` does."""
    if not memories:
        return {}
    import unembed

    numbered = [lm.memory(*pair) for pair in memories]
    found = unembed.cluster_values(lm, max(1, lm.n_memories // 10))
    return {f"cluster of {lm.memory_name(n, i)}": found.members(found.of(n, i)) for n, i in numbered}


def _concepts(lm: LanguageModel, names: list[str], folder: Path | None) -> dict[str, list[tuple[int, int]]]:
    """The memories that have a label in an index."""
    if not names:
        return {}
    import unembed
    from unembed.errors import InvalidInput

    # One that is built now would have no labels.
    index = unembed.cached_index(lm) if folder is None else unembed.Index.open(folder, lm)
    if index is None:
        raise InvalidInput(
            f"concept {names[0]!r}", why=f"there is no index of {lm.name} with labels", instead="Name one with --index"
        )
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    for row in index.labels():
        for name, members in found.items():
            if row["label"].casefold() == name.casefold() and row["kind"] != "random value":
                members.append((row["layer"], row["index"]))
    for name, members in found.items():
        if not members:
            raise InvalidInput(f"concept {name!r}", why="no memory has this label in the index")
    return {name: sorted(set(members)) for name, members in found.items()}


def _metric(token: str | None, against: str | None) -> Metric | None:
    import unembed

    if token is None:
        if against is not None:
            raise typer.BadParameter("give --token too", param_hint="--against")
        return None
    return unembed.logit_difference(token, None if against == "none" else against)


def _with_characters(table: Table, found: Patching) -> Table:
    """The table with whole characters in place of the bytes that single tokens contain; JSON and CSV hold bytes."""
    from unembed.results import Table, characters

    if "token" not in table or "position" not in table:
        return table
    texts = dict(zip(found.positions, characters(found.tokens), strict=True))
    columns = {name: table[name] for name in table.column_names}
    return Table(table.title, {**columns, "token": [texts[n] for n in columns["position"]]}, table.provenance)


def _heat_map(found: Patching, width: int) -> RenderableType:
    """Layers down, positions or heads across; the colour is the fraction recovered."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from unembed.results import characters, visible

    values = found.recovered
    if values.dim() == 3:  # memories: the strongest at each layer and position
        values = values.gather(-1, values.abs().argmax(-1, keepdim=True))[..., 0]
    if found.point in ("z", "pattern"):
        heads = [f"H{i}" for i in range(values.shape[1])]
    else:
        heads = [visible(text)[:8] for text in characters(found.tokens)]
    cell = max(5, min(8, max(map(len, heads))))
    fit = max(1, (width - 7) // (cell + 1))
    title = f"Fraction of {found.metric} recovered by patching {found.point}, tokens aligned {found.alignment}"
    parts: list[RenderableType] = [Text(title, style="bold")]
    for start in range(0, len(heads), fit):
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("layer", justify="right", style="dim")
        for head in heads[start : start + fit]:
            table.add_column(Text(head), justify="right", width=cell, no_wrap=True)
        for layer in range(values.shape[0]):
            cells = [_cell(float(v)) for v in values[layer, start : start + fit]]
            table.add_row(str(layer), *cells)
        parts += [table, Text("")]
    return Group(*parts)


def _cell(value: float) -> RenderableType:
    from rich.text import Text

    strength = min(1.0, abs(value))
    if strength < 0.05:
        return Text(f"{value:z.2f}", style="dim")
    level = 60 + int(120 * strength)
    shade = f"rgb(30,{level},90)" if value > 0 else f"rgb({level},40,60)"
    return Text(f"{value:z.2f}", style=f"white on {shade}")
