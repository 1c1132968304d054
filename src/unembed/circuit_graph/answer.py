"""`unembed circuit`: show the circuit of a prompt, or of a file of prompt pairs, and its test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from unembed.analyses import Analysis, Cost, Needs
from unembed.circuit_graph.build import circuit_of
from unembed.circuit_graph.cases import Case, read_case
from unembed.circuit_graph.faithfulness import SIZES
from unembed.circuit_graph.graph import CircuitGraph
from unembed.circuit_graph.in_words import CircuitWords, test_in_words
from unembed.circuit_graph.one_token_change import with_counterfactual
from unembed.circuit_graph.outcome_tables import outcome_table
from unembed.circuit_graph.pair_files import read_pairs, usable_cases
from unembed.circuit_graph.removal_of_each import Removal, removal_of_each, usual_value
from unembed.circuit_graph.tested_picture import picture
from unembed.circuit_graph.viewer_graph import viewer_graph
from unembed.dictionaries import AttachedDictionary, Dictionary, attach, open_dictionary
from unembed.document.model import Answer, Exhibit, Section
from unembed.errors import InvalidInput
from unembed.gallery import atlas_descriptions
from unembed.models.decoder import Decoder
from unembed.names import CircuitNodes, GroupChange, GroupRule, QKRule, SetTo
from unembed.options import Against, Atlas, Dictionaries, Option, Out, Seed, Token
from unembed.results import check_writable, write_whole
from unembed.results.result_files import open_result
from unembed.stream.run import run

HELD_OUT = 4
"""Every fourth pair of a file is used only for the test, if there are at least `_ENOUGH` pairs and no test file."""
_ENOUGH = 8


class NamedGroup(NamedTuple):
    """A named group of nodes; its form on the command line is NAME=NODE,NODE."""

    name: str
    nodes: tuple[str, ...]


def read_group(text: str) -> NamedGroup:
    """Read a group of nodes from NAME=NODE,NODE.

    Raises:
        InvalidInput: the text is not of that form.
    """
    name, _, nodes = text.partition("=")
    names = tuple(part.strip() for part in nodes.split(",") if part.strip())
    if not name.strip() or not names:
        raise InvalidInput(f"group {text!r}", why="it is not of the form NAME=NODE,NODE, such as France=L23H4,L7M52@3")
    return NamedGroup(name.strip(), names)


def circuit_answer(
    lm: Decoder,
    prompt: Annotated[str | None, Option("The text to run the model on.", argument=True)] = None,
    *,
    token: Token = None,
    against: Against = None,
    against_prompt: Annotated[
        str | None,
        Option(
            "A counterfactual: a similar prompt, on which the model does not show the behaviour. Default: the prompt "
            "with one token replaced, found by search."
        ),
    ] = None,
    alone: Annotated[
        bool,
        Option(
            "Explain the prompt without comparing it to a counterfactual. By default, if --against-prompt is not "
            "given, a counterfactual is searched for: a prompt after which another token of the same kind is likely."
        ),
    ] = False,
    pairs: Annotated[
        Path | None,
        Option(
            "A file of prompt pairs. Each line is a JSON object with the fields prompt, counterfactual (a prompt "
            "without the behaviour), token (the answer) and against (the other answer).",
            metavar="FILE",
        ),
    ] = None,
    test_pairs: Annotated[
        Path | None,
        Option(
            "A file of pairs on which to test the circuit; default: every fourth pair of the --pairs file.",
            metavar="FILE",
        ),
    ] = None,
    dictionaries: Dictionaries = None,
    atlas: Atlas = None,
    qk: Annotated[
        QKRule,
        Option(
            "How relevance passes through attention. constant: only through the values, with the attention pattern of "
            "the run; shared: half of a head's relevance also goes through its pattern to queries and keys."
        ),
    ] = "constant",
    max_nodes: Annotated[int, Option("Largest number of heads and memories in the graph.", low=1)] = 100,
    nodes: Annotated[int, Option("Number of nodes to show.", low=1)] = 4,
    sizes: Annotated[
        list[int] | None,
        Option(
            "Number of nodes to test together, those with the largest relevance first; repeatable. Default: 10, "
            "30, 100.",
            low=1,
        ),
    ] = None,
    kinds: Annotated[
        CircuitNodes | None,
        Option(
            "Kind of nodes to test. Default: all kinds together; with --pairs, there are two tests: the memories "
            "alone, and all kinds together."
        ),
    ] = None,
    set_to: Annotated[
        SetTo | None,
        Option(
            "What the test sets a node to: mean (its mean over the counterfactuals), counterfactual (its value in the "
            "prompt's own counterfactual), corpus (its mean over a text) or zero. Default with counterfactuals: mean "
            "for a test of memories on several pairs, else counterfactual; without: corpus, or zero with --dictionary."
        ),
    ] = None,
    rankings: Annotated[
        bool,
        Option(
            "Also test circuits whose nodes are chosen by other scores: positive relevance alone (supporting), the "
            "plain gradient, the difference between the activations on the two prompts, or the coefficient."
        ),
    ] = False,
    graph: Annotated[
        Path | None,
        Option("Open a graph (and its groups) that --out wrote, instead of finding a circuit.", metavar="FILE"),
    ] = None,
    group_by: Annotated[
        GroupRule | None,
        Option(
            "Group nodes by role (what they do), by values (the direction of the vectors that they write), or by "
            "description (the tokens that these vectors promote)."
        ),
    ] = None,
    group: Annotated[
        list[NamedGroup] | None,
        Option(
            "Define a group of nodes, such as France=L23H4,L7M52@3 (@3: only at position 3); repeatable.",
            metavar="NAME=NODES",
            parse=read_group,
        ),
    ] = None,
    change: Annotated[
        GroupChange | None,
        Option(
            "Change to make to one group of nodes at a time: silence (set the activations of its nodes to 0), "
            "scale (multiply them by --times) or patch (replace them by those in the counterfactual). Default: patch "
            "if there is a counterfactual, else silence."
        ),
    ] = None,
    times: Annotated[
        float, Option("With `--change scale`: multiply the activations of the group's nodes by this.")
    ] = 2.0,
    viewer: Annotated[
        Path | None,
        Option(
            "Write the graph to this file, as JSON for the viewers of circuit-tracer and Neuronpedia.", metavar="FILE"
        ),
    ] = None,
    out: Out = None,
    seed: Seed = 0,
) -> Answer:
    """Show which heads and memories (FFN neurons) produce a token, what each reads, and what happens without them.

    The circuit is found in a linear model of the run, in which attention patterns, gates and norm scales are fixed, so
    that the relevance of all nodes adds up to the logits. It is then tested in the model itself, and compared with
    random nodes of the same layers. --out writes the graph; --json writes all of its nodes and edges. --group-by and
    --group change groups of nodes, and show what the prediction becomes.

    Caution: Attention patterns and gates are those of the run, so the graph does not show what changes them. Trust the
    test: a circuit that random nodes match explains nothing.
    """
    for path in (out, viewer):
        if path is not None:
            check_writable(path)
    if viewer is not None and prompt is None:
        raise InvalidInput("--viewer without a prompt", why="a viewer shows one prompt", instead="Give a prompt")
    test = _Test(tuple(sizes or SIZES), kinds, set_to, rankings, seed)
    form = _Form(nodes, group_by, tuple(group or ()), change, times, out, viewer, set_to)
    if (prompt is not None) + (pairs is not None) + (graph is not None) > 1 or (pairs and token is not None):
        raise InvalidInput(
            "a prompt, --pairs and --graph", why="a circuit is found for only one of them", instead="Give one"
        )
    dictionary = _attached(lm, dictionaries or ())
    known = None if atlas is None else atlas_descriptions(lm, atlas)
    if graph is not None:
        return _of_file(lm, graph, dictionary, test, form)

    def find(cases: tuple[Case, ...]) -> CircuitGraph:
        return circuit_of(lm, cases, max_nodes, dictionary, qk, known)

    if pairs is not None:
        return _of_pairs(lm, pairs, test_pairs, find, test, form)
    if prompt is None:
        raise InvalidInput("there is nothing to explain", why="a circuit needs a prompt, --pairs or --graph")
    target = int(run(lm, prompt).logits[0, -1].argmax()) if token is None else token
    case = read_case(lm, prompt, against_prompt, target, against)
    if case.counterfactual is None and not alone:
        case = with_counterfactual(lm, case)
    found = find((case,))
    return form.answer(found, test.of(found, (case,), (kinds,)))


def _attached(lm: Decoder, folders: Sequence[str]) -> AttachedDictionary | None:
    """Open the dictionaries in some folders, and attach each at the layer that its files name; None for no folder."""
    opened = [open_dictionary(folder) for folder in folders]
    parts = [part for one in opened for part in ((one,) if isinstance(one, Dictionary) else one)]
    return attach(lm, parts) if parts else None


@dataclass(frozen=True)
class _Test:
    """The options of a circuit's test."""

    sizes: tuple[int, ...]
    kinds: CircuitNodes | None
    set_to: SetTo | None
    rankings: bool
    seed: int

    def of(
        self,
        graph: CircuitGraph,
        cases: tuple[Case, ...],
        kinds: Sequence[CircuitNodes | None],
        *,
        held_out: bool = False,
    ) -> list[tuple[str, Exhibit]]:
        """Run a test for each of `kinds`, and return its result as a sentence with a table.

        If `rankings` is set, each test is followed by a table that compares relevance with other scores.
        """
        found: list[tuple[str, Exhibit]] = []
        for one in kinds:
            name = "test" if len(kinds) == 1 else f"test_{one}"
            tested = graph.tested(cases, self.sizes, kinds=one, to=self.set_to, seed=self.seed)
            table = outcome_table(graph.provenance, tested)
            found.append((test_in_words(tested, held_out=held_out), Exhibit(name, table, folded=True)))
            if self.rankings:
                table = graph.rankings(cases, self.sizes, kinds=one, to=self.set_to, seed=self.seed)
                found.append(("", Exhibit(name.replace("test", "rankings"), table)))
        return found


