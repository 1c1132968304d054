"""The questions that an index can answer alone, declared for the command line and the explorer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Exhibit, Screen, Section
from unembed.names import Among, FiredBy, PromotedBy
from unembed.options import AnySide, Context, LensFile, Memory, Option, PerLayer, Places, Seed, Top
from unembed.results import Table, bytes_in_words, visible

if TYPE_CHECKING:
    from unembed.index.index import Index

_COUNTED = ("tokens", "segments", "documents")
_SORT = "What rows are sorted by; strength: the coefficient relative to the key's largest."


def search(
    index: Index,
    words: Annotated[str, Option('Words, all required; "a phrase"; begin*.', metavar="TEXT")],
    *,
    top: Top = 20,
    pole: AnySide = None,
    context: Context = None,
) -> Table:
    """Find triggers by their text, the strongest first.

    Caution: The index holds the strongest triggers only; other text is not found.
    """
    return index.search(words, top, pole=pole, context=context)


def triggers(index: Index, memory: Memory, *, top: Top = 20, pole: AnySide = None, context: Context = None) -> Answer:
    """Show the prefixes on which a key fires most, their last token marked, and what its value promotes there.

    -L5M278 is the memory (FFN neuron) at negative coefficients, as --pole negative is.

    Caution: They are the strongest of one corpus, a small part of where the memory fires; a pattern in them need not
    hold for the rest.
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
    promoted: Annotated[str, Option("One token, its leading space included.", metavar="TOKEN")],
    *,
    top: Top = 20,
    sort: Annotated[PromotedBy, Option(_SORT, aliases=("--by",))] = "score",
) -> Table:
    """Find the values that promote a token.

    Caution: A value's list is a reading of its direction; `value --truth` compares it with what adding the value does.
    """
    return index.promoting(promoted, top, by=sort)


def firing(
    index: Index,
    text: Annotated[str, Option("Any text; the model is run on it.")],
    *,
    top: Top = 20,
    sort: Annotated[FiredBy, Option(_SORT, aliases=("--by",))] = "strength",
) -> Table:
    """Find the keys that fire most on a text.

    Caution: A key that fires most is not the one that matters most: `trace` and `ablate` measure the effect.
    """
    return index.firing_on(text, top, by=sort)


def similar(
    index: Index,
    memory: Memory,
    *,
    top: Top = 20,
    among: Annotated[Among, Option("Compare values or keys.")] = "values",
) -> Table:
    """Find the memories (FFN neurons) whose values, or keys, point the same way.

    Caution: A cosine of two directions says nothing of whether both fire on the same text.
    """
    return index.similar(*memory.address, top, among=among, pole=memory.pole)


def sql(
    index: Index,
    query: Annotated[str, Option("One SELECT over triggers, values, statistics, vocabulary, documents, labels.")],
    *,
    timeout: Annotated[float, Option("Seconds after which the query is stopped.", low=0.1)] = 60.0,
) -> Table:
    """Run one SELECT statement, read-only and restricted to the index.

    Caution: Triggers are the strongest of one corpus: a count of them says little of the rest of the text.
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
    """Measure by layer how true readings of values are, and store the result with the index.

    As `unembed truth` does for a random sample of each layer. `unembed index status` and `unembed value` show it.

    Caution: A median of a sample says little of one memory (FFN neuron): `unembed value L5M278 --truth` measures it.
    """
    from unembed.jacobian import open_lens

    lm = index.model
    if lens is not None:
        lm.lens = None if lens == "none" else open_lens(lens).bound_to(lm)  # pyright: ignore[reportAttributeAccessIssue]
    return index.measure_truth(per_layer, contexts=places, seed=seed).to_table()


def status(index: Index) -> Answer:
    """Show an index's model and corpus, the progress of its build, and its size on disk.

    Caution: This is what the build recorded; `index verify` reads the files.
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
        words["pass"] = f"fast ({fast}): coefficients changed by at most {change:.2g} of the largest"
    table = index.table(f"Index {state['path']}", {name: [text] for name, text in words.items()})
    return Answer.of_table(table, data={"schema": "unembed.index.status/1", **state})


def verify(index: Index) -> Answer:
    """Check every file against its checksum; exit status 1 if one is damaged.

    Caution: A checksum finds a damaged file, not a text or a model that was the wrong one.
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
