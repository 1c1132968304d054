"""The circuit of subject-verb agreement in a real model: what it carries, beside other orders of nodes, and what it costs.

    python benchmarks/circuit.py                     # on smollm2 (`unembed models get smollm2`): a few minutes
    python benchmarks/circuit.py cost                # one part: agreement, cost

Pairs of `sva/`: the first 100 of `simple_train` whose prompts have equal lengths and whose answers are single tokens; the
test is on the first 40 such pairs of `simple_test`, which the circuit was not found on. CPU time on one thread.

Beside circuit-tracer, whose graphs consist of the features of transcoders: `attribution_graphs.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Claim, into_results, record

import unembed
from unembed.circuit_graph.build import SHARE
from unembed.circuit_graph.cases import Case
from unembed.circuit_graph.direct_edges import inflow
from unembed.circuit_graph.node_scores import node_scores, select_nodes
from unembed.circuit_graph.pair_files import read_pairs, usable_cases

DATA = Path(__file__).parent / "sva"
FOUND_ON, TESTED_ON = 100, 40
ROUNDS = 7
SIZES = (10, 30, 100, 300)
PROMPT = ("The capital of France is", "The capital of Italy is", " Paris", " Rome")
FAITHFULNESS = {30: 0.60, 100: 0.90}
"""What a circuit of so many memories must reach."""


def pairs(lm: unembed.LanguageModel, name: str, count: int) -> list[tuple[object, ...]]:
    """The first usable pairs of a file."""
    cases, _ = usable_cases(lm, read_pairs(DATA / f"{name}.jsonl"))
    return [(case.prompt, case.counterfactual, case.token, case.against) for case in cases[:count]]


def agreement(lm: unembed.LanguageModel) -> None:
    """Faithfulness and complement by size, beside other orders and random memories, and the limits of the claim."""
    graph = lm.circuit(pairs=pairs(lm, "simple_train", FOUND_ON), max_nodes=1)  # edges are not needed here
    table = graph.rankings(pairs(lm, "simple_test", TESTED_ON), SIZES, kinds="memories")
    rows = {(row["ranked_by"], row["nodes"]): row for row in table.rows()}
    claims = [
        Claim(f"{limit} to the share that {size} memories keep", limit / rows["relevance", size]["faithfulness"], 1.0,
              f"{rows['relevance', size]['faithfulness']:.2f}")
        for size, limit in FAITHFULNESS.items()
    ]  # fmt: skip
    left, random = rows["relevance", 100]["complement"], rows["random", 100]["faithfulness"]
    claims.append(Claim("left without the 100, to 0.05", max(left, 0.0) / 0.05, 1.0, f"{left:.2f}"))
    claims.append(Claim("kept by 100 random memories, to 0.02", max(random, 0.0) / 0.02, 1.0, f"{random:.2f}"))
    how = f"{lm.name}: found on {FOUND_ON} pairs, tested on {TESTED_ON} others; memories (FFN neurons) alone, attention untouched."
    record("Circuit of subject-verb agreement", claims, how=how)
    into_results("Circuit of subject-verb agreement by size and order", [table])


def cost(lm: unembed.LanguageModel) -> None:
    """Node scores, a graph of 100 nodes with its edges, and the test, in forward passes of the same prompts."""
    prompt, other, token, against = PROMPT
    case = Case(
        tuple(lm.encode(prompt)[0].tolist()),
        tuple(lm.encode(other)[0].tolist()),
        lm.single_token(token),
        lm.single_token(against),
    )
    ids = lm.encode(prompt)

    @torch.no_grad()
    def forward() -> object:
        return lm.hf(ids, use_cache=False).logits

    nodes = [node for node, _ in select_nodes(node_scores(lm, [case]), 100, SHARE)]
    graph = lm.circuit(prompt, token, against, other)
    plain, scores_seconds, edges_seconds, test_seconds = seconds_of(
        forward,
        lambda: node_scores(lm, [case]),
        lambda: inflow(lm, [case], nodes),
        lambda: graph.test(sizes=(30,)),
    )
    claims = [
        Claim("node scores, to 4 forward passes", scores_seconds / (4 * plain), 1.0, f"{scores_seconds:.2f} s"),
        Claim(f"a graph of {len(nodes)} nodes with edges, to 60 forward passes", (scores_seconds + edges_seconds) / (60 * plain),
              1.0, f"{scores_seconds + edges_seconds:.2f} s"),
        Claim("the test of one size with 5 random circuits, in forward passes", test_seconds / plain, None,
              f"{test_seconds:.2f} s"),
    ]  # fmt: skip
    how = f"{lm.name}, a prompt of {ids.shape[1]} tokens and its counterfactual; a forward pass takes {plain:.3f} s."
    record("Circuit of a prompt: cost", claims, how=how)


def seconds_of(*works: Callable[[], object]) -> list[float]:
    """CPU seconds of each call, the least of `ROUNDS` after the first.

    The calls take turns, so that what else the machine does at a time slows all of them alike.
    """
    least = [float("inf")] * len(works)
    for number in range(1 + ROUNDS):
        for i, work in enumerate(works):
            start = time.process_time()
            work()
            least[i] = min(least[i], time.process_time() - start) if number else least[i]
    return least


PARTS = {"cost": cost, "agreement": agreement}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all when none")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lm = unembed.load("smollm2")
    for part in arguments.parts or PARTS:
        PARTS[part](lm)


if __name__ == "__main__":
    main()
