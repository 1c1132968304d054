"""Make tables of a circuit's test, and of tests of circuits whose nodes are selected by other scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unembed.circuit_graph.faithfulness import CircuitTest, Share
from unembed.names import RankedBy
from unembed.results import Provenance, Table, format_signed


def outcome_table(provenance: Provenance, tested: CircuitTest) -> Table:
    """Return the results of a test as a table with a row for each circuit size."""
    columns: dict[str, list[object]] = {"nodes": [row.nodes for row in tested.rows]}
    for name in ("faithfulness", "complement", "random", "random_complement"):
        columns |= _shares(name, [getattr(row, name) for row in tested.rows])
    columns["random_does_as_well"] = [row.is_matched for row in tested.rows]
    return Table(_title(tested), columns, _of(provenance, tested))


def rankings_table(provenance: Provenance, tests: Mapping[RankedBy, CircuitTest]) -> Table:
    """Return a table of tests, with a row for each ranking and size; random nodes come last."""
    first = next(iter(tests.values()))
    rows = [(by, row.nodes, row.faithfulness, row.complement) for by, tested in tests.items() for row in tested.rows]
    rows += [("random", row.nodes, row.random, row.random_complement) for row in first.rows]
    columns: dict[str, list[object]] = {"ranked_by": [row[0] for row in rows], "nodes": [row[1] for row in rows]}
    columns |= _shares("faithfulness", [row[2] for row in rows]) | _shares("complement", [row[3] for row in rows])
    return Table(f"Orders of nodes. {_title(first)}", columns, _of(provenance, first))


def _shares(name: str, shares: list[Share]) -> dict[str, list[object]]:
    return {
        name: [share.value for share in shares],
        f"{name}_low": [share.low for share in shares],
        f"{name}_high": [share.high for share in shares],
    }


def _title(tested: CircuitTest) -> str:
    prompts = "1 prompt" if tested.n_prompts == 1 else f"{tested.n_prompts} prompts"
    return (
        f"Circuit of {tested.n_nodes:,} {tested.what} on {prompts}, all others at their {tested.baseline} "
        f"values: {format_signed(tested.model)} with all, {format_signed(tested.none)} with none"
    )


def _of(provenance: Provenance, tested: CircuitTest) -> Provenance:
    notes = {"to": tested.baseline, "kinds": list(tested.kinds)}
    return replace(provenance, notes={**provenance.notes, **notes})