@dataclass(frozen=True)
class _Form:
    """The options of the output: what to show of a graph, which groups of nodes to change, and where to write it."""

    nodes: int
    group_by: GroupRule | None
    groups: tuple[NamedGroup, ...]
    change: GroupChange | None
    factor: float
    out: Path | None
    viewer: Path | None
    set_to: SetTo | None

    def answer(self, graph: CircuitGraph, tests: Sequence[tuple[str, Exhibit]], texts: tuple[str, ...] = ()) -> Answer:
        """Return the graph in words, its tests, and what the prediction becomes when its groups are changed."""
        for one in self.groups:
            graph = graph.with_group(one.name, one.nodes)
        graph = graph if self.group_by is None else graph.grouped(self.group_by)
        if self.out is not None:
            graph.save(self.out)
        if self.viewer is not None:
            write_whole(self.viewer, json.dumps(viewer_graph(graph), ensure_ascii=False, allow_nan=False))
        words, to = CircuitWords(graph), self.set_to or usual_value(graph.cases[0], graph.dictionary)
        removals = self._removals(graph, words, to)
        chain = words.chain(self.nodes, removals)
        exhibits = [Exhibit("chain", chain, brief=words.brief(chain))]
        if graph.groups:
            change = self.change or ("patch" if graph.is_paired else "silence")
            exhibits.append(Exhibit("groups", graph.intervene(change, factor=self.factor)))
        exhibits.append(Exhibit("nodes", graph.nodes, note=words.how(), folded=True))
        exhibits.append(Exhibit("edges", graph.edges, folded=True))
        exhibits += [exhibit for _, exhibit in tests]
        shown = [text for text, _ in tests if text]
        paragraphs = (
            words.first(removals, to),
            *shown,
            words.columns(chain),
            *words.of_atlas(chain),
            *texts,
            words.unopened(),
        )
        section = Section("The circuit", tuple(text for text in paragraphs if text), tuple(exhibits))
        return Answer(
            words.subject,
            (section,),
            graph.provenance,
            main="nodes",
            drawing=lambda: picture(graph, test=shown).to_dict(),
        )

    def _removals(self, graph: CircuitGraph, words: CircuitWords, to: SetTo) -> dict[str, Removal]:
        """Measure the model's prediction without each of the listed nodes, one at a time."""
        assert graph.lm is not None
        names = [row["name"] for row in words.first_nodes(self.nodes)]
        nodes = [[graph.node(name)] for name in names]
        found = removal_of_each(graph.lm, graph.cases, nodes, to, graph.dictionary)
        return dict(zip(names, found[1:], strict=True))


