"""The analyses that query an index, declared for the command line and the explorer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Exhibit, Screen, Section
from unembed.names import Among, FiredBy, PromotedBy
from unembed.options import AnySide, Context, LensFile, Memory, Option, PerLayer, Places, Seed, Top
from unembed.results import Table, bytes_in_words, format_number, visible

if TYPE_CHECKING:
    from unembed.index.index import Index

_COUNTED = ("tokens", "segments", "documents")
_SORT = "What to sort rows by; strength is the coefficient divided by the memory's largest in the corpus."


def search(
    index: Index,
    words: Annotated[
        str,
        Option(
            'Words that a text must contain, in any order; "a phrase" in quotes; begin* for any word that begins so.',
            metavar="TEXT",
        ),
    ],
    *,
    top: Top = 20,
    pole: AnySide = None,
    context: Context = None,
) -> Table:
    """Search the texts on which memories (FFN neurons) fire most for words; list the strongest matches first.

    Caution: The index stores only the texts with the largest coefficients of each memory; other text is not found.
    """
    return index.search(words, top, pole=pole, context=context)


def triggers(index: Index, memory: Memory, *, top: Top = 20, pole: AnySide = None, context: Context = None) -> Answer:
    """Show the texts on which a memory (FFN neuron) fires most, and the tokens that its value vector promotes.

    Each text ends with the token on which the memory fires, which is marked. -L5M278 or --pole negative shows the texts
    with the most negative coefficients.

    Caution: These are the strongest examples in one corpus, a small part of where the memory fires. A pattern in them
    need not hold for the rest.
    """
    pole = pole or memory.pole
    found = index.triggers(*memory.address, top, pole=pole, context=context)
    promoted = ""
    if pole == "positive" or index.suppressed is not None:
        tokens = index.value_tokens(*memory.address, 10, bottom=pole == "negative")["token"]
        promoted = f"value promotes {' '.join(map(visible, tokens))}"
    name = index.memory_name(*index.memory(*memory.address), pole)
    return Answer.of_table(found, note=promoted, screen=Screen("memory", {"memory": name}))


def promoting(
    index: Index,
    promoted: Annotated[str, Option("A single token, with its leading space if it has one.", metavar="TOKEN")],
    *,
    top: Top = 20,
    sort: Annotated[PromotedBy, Option(_SORT, aliases=("--by",))] = "score",
) -> Table:
    """Find the memories (FFN neurons) whose value vectors promote a token.

    Caution: This does not test whether adding a value vector really raises the token: `unembed value --truth` does.
    """
    return index.promoting(promoted, top, by=sort)


def firing(
    index: Index,
    text: Annotated[str, Option("Text to run the model on.")],
    *,
    top: Top = 20,
    sort: Annotated[FiredBy, Option(_SORT, aliases=("--by",))] = "strength",
) -> Table:
    """Find the memories (FFN neurons) that fire most on a text.

    Caution: The memory that fires most need not matter most: `unembed trace` and `unembed ablate` measure effects.
    """
    return index.firing_on(text, top, by=sort)


def similar(
    index: Index,
    memory: Memory,
    *,
    top: Top = 20,
    among: Annotated[Among, Option("Compare value vectors (values) or keys.")] = "values",
) -> Table:
    """Find the memories (FFN neurons) whose value vectors, or keys, have the most similar directions.

    Caution: Two memories with similar vectors need not fire on the same text.
    """
    return index.similar(*memory.address, top, among=among, pole=memory.pole)


def sql(
    index: Index,
    query: Annotated[
        str, Option("A SELECT statement on the tables triggers, values, statistics, vocabulary, documents, labels.")
    ],
    *,
    timeout: Annotated[float, Option("Stop the query after this number of seconds.", low=0.1)] = 60.0,
) -> Table:
    """Run one SELECT statement on the tables of the index; it cannot write, or read other files.

    Caution: The table triggers has only the strongest examples of each memory (FFN neuron): counting its rows shows
    little about the rest of the corpus.
    """
    return index.sql(query, timeout=timeout)


def truth(
    index: Index,
    *,
    per_layer: PerLayer = 10,
    places: Places = 24,
    lens: LensFile = None,
    seed: Seed = 0,
) -> Table:
    """Measure by layer how well the tokens listed for value vectors match what adding them does; store the result.

    Runs `unembed truth` on a random sample of each layer's memories (FFN neurons), and stores the medians with the
    index. `unembed index status` and `unembed value` then show them.

    Caution: A median over a sample says little about one memory: `unembed value L5M278 --truth` measures one.
    """
    from unembed.jacobian import cached_lens, open_lens

    lm = index.model
    found = cached_lens(lm) if lens is None else None if lens == "none" else open_lens(lens)
    if found is not None:
        lm.lens = found.bound_to(lm)  # pyright: ignore[reportAttributeAccessIssue]
    return index.measure_truth(per_layer, contexts=places, seed=seed).to_table()


def status(index: Index) -> Answer:
    """Show an index's model and corpus, the progress of its build, and its size on disk.

    Caution: This is what the build recorded; `unembed index verify` checks the files themselves.
    """
    state = index.status()
    facts, about = state["facts"], state["provenance"]
    counts = [f"{facts[one]:,} {one[:-1] if facts[one] == 1 else one}" for one in _COUNTED if one in facts]
    sizes = [f"{name} {bytes_in_words(number)}" for name, number in state["parts"].items()]
    triggers = f"top {state['settings']['top']} triggers, {', '.join(state['poles']) or 'none yet'}"
    words = {
        "state": state["state"],
        "model": f"{about['model']}, {about['dtype']}, weights {state['weights'][:12]}",
        "corpus": f"{about['notes'].get('corpus_name')} {about['corpus']}",
        "text": ", ".join(counts) or "not read yet",
        "keys": f"{state['keys']:,} in {state['layers']} layers, {triggers}",
        "disk": f"{bytes_in_words(state['bytes'])}: {', '.join(sizes)}",
        "labels": f"{state['labels']:,}",
    }
    if state["truth"]:
        words["truth"] = state["truth"]
    if fast := about["notes"].get("fast"):
        change = about["notes"]["largest_change"]
        words["pass"] = f"fast ({fast}): coefficients changed by at most {format_number(change)} of the largest"
    table = index.table(f"Index {state['path']}", {name: [text] for name, text in words.items()})
    return Answer.of_table(table, data={"schema": "unembed.index.status/1", **state})


def verify(index: Index) -> Answer:
    """Check every file against its checksum; the exit status is 1 if one is damaged.

    Caution: A checksum finds a damaged file; it cannot find that the index was built from the wrong text or model.
    """
    found = index.verify()
    damaged = [i for i, fault in enumerate(found["fault"]) if fault is not None]
    if damaged:
        columns = {name: [found[name][i] for i in damaged] for name in ("file", "fault")}
        verdict = f"{len(damaged)} of {len(found)} files damaged; the same build repairs them"
        shown = (Exhibit("damaged", Table(found.title, columns, found.provenance), listed=len(damaged)),)
    else:
        verdict, shown = f"{len(found)} files, all sound", ()
    unfinished = "" if index.manifest.state == "complete" else "; the build is not finished"
    section = Section(found.title, (f"{verdict}{unfinished}",), shown)
    return Answer(found.title, (section,), found.provenance, data=found, is_fault=bool(damaged))


ANALYSES = tuple(
    Analysis(f"index {function.__name__}", function, needs, cost, example)
    for function, needs, cost, example in (
        (search, Needs.INDEX, Cost.INSTANT, "unembed index search mine.index 'river \"the bridge\" flood*'"),
        (triggers, Needs.INDEX, Cost.INSTANT, "unembed index triggers mine.index L4M571 --top 5"),
        (promoting, Needs.INDEX, Cost.INSTANT, 'unembed index promoting mine.index " river"'),
        (firing, Needs.INDEX, Cost.SECONDS, 'unembed index firing mine.index "The river rose over its"'),
        (similar, Needs.INDEX, Cost.SECONDS, "unembed index similar mine.index L4M571 --among keys"),
        (truth, Needs.INDEX, Cost.MINUTES, "unembed index truth mine.index"),
        (
            sql,
            Needs.INDEX,
            Cost.SECONDS,
            'unembed index sql mine.index "SELECT * FROM triggers WHERE layer = 4 LIMIT 5"',
        ),
        (status, Needs.FILES_OF_INDEX, Cost.INSTANT, "unembed index status mine.index"),
        (verify, Needs.FILES_OF_INDEX, Cost.SECONDS, "unembed index verify mine.index"),
    )
)
