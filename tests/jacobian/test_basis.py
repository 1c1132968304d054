"""The basis "jacobian" against the lens's own products, wherever streams, values and heads are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import unembed
from tests.cli.conftest import PROMPT, save_model
from unembed.concepts.value_concepts import value_concepts
from unembed.errors import InvalidInput
from unembed.index.memory_search import search
from unembed.jacobian import JacobianLens, cached_lens, fit_lens, lens_path
from unembed.language_model import LanguageModel
from unembed.memories.token_ranking import promoting, score_spreads, token_scores_of_values, word_forms
from unembed.memories.values import value_ends, written_values
from unembed.trace import logit_lens

TEXT = "The war lasted from 1861 to"


@pytest.fixture(scope="module")
def fitted() -> tuple[LanguageModel, JacobianLens]:
    lm = unembed.load("wren")
    lens = fit_lens(lm, contexts=6, length=24)
    return lm, lm.use_lens(lens)


@pytest.fixture(scope="module")
def plain() -> LanguageModel:
    lm = unembed.load("wren")
    lm.lens = None
    return lm


def test_streams_are_read_affinely_by_default(fitted: tuple[LanguageModel, JacobianLens], plain: LanguageModel) -> None:
    lm, lens = fitted
    trace, without = lm.trace(TEXT), plain.trace(TEXT)
    for point in ("resid_pre", "resid_mid", "resid_post"):
        found = trace.readings(point)
        assert found.basis == found.provenance.basis == "jacobian"
        for layer in range(lm.n_layers):
            scores = lens.read(trace.stream(point)[layer], layer, point)
            ranks = (scores > scores.gather(1, trace.prediction[:, None])).sum(dim=1) + 1  # hidden tokens count
            assert trace.hidden is not None
            scores[:, trace.hidden] = -torch.inf
            torch.testing.assert_close(found.logits[layer].float(), scores.topk(10).values, rtol=1e-4, atol=1e-4)
            assert trace.prediction_ranks(point)[layer].tolist() == ranks.tolist()
            own = trace.ranks_among([[int(trace.prediction[-1])]], [point], layer, -1)
            assert int(own) == int(ranks[-1])
    named = trace.readings(basis="final")
    torch.testing.assert_close(named.logits, without.readings().logits)
    assert without.readings().basis == "final"


def test_events_stay_those_of_the_papers(fitted: tuple[LanguageModel, JacobianLens], plain: LanguageModel) -> None:
    assert list(fitted[0].trace(TEXT).events()) == list(plain.trace(TEXT).events())
    assert list(fitted[0].trace(TEXT).rank_changes()) == list(plain.trace(TEXT).rank_changes())


def test_values_are_read_linearly_by_default(fitted: tuple[LanguageModel, JacobianLens]) -> None:
    lm, lens = fitted
    for layer in (0, 3, lm.n_layers - 1):
        scores = lens.direction(written_values(lm, layer, slice(0, 40)), layer)
        scores[:, lm.unlisted] = -torch.inf
        ids, values = lm.values.top(layer, range(40), 8)
        torch.testing.assert_close(values.float(), scores.topk(8).values, rtol=1e-3, atol=1e-4)
        high, low = value_ends(lm, 8, layers=[layer])
        torch.testing.assert_close(high.scores[0, :40], scores.topk(8).values, rtol=1e-3, atol=1e-4)
        scores[:, lm.unlisted] = torch.inf
        lowest = scores.topk(8, largest=False).values
        torch.testing.assert_close(low.scores[0, :40], lowest, rtol=1e-3, atol=1e-4)
        assert high.basis == low.provenance.basis == "jacobian"
        assert lm.values.top(layer, 5, 8)[0].tolist() == ids[5].tolist()
        edges, counts = lm.values.score_histogram(layer, 5)
        assert float(edges[-1]) == pytest.approx(float(values[5, 0]), abs=1e-3)
        assert int(counts.sum()) == int((~lm.unlisted).sum())


def test_search_by_words_ranks_by_what_values_truly_raise(fitted: tuple[LanguageModel, JacobianLens]) -> None:
    lm, lens = fitted
    ids = torch.tensor(word_forms(lm, "year"))
    scores = torch.cat([lens.direction(written_values(lm, n), n)[:, ids] for n in range(lm.n_layers)])
    torch.testing.assert_close(token_scores_of_values(lm, ids), scores, rtol=1e-3, atol=1e-4)
    found = promoting(lm, ["year"], 3)
    for one in found:
        rows = lens.direction(written_values(lm, one.layer, slice(one.index, one.index + 1)), one.layer)[0]
        assert one.score == pytest.approx(float(rows[ids].max()), rel=1e-3)
    every = torch.cat([lens.direction(written_values(lm, n), n) for n in range(lm.n_layers)])
    deviations = every[:, ids] / every.std(dim=1, correction=0, keepdim=True)
    torch.testing.assert_close(score_spreads(lm), every.std(dim=1, correction=0), rtol=1e-3, atol=1e-5)
    hit = search(lm, None, "year", 1).hits[0]
    assert hit.layer * lm.d_mlp + hit.index == int(deviations.max(dim=1).values.argmax())


def test_heads_and_concepts_say_their_basis(fitted: tuple[LanguageModel, JacobianLens]) -> None:
    lm, lens = fitted
    run = lm.run(TEXT, ["z"])
    update = lm.trace(TEXT).head_updates(4, top_tokens=5)[0]
    written = run["z"][4, 0, -1, update.index] @ lm.weights.W_O[4][update.index]
    scores = lens.direction(written, 4, "resid_mid")
    scores[lm.unlisted] = -torch.inf
    assert update.top_tokens == lm.token_strings(scores.topk(5).indices)
    found = value_concepts(lm, ["L3M5"], embedding=False)
    assert found.basis == found.provenance.basis == "jacobian"
    assert found.ids[0].tolist() == lm.values.top(3, 5, 30)[0].tolist()
    table = logit_lens(lm, [TEXT])
    assert table.title.startswith("Jacobian lens") and table.provenance.basis == "jacobian"


def test_without_a_lens_the_basis_is_refused(plain: LanguageModel) -> None:
    assert plain.values.readings(2, layers=[0]).basis == "raw"
    for call in (
        lambda: plain.values.top(0, 1, basis="jacobian"),
        lambda: plain.trace(TEXT).readings(basis="jacobian"),
    ):
        with pytest.raises(InvalidInput, match="no lens is fitted"):
            call()


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: object) -> Result:
        from unembed.cli.commands import app

        return CliRunner().invoke(app, [str(word) for word in words])

    yield run


def test_a_kept_lens_is_the_default_of_commands(command: Callable[..., Result], tmp_path: Path) -> None:
    folder, text = save_model(tmp_path / "tiny"), tmp_path / "text.txt"
    text.write_text(" ".join(["The first month of the year is January a b c d e f g"] * 20))
    before = command("trace", PROMPT, "--model", folder)
    assert before.exit_code == 0 and "how far it can be trusted was not measured" in before.stderr
    for reading in (("value", "L1M3"), ("concepts", "L1M3"), ("memories",)):
        shown = command(*reading, "--model", folder)
        assert shown.exit_code == 0, shown.output
        assert shown.stderr.count("read by the logit lens") == 1, reading
    assert "read by the logit lens" in command("value", "L1M3", "--model", folder).stdout
    fit = ("fit-lens", "--model", folder, "--corpus", text, "--contexts", 4, "--context-length", 12)
    assert command(*fit, "--out", tmp_path / "a.lens").exit_code == 0
    lm = unembed.load(folder)
    assert cached_lens(lm) is None
    given = command("trace", PROMPT, "--model", folder, "--lens", tmp_path / "a.lens", "--json")
    assert given.exit_code == 0 and '"basis": "jacobian"' in given.stdout
    assert command(*fit).exit_code == 0
    kept = cached_lens(lm)
    assert kept is not None and lens_path(kept.fingerprint).exists()
    found = command("value", "L1M3", "--model", folder)
    assert "reading with the Jacobian lens that was fitted on 4 contexts" in found.stderr
    assert "read by the fitted lens" in found.stdout
    off = command("value", "L1M3", "--model", folder, "--lens", "none")
    assert off.exit_code == 0 and "fitted lens" not in off.stdout + off.stderr


def test_a_lens_that_is_no_file_is_refused(command: Callable[..., Result], tmp_path: Path) -> None:
    missing = command("value", "L1M3", "--lens", tmp_path / "none.lens")
    assert missing.exit_code == 1 and "there is no such file" in missing.stderr


def test_reports_read_as_the_papers_do(
    fitted: tuple[LanguageModel, JacobianLens], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import unembed.reports.geva2022 as study

    lm, lens = fitted
    seen: list[object] = []

    def run(model: LanguageModel, *_args: object, **_options: object) -> None:
        seen.append(model.lens)
        raise RuntimeError("stop")

    monkeypatch.setattr(study, "run", run)
    with pytest.raises(RuntimeError, match="stop"):
        lm.report("geva2022", out=tmp_path / "report")
    assert seen == [None] and lm.lens is lens


def test_the_table_of_a_trace_names_its_basis(fitted: tuple[LanguageModel, JacobianLens], plain: LanguageModel) -> None:
    assert fitted[0].trace(TEXT).to_table().provenance.basis == "jacobian"
    assert plain.trace(TEXT).to_table().provenance.basis == "final"
