"""`unembed circuit`: the circuit of a prompt or of a set of pairs, for reading, with its test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from unembed.analyses import Analysis, Cost, Needs
from unembed.circuit_graph.build import circuit_of
from unembed.circuit_graph.cases import Case, read_case
from unembed.circuit_graph.graph import CircuitGraph, test_table
from unembed.circuit_graph.in_words import CircuitWords, test_in_words
from unembed.circuit_graph.one_token_change import with_counterfactual
from unembed.circuit_graph.pair_files import read_pairs, usable_cases
from unembed.circuit_graph.tested_picture import picture
from unembed.circuit_graph.viewer_graph import viewer_graph
from unembed.document.model import Answer, Exhibit, Section
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import CircuitNodes
from unembed.options import Against, Option, Out, Seed, Token
from unembed.results import Table, check_writable, write_whole
from unembed.stream.run import run

HELD_OUT = 4
"""Of a file of pairs every fourth is for the test, where there are at least `_ENOUGH` and no file for it."""
_ENOUGH = 8


def circuit_answer(
    lm: Decoder,
    prompt: Annotated[str | None, Option("The text to run the model on.", argument=True)] = None,
    *,
    token: Token = None,
    against: Against = None,
    against_prompt: Annotated[
        str | None,
        Option("The same prompt without the behaviour; default with --against: one token changed, found by trying."),
    ] = None,
    alone: Annotated[bool, Option("Explain the prompt by itself, without a counterfactual.")] = False,
    pairs: Annotated[
        Path | None,
        Option("A file of prompt, counterfactual, token, against: a JSON object on each line.", metavar="FILE"),
    ] = None,
    test_pairs: Annotated[
        Path | None, Option("Pairs for the test; default: every fourth of --pairs.", metavar="FILE")
    ] = None,
    max_nodes: Annotated[int, Option("Largest number of heads and memories in the graph.", low=1)] = 100,
    nodes: Annotated[int, Option("Nodes shown.", low=1)] = 6,
    viewer: Annotated[
        Path | None,
        Option("Write the graph as JSON for the viewers of circuit-tracer and Neuronpedia.", metavar="FILE"),
    ] = None,
    out: Out = None,
    seed: Seed = 0,
) -> Answer:
    """Show which heads and memories (FFN neurons) produce a token, what each reads, and what happens without them.

    Numbers add up to the logits: the circuit is found in the linear model of the run (attention patterns, gates and
    norm scales as they are), and tested in the model itself, beside random nodes of the same layers. --out writes the
    graph, --json holds all of its nodes and edges.
    """
    for path in (out, viewer):
        if path is not None:
            check_writable(path)
    if pairs is not None:
        if viewer is not None:
            raise InvalidInput("--viewer with --pairs", why="a viewer shows one prompt", instead="Give a prompt")
        if prompt is not None or token is not None or against is not None:
            raise InvalidInput("a prompt and --pairs", why="a circuit is of one or of the other")
        return _of_pairs(lm, pairs, test_pairs, max_nodes, nodes, out)
    if prompt is None:
        raise InvalidInput("a circuit of nothing", why="it needs a prompt or --pairs")
    target = int(run(lm, prompt).logits[0, -1].argmax()) if token is None else token
    case = read_case(lm, prompt, against_prompt, target, against)
    if against is not None and case.counterfactual is None and not alone:
        case = with_counterfactual(lm, case)
    graph = circuit_of(lm, (case,), max_nodes)
    if viewer is not None:
        write_whole(viewer, json.dumps(viewer_graph(graph), ensure_ascii=False, allow_nan=False))
    tested = graph.tested(sizes=(10, 30, 100), seed=seed)
    return _answer(graph, nodes, (test_in_words(tested),), (("test", test_table(graph, tested)),), out)


def _of_pairs(
    lm: Decoder, pairs: Path, test_pairs: Path | None, max_nodes: int, nodes: int, out: Path | None, seed: int
) -> Answer:
    cases, skipped = usable_cases(lm, read_pairs(pairs))
    found_on, tested_on = _split(cases) if test_pairs is None else (cases, usable_cases(lm, read_pairs(test_pairs))[0])
    graph = circuit_of(lm, found_on, max_nodes)
    held_out = tested_on is not found_on
    kinds: tuple[CircuitNodes, ...] = ("memories", "all") if lm.n_memories else ("all",)
    tests = [graph.tested_on(tested_on, (10, 30, 100), kinds=k, seed=seed) for k in kinds]
    texts = [test_in_words(one, held_out=held_out) for one in tests]
    if skipped:
        texts.append(f"{skipped} pairs were left out: their prompts differ in length, or an answer is not one token.")
    tables = tuple((f"test_{k}", test_table(graph, one)) for k, one in zip(kinds, tests, strict=True))
    return _answer(graph, nodes, tuple(texts), tables, out)


def _split(cases: tuple[Case, ...]) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """The cases on which the circuit is found, and those on which it is tested."""
    if len(cases) < _ENOUGH:
        return cases, cases
    held_out = cases[HELD_OUT - 1 :: HELD_OUT]
    return tuple(case for i, case in enumerate(cases) if i % HELD_OUT != HELD_OUT - 1), held_out


def _answer(
    graph: CircuitGraph,
    nodes: int,
    tests: tuple[str, ...],
    tables: tuple[tuple[str, Table], ...],
    out: Path | None,
) -> Answer:
    if out is not None:
        graph.save(out)
    words = CircuitWords(graph)
    chain = Exhibit("chain", words.chain(nodes))
    more = [Exhibit("nodes", graph.nodes, folded=True), Exhibit("edges", graph.edges, folded=True)]
    more += [Exhibit(name, table, folded=True) for name, table in tables]
    section = Section("The circuit", (words.first(), *tests, words.how()), (chain, *more))
    return Answer(
        words.subject, (section,), graph.provenance, main="nodes", drawing=lambda: picture(graph, test=tests).to_dict()
    )


ANALYSIS = Analysis(
    "circuit",
    circuit_answer,
    Needs.MODEL,
    Cost.SECONDS,
    example='unembed circuit "The capital of France is" --token " Paris" --against " London"',
    source="Arora et al. 2026; Rezaei Jafari et al. 2025; Marks et al. 2024",
)
