"""The analyses `patch`, `paths` and `ablate` of the command line and the explorer, with their results as documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from unembed.analyses import Analysis, Cost, Needs
from unembed.causality.ablation import Ablation, ablate
from unembed.causality.estimated_effects import EstimatedEffects, attribution_patching
from unembed.causality.metrics import Metric, logit_difference
from unembed.causality.patching import Patching, patch
from unembed.corpus import Corpus as CorpusOfText
from unembed.corpus import open_corpus
from unembed.document.model import Answer, Exhibit, Figure, Screen, Section
from unembed.errors import InvalidInput
from unembed.memories.clustering.value_clusters import cluster_values
from unembed.models.decoder import Decoder
from unembed.names import MemoryAddress, PatchPoint, read_memory
from unembed.options import (
    Against,
    Align,
    Clean,
    Corpus,
    Corrupted,
    Edits,
    Index,
    MaxTokens,
    Memories,
    Noising,
    Option,
    Seed,
    Token,
    Top,
)
from unembed.results import Table, characters
from unembed.stream.interventions import scale_coefficient

Point = Literal["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "heads", "patterns", "memories"]
_POINTS: dict[str, PatchPoint] = {"heads": "z", "patterns": "pattern", "memories": "coefficients"}
_ON_THE_PAGE = ("resid_pre", "attn_out", "mlp_out")
"""The points that the explorer's map of patches can show; results of other points have no link to the explorer."""
_WINDOW = 512
"""Number of tokens in a window of the shipped text."""
Groups = dict[str, list[tuple[int, int]]]


def patch_answer(
    lm: Decoder,
    clean: Clean,
    corrupted: Corrupted,
    *,
    token: Token = None,
    against: Against = None,
    points: Annotated[Point, Option("Kind of activations to patch; each activation is patched alone.")] = "resid_pre",
    noising: Noising = False,
    align: Align = False,
    memories_each: Annotated[
        int,
        Option(
            "Number of memories (FFN neurons) to patch at each layer and position, if --points is memories.",
            low=1,
            aliases=("--top", "-k"),
        ),
    ] = 10,
    edits: Edits = (),
) -> Answer:
    """Patch activations of one prompt into another, and measure how much of the prediction they restore.

    Each cell is the fraction of the difference between the two forward passes that is recovered: 0 for no effect, 1 for
    all of it. The metric is the logit of --token after the last token, minus that of --against if it is given. By
    default it is the logit of the clean prompt's prediction minus the logit of the corrupted prompt's prediction; if
    both predict the same token, the second most probable token is subtracted instead.

    Caution: Activations that are the same in both prompts have no effect here. An activation that restores nothing
    alone may matter together with others, and cells do not add up.
    """
    found = patch(
        lm,
        clean,
        corrupted,
        _POINTS.get(points) or cast(PatchPoint, points),
        _metric(token, against),
        direction="noising" if noising else "denoising",
        alignment="auto" if align else None,
        top=memories_each,
        edits=edits,
    )
    state = {"prompt": clean, "other": corrupted, "point": points, "direction": found.direction}
    screen = Screen("compare", state | {"token": token, "against": against})
    is_on_page = points in _ON_THE_PAGE and not edits and not align
    table, (grid, figure) = found.to_table(), _heat_map(found)
    section = Section("", (), (grid, Exhibit("table", _with_characters(table, found), listed=12)), (figure,))
    shown = screen if is_on_page else None
    return Answer(table.title, (section,), table.provenance, "table", data=table, screen=shown)