def _of_file(lm: Decoder, path: Path, dictionary: AttachedDictionary | None, test: _Test, form: _Form) -> Answer:
    opened = open_result(path)
    if not isinstance(opened, CircuitGraph):
        raise InvalidInput(
            f"{path}",
            why=f"it contains a {type(opened).__name__}, not a circuit",
            instead="Give a file that unembed circuit --out wrote",
        )
    graph = opened.bound_to(lm, dictionary)
    kinds = _tested_kinds(lm, test) if len(graph.cases) > 1 else (test.kinds,)
    return form.answer(graph, test.of(graph, graph.cases, kinds))


def _of_pairs(
    lm: Decoder,
    pairs: Path,
    test_pairs: Path | None,
    find: Callable[[tuple[Case, ...]], CircuitGraph],
    test: _Test,
    form: _Form,
) -> Answer:
    cases, skipped = usable_cases(lm, read_pairs(pairs))
    found_on, tested_on = _split(cases) if test_pairs is None else (cases, usable_cases(lm, read_pairs(test_pairs))[0])
    graph = find(found_on)
    tests = test.of(graph, tested_on, _tested_kinds(lm, test), held_out=tested_on is not found_on)
    left_out = f"{skipped} pairs were left out: their prompts differ in length, or an answer is not one token."
    return form.answer(graph, tests, (left_out,) if skipped else ())


def _tested_kinds(lm: Decoder, test: _Test) -> tuple[CircuitNodes, ...]:
    """Return the kinds of nodes to test on several prompts, with one test for each.

    By default, memories are tested alone, and then all kinds together; if the model has no memories, only all kinds.
    """
    if test.kinds is not None:
        return (test.kinds,)
    return ("memories", "all") if lm.n_memories else ("all",)


def _split(cases: tuple[Case, ...]) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Return the cases on which to find the circuit and those on which to test it; below `_ENOUGH`, all are in both."""
    if len(cases) < _ENOUGH:
        return cases, cases
    held_out = cases[HELD_OUT - 1 :: HELD_OUT]
    return tuple(case for i, case in enumerate(cases) if i % HELD_OUT != HELD_OUT - 1), held_out


ANALYSIS = Analysis(
    "circuit",
    circuit_answer,
    Needs.MODEL,
    Cost.SECONDS,
    example='unembed circuit "The capital of France is" --token " Paris" --against " London"',
    source="Arora et al. 2026; Rezaei Jafari et al. 2025; Marks et al. 2024",
)
