"""Events and rank changes of a prompt against their definitions, read off full rankings."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from unembed.stream.run import run


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_neox", "mixtral"])
def test_events_follow_their_definition_read_off_full_rankings(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    before = "resid_pre" if lm.structure.blocks[0].parallel else "resid_mid"
    seen = run(lm, tokens[:1], ["resid_pre", before, "resid_post"])
    structure = lm.structure
    with torch.no_grad():
        order = {
            p: structure.capped(structure.head(structure.final_norm.module(seen[p][:, 0]))).argsort(
                dim=-1, descending=True
            )
            for p in ("resid_pre", before, "resid_post")
        }
    for position in range(9):
        final = int(order["resid_post"][-1, position, 0])
        tops = [int(order["resid_post"][n, position, 0]) for n in range(lm.n_layers)]
        settled = next(n for n in range(lm.n_layers) if all(t == final for t in tops[n:]))
        events = {e.kind: e for e in trace.events(position)}
        event = events["saturation"]
        entering, rank = (order[p][settled, position].tolist().index(final) + 1 for p in ("resid_pre", before))
        cause = "ffn" if rank > 1 else "attention" if entering > 1 else "embedding"
        assert (event.layer, event.token, event.cause) == (settled, final, cause)
        assert (event.rank_before, event.rank_after) == (rank if cause == "ffn" else entering, 1)
        assert event.rank_before > 1 or settled == 0
        fell = [
            order["resid_post"][n, position].tolist().index(int(order[before][n, position, 0])) + 1
            for n in range(lm.n_layers)
        ]
        if max(fell) == 1:
            assert "elimination" not in events
        else:
            assert (events["elimination"].layer, events["elimination"].rank_after) == (fell.index(max(fell)), max(fell))


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj"])
def test_rank_changes_are_all_the_updates_that_halve_or_double_a_rank(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    found = {(m.layer, m.position, m.cause): (m.kind, m.rank_before, m.rank_after) for m in trace.rank_changes(11)}
    expected = {}
    if not trace.parallel:
        pre, mid, post = (trace.ranks_of(11, p) for p in ("resid_pre", "resid_mid", "resid_post"))
        for cause, before, after in (("attention", pre, mid), ("ffn", mid, post)):
            for n in range(lm.n_layers):
                for p in range(len(trace)):
                    a, b = int(before[n, p]), int(after[n, p])
                    if a >= 2 * b or b >= 2 * a:
                        expected[n, p, cause] = ("rise" if b < a else "fall", a, b)
    assert found == expected and bool(found) is not trace.parallel
    assert trace.rank_changes(11, 4) == [m for m in trace.rank_changes(11) if m.position == 4]
    assert trace.rank_changes(position=4) == trace.rank_changes(int(trace.prediction[4]), 4)