def _heat_map(found: Patching) -> tuple[Exhibit, Figure]:
    """Return the fraction recovered as a table and a heat map, by layer and by position or head."""
    values = found.recovered
    if values.dim() == 3:  # show only the memory with the largest effect at each layer and position
        values = values.gather(-1, values.abs().argmax(-1, keepdim=True))[..., 0]
    by_head = found.point in ("z", "pattern")
    tokens = zip(found.positions, characters(found.tokens), strict=True)
    across = [f"H{i}" for i in range(values.shape[1])] if by_head else [f"{at}:{text}" for at, text in tokens]
    columns = {
        "layer": [layer for layer in found.layers for _ in across],
        "head" if by_head else "position": across * len(found.layers),
        "recovered": values.flatten().tolist(),
    }
    title = f"Fraction of {found.metric} recovered by patching {found.point}, tokens aligned {found.alignment}"
    x = "head" if by_head else "position"
    figure = Figure("map", title, "heat", "grid", x, ("recovered",), rows="layer", y_label="layer", y_range=(-1, 1))
    return Exhibit("grid", Table(title, columns, found.provenance), folded=True), figure


def _with_characters(table: Table, found: Patching) -> Table:
    """Replace the texts of tokens that are only part of a character by whole characters."""
    if "token" not in table or "position" not in table:
        return table
    texts = dict(zip(found.positions, characters(found.tokens), strict=True))
    columns = {name: table[name] for name in table.column_names}
    return Table(table.title, {**columns, "token": [texts[n] for n in columns["position"]]}, table.provenance)


def paths_answer(
    lm: Decoder,
    clean: Clean,
    corrupted: Corrupted,
    *,
    writers: Annotated[
        list[str] | None,
        Option(
            "Component whose output is replaced: a head (L0H3), a memory (FFN neuron, L5M278), attn_out 2, mlp_out 2 "
            "or layer 2; repeatable. Default: all heads.",
            name="writer",
            metavar="WRITER",
            aliases=("--from",),
        ),
    ] = None,
    readers: Annotated[
        list[str] | None,
        Option(
            "Component that receives the change: a head's queries, keys or values (L1H4.q, .k, .v, or L1H4 for the "
            "three), attn_out 2, mlp_out 2, layer 2 or logits; repeatable. Default: queries, keys and values of all "
            "heads.",
            name="reader",
            metavar="READER",
            aliases=("--to",),
        ),
    ] = None,
    token: Token = None,
    against: Against = None,
    noising: Noising = False,
    align: Align = False,
    top: Top = 20,
    edits: Edits = (),
) -> Answer:
    """Replace one component's output for one other component alone, and measure the prediction: path patching.

    The writer is the component whose output is replaced; the reader is the component that receives the change. Every
    other component before the reader has the activations of the unchanged forward pass, and everything after the reader
    is recomputed. `recovered` is the fraction of the difference between the two forward passes: 0 for no effect, 1 for
    all of it; the metric is that of `patch`. For two heads, the composition score of their weights is listed too. A
    terminal lists --top paths; JSON, CSV and pages contain all.

    Caution: A path that has no effect between these two prompts may have a large one between others; effects of paths
    do not add up.
    """
    found = patch(
        lm,
        clean,
        corrupted,
        writers or "heads",
        _metric(token, against),
        through=readers or "heads",
        direction="noising" if noising else "denoising",
        alignment="auto" if align else None,
        edits=edits,
    )
    return Answer.of_table(found.to_table(), listed=top)


