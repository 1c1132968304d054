"""Readings of the stream against the captured streams and the whole distributions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import tiny
from tests.families import WITH_MEMORIES
from unembed.language_model import LanguageModel
from unembed.lens import Reading, read
from unembed.names import StreamPoint
from unembed.stream.run import run


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_readings_are_those_of_the_captured_streams(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    last = trace.readings("resid_post", top=5)
    with torch.no_grad():
        logits = lm.hf(tokens[:1]).logits[0]
    assert torch.equal(last.ids[-1, :, 0], logits.argmax(-1))
    assert torch.equal(trace.prediction, logits.argmax(-1))
    torch.testing.assert_close(last.probabilities[-1], logits.softmax(-1).gather(1, last.ids[-1]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trace.logits(), logits[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_what_enters_a_layer_is_read_like_any_other_stream(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0], show_unlearned=True)
    x = run(lm, tokens[:1], ["resid_pre"])["resid_pre"][:, 0]
    plain = read(lm, x, 10, track=trace.prediction[:, None].expand(lm.n_layers, -1, 1))
    found = trace.readings("resid_pre")
    assert torch.equal(found.ids, plain.ids)
    torch.testing.assert_close(found.probabilities, plain.probabilities, rtol=1e-4, atol=1e-6)
    assert torch.equal(trace.prediction_ranks("resid_pre"), plain.tracked_ranks[..., 0])
    for point in ("resid_pre", "resid_post"):
        answer = int(trace.prediction[4])
        assert torch.equal(trace.ranks_of(answer, point, position=4), trace.ranks_of(answer, point)[:, 4:5])


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_reading_by_layers_gives_what_reading_at_once_gives(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    at_once, by_layers = lm.trace(tokens[0]), lm.trace(tokens[0])
    seen: dict[str, list[int]] = {}
    for layers, point, found in by_layers.by_layers(vectors=1):
        whole = at_once.readings(point)
        assert torch.equal(found.ids, whole.ids[layers.start : layers.stop])
        ranks = at_once.prediction_ranks(point)[layers.start : layers.stop]
        assert torch.equal(found.tracked_ranks[..., 0], ranks)
        seen.setdefault(point, []).extend(reversed(layers))
    assert next(iter(seen)) == "resid_post" and len(seen) == 2
    assert all(layers == list(reversed(range(lm.n_layers))) for layers in seen.values())
    assert by_layers.events() == at_once.events()
    assert not list(by_layers.by_layers()), "what has been read is read once more"


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_the_spread_is_that_of_the_whole_distributions(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0], show_unlearned=True)
    entropy, divergence = trace.entropy_and_kl()
    probabilities = trace.readings(top=lm.d_vocab)
    p = torch.zeros(*probabilities.ids.shape, dtype=torch.float64)
    p.scatter_(-1, probabilities.ids, probabilities.probabilities.double())
    torch.testing.assert_close(entropy.double(), -(p * p.log()).sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(divergence.double(), (p * (p.log() - p[-1].log())).sum(-1), rtol=1e-3, atol=1e-5)
    assert float(divergence[-1].max()) < 1e-5 < float(divergence[0].max())


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_ranks_and_probabilities_are_those_among_all_tokens(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace = lm.trace(tokens[0])
    with torch.no_grad():
        p = lm.hf(tokens[:1]).logits[0].softmax(-1)
    for token in (11, int(trace.prediction[3])):
        for position in (None, 3):
            ranks, probabilities = trace.ranks_and_probabilities(token, position=position)
            at = slice(None) if position is None else [position]
            assert torch.equal(ranks[-1], (p[at] > p[at, token : token + 1]).sum(-1) + 1)
            torch.testing.assert_close(probabilities[-1], p[at, token], rtol=1e-4, atol=1e-6)
    listed = [5, 11, int(trace.prediction[3])]
    points = ["resid_post", "resid_pre"]
    among = trace.ranks_among([listed, listed[::-1]], points, 1, 3)
    for got, ids, point in zip(among.tolist(), (listed, listed[::-1]), points, strict=True):
        assert got == [int(trace.ranks_of(t, point, position=3)[1, 0]) for t in ids]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gptj", "attention-only"])
def test_one_position_is_read_alone_and_has_the_numbers_it_has_among_all(
    name: str, tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, column = tiny(name), 4
    whole, one = lm.trace(tokens[:1]), lm.trace(tokens[:1])
    points: list[StreamPoint] = ["resid_pre", "resid_post"]
    expected = {p: whole.readings(p) for p in points}
    moved = whole.rank_changes(position=column)
    events = [] if name == "attention-only" else [e for e in whole.events() if e.position == column]
    read_rows: list[int] = []

    def counted(lm: LanguageModel, x: torch.Tensor, *args: Any, **options: Any) -> Reading:
        read_rows.append(x.shape[:-1].numel())
        return read(lm, x, *args, **options)

    monkeypatch.setattr("unembed.trace.readings.read", counted)
    monkeypatch.setattr("unembed.trace.prompt_events.read", counted)
    for point in points:
        found = one.readings(point, position=column)
        torch.testing.assert_close(found.ids, expected[point].ids[:, [column]])
        torch.testing.assert_close(found.logits, expected[point].logits[:, [column]], rtol=1e-5, atol=1e-5)
        rows = [row for row in expected[point].to_table().rows() if row["position"] == column]
        assert [row["token"] for row in found.to_table().rows()] == [row["token"] for row in rows]
        assert {row["position"] for row in found.to_table().rows()} == {column}
    if name != "attention-only":
        assert list(one.events(column)) == events
    assert list(one.rank_changes(position=column)) == list(moved)
    assert sum(read_rows) <= 4 * lm.n_layers + 1


def test_a_position_that_was_read_among_all_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tiny("llama").trace(torch.tensor([5, 6, 7, 8]))
    whole = trace.readings()
    monkeypatch.setattr("unembed.trace.readings.read", None)
    assert torch.equal(trace.readings(position=2).ids, whole.ids[:, [2]])
    assert torch.equal(trace.prediction_ranks(position=2), trace.prediction_ranks()[:, [2]])