def ablate_answer(
    lm: Decoder,
    prompt: Annotated[str | None, Option("The text to run the model on.", argument=True)] = None,
    *,
    token: Token = None,
    against: Against = None,
    what: Annotated[
        Literal["heads", "components", "layers", "screen"] | None,
        Option(
            "What to ablate, one at a time: heads, components (the attention and the FFN of each layer) or layers; or "
            "screen: all heads, and the memories with the largest estimated effects. Default: heads.",
        ),
    ] = None,
    memories: Memories = None,
    cluster: Annotated[
        list[MemoryAddress] | None,
        Option(
            "Ablate all memories whose value vectors are in the same cluster as this memory's; repeatable.",
            metavar="MEMORY",
            parse=read_memory,
        ),
    ] = None,
    concept: Annotated[
        list[str] | None, Option("Ablate all memories with this label in the index; repeatable.", metavar="NAME")
    ] = None,
    to: Annotated[
        Literal["zero", "mean", "position-mean", "resample"],
        Option(
            "Value that replaces an activation: zero, its mean over a corpus (of all positions, or of each position), "
            "or its value in another segment of the corpus (resample)."
        ),
    ] = "zero",
    corpus: Corpus = None,
    max_tokens: MaxTokens = 4000,
    by_token: Annotated[
        bool, Option("With --corpus, list the predicted tokens whose loss the first ablation changes most.")
    ] = False,
    sample: Annotated[
        int,
        Option(
            "With --what screen, which estimates all effects and ablates only the largest: number of memories (FFN "
            "neurons) to draw at random and ablate, too, to check what the estimates miss.",
            low=1,
        ),
    ] = 50,
    index: Index,
    top: Top = 20,
    edits: Edits = (),
    seed: Seed = 0,
) -> Answer:
    """Ablate heads, components, layers or memories (FFN neurons) one at a time, and measure the prediction.

    On a prompt, the effect is how much the metric falls, including what later layers do with the change. The metric is
    the logit of --token, minus that of --against if it is given. Over a corpus, without a prompt, the effect is how
    much the loss rises, in nats per token, with a 95 % interval. With a prompt and --corpus, the means of --to mean are
    taken over this corpus. A terminal lists --top rows; JSON, CSV and pages contain all.

    Caution: Zero is a value that an activation may never have in the model; compare with --to mean. Later components
    can make up for what is missing, so a small effect does not prove that a component is unused.
    """
    _check_ablation(prompt, corpus, what, to, by_token, token)
    metric = _metric(token, against)
    groups: Groups = {lm.memory_name(*lm.memory(n, i)): [lm.memory(n, i)] for n, i in memories or []}
    groups |= _clusters(lm, cluster or []) | _concepts(lm, concept or [], index)
    chosen: dict[str, Any] = {"memories": groups} if groups else {what or "heads": "all"}
    if groups and what is not None:
        chosen[what] = "all"
    chosen |= {"to": "mean" if to == "position-mean" else to, "by_position": to == "position-mean", "edits": edits}
    if prompt is None:
        over = ablate(lm, _opened(corpus, lm), **chosen, n_tokens=max_tokens, seed=seed)
        table, note = over.by_token() if by_token else over.to_table(), _cut_of(corpus, lm)
        return Answer.of_table(table, listed=top, note=note)
    if what == "screen":
        return _screen_answer(attribution_patching(lm, prompt, metric, top=top, sample=sample, seed=seed, edits=edits))
    means_over = None if corpus is None else _opened(corpus, lm)
    found = cast(Ablation, ablate(lm, prompt, **chosen, corpus=means_over, metric=metric))
    silenced = [scale_coefficient(*memory, 0.0) for group in groups.values() for memory in group]
    screen = Screen("intervene", {"prompt": prompt}, [*edits, *silenced]) if groups and to == "zero" else None
    return Answer.of_table(found.to_table(), listed=top, screen=screen)


def _screen_answer(found: EstimatedEffects) -> Answer:
    """Show the strongest components, the agreement of estimates with exact effects, and what estimates may miss."""
    lines = ["" if found.unmeasured is None else found.unmeasured.in_words()]
    if found.without_relevance:
        lines.append(f"Not estimated by relevance: {found.without_relevance}.")
    table = found.to_table()
    exhibits = (
        Exhibit("effects", table, listed=len(table)),
        Exhibit("agreement", found.agreement_table()),
    )
    section = Section(table.title, tuple(filter(None, lines)), exhibits)
    return Answer(table.title, (section,), table.provenance, "effects")


def _window(lm: Decoder) -> int:
    """Return the length of a window of the shipped text, in tokens."""
    return _WINDOW if lm.n_ctx is None else min(_WINDOW, lm.n_ctx)


def _opened(corpus: str | None, lm: Decoder) -> CorpusOfText:
    """Open the corpus; the shipped text is detokenised and cut into windows.

    Most models were not trained on single sentences with WikiText's spaces around punctuation: their loss on these is
    far higher, and so is the effect of components that process such spaces.
    """
    if corpus == "shipped":
        return open_corpus(corpus, detokenize=True, segmentation="windows", window=_window(lm))
    return open_corpus(corpus)


def _cut_of(corpus: str | None, lm: Decoder) -> str:
    """Return a sentence that says how the shipped text is cut; an empty string for other texts."""
    if corpus != "shipped":
        return ""
    return f"WikiText in ordinary writing (detokenised), in windows of {_window(lm)} tokens."


def _check_ablation(
    prompt: str | None, corpus: str | None, what: str | None, to: str, by_token: bool, token: str | None
) -> None:
    """Raise an error if options cannot be combined, or if there is neither a prompt nor a corpus."""
    in_corpus, in_prompt = prompt is None, prompt is not None
    for wrong, what_failed, why, instead in (
        (in_corpus and corpus is None, "an ablation of nothing", "no text is given", "Give a prompt, or --corpus"),
        (in_corpus and what == "screen", "a screen over a corpus", "it estimates effects in a prompt", "Give a prompt"),
        (in_corpus and token is not None, f"token {token!r} over a corpus", "there the loss is measured", ""),
        (in_prompt and by_token, "the loss by token in a prompt", "it is measured over a corpus", "Leave it out"),
        (in_prompt and to == "resample", "resampling in a prompt", "other segments come from a corpus", "Leave it out"),
        (in_prompt and corpus is not None and to == "zero", "a prompt and a corpus", "zero needs no corpus", ""),
    ):
        if wrong:
            raise InvalidInput(what_failed, why=why, instead=instead)


def _clusters(lm: Decoder, memories: Sequence[MemoryAddress]) -> Groups:
    """Return, for each of some memories, all memories in its cluster of value vectors (see `unembed clusters`)."""
    if not memories:
        return {}
    numbered = [lm.memory(*pair) for pair in memories]
    found = cluster_values(lm, max(1, lm.n_memories // 10))
    return {f"cluster of {lm.memory_name(n, i)}": found.members(found.of(n, i)) for n, i in numbered}


def _concepts(lm: Decoder, names: Sequence[str], opened: Index) -> Groups:
    """Return, for each of some concepts, the memories that have it as a label in an index of memories.

    Args:
        names: the names of the concepts.
        opened: a function that opens the index.
    """
    if not names:
        return {}
    index = opened(build=False)  # a newly built index would have no labels
    if index is None:
        raise InvalidInput(
            f"concept {names[0]!r}",
            why=f"there is no index of {lm.name} with labels",
            instead="Name an index with labels with --index",
        )
    found: Groups = {name: [] for name in names}
    for row in index.labels():
        for name, members in found.items():
            if row["label"].casefold() == name.casefold() and row["kind"] != "random value":
                members.append((row["layer"], row["index"]))
    for name, members in found.items():
        if not members:
            raise InvalidInput(f"concept {name!r}", why="no memory has this label in the index")
    return {name: sorted(set(members)) for name, members in found.items()}


def _metric(token: str | None, against: str | None) -> Metric | None:
    """Return the metric "logit of `token` minus logit of `against`"; None if no token is given."""
    if token is None:
        if against is not None:
            raise InvalidInput(
                f"a comparison with {against!r}", why="the token to explain is not given", instead="Give --token too"
            )
        return None
    return logit_difference(token, None if against == "none" else against)


_PAIR = '"The blue car and the red" "The blue sky and the red"'
ANALYSES = (
    Analysis("patch", patch_answer, Needs.MODEL, Cost.SECONDS, f"unembed patch {_PAIR} --points heads"),
    Analysis(
        "paths", paths_answer, Needs.MODEL, Cost.SECONDS,
        f'unembed paths {_PAIR} --reader logits --reader "layer 5"',
    ),
    Analysis(
        "ablate", ablate_answer, Needs.MODEL, Cost.SECONDS,
        'unembed ablate "Once upon a time there was a little" --token " girl" --against " boy"',
    ),
)  # fmt: skip
