"""The loop: schedule, batches, optimisers, and a killed run that goes on as if nothing had happened."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tools.training.loop import Run, split_into_rows
from tools.training.networks import Shape
from tools.training.recipes import Phase, Recipe
from tools.training.windows import EncodedCorpus

from unembed.errors import CheckpointFault

PHASES = (Phase(3, 64, 2), Phase(5, 128, 1, repeated_windows=1), Phase(8, 64, 2, lr=(1.0, 0.0)))
RECIPE = Recipe(Shape(2, 16, 2, 8, 32, 50, 512), PHASES, warmup=2)
TOY = replace(RECIPE, shape=Shape(2, 16, 2, 8, 0, 50, 512))
LAST = Phase(8, 64, 2, lr=(1.0, 0.0), value_decay=2.0, sparsity=0.01, nearness=0.5, revive=True)
READABLE = replace(RECIPE, shape=Shape(2, 16, 2, 8, 32, 400, 512), phases=(Phase(3, 64, 2), LAST))

AGREEING = replace(LAST, agreement=0.03, lens=0.1)
READ_EARLY = replace(READABLE, shape=replace(READABLE.shape, n_layers=4), phases=(Phase(3, 64, 2), AGREEING))


@pytest.fixture(scope="module")
def corpus() -> EncodedCorpus:
    rng = np.random.default_rng(0)
    lengths = rng.integers(200, 900, size=12)
    tokens = np.minimum(rng.geometric(0.2, size=lengths.sum()), 49).astype(np.uint16)
    tokens[np.cumsum(lengths) - 1] = 0
    return EncodedCorpus(tokens, lengths, np.array(["letters"] * 6 + ["recipes"] * 6), lengths * 3)


def mark(folder, *, share=1.0):
    """Write which values change in phases with `agreement`."""
    marks = np.random.default_rng(0).random((2, 32)) < share
    folder.mkdir(exist_ok=True)
    np.save(folder / "changing.npy", marks)
    return marks


RECIPES = {"wren": RECIPE, "toy": TOY, "readable": READABLE, "early": READ_EARLY}


@pytest.fixture(scope="module", params=RECIPES.values(), ids=RECIPES)
def whole(request, corpus, tmp_path_factory):
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    if request.param is READ_EARLY:
        mark(folder)
    run = Run(request.param, corpus, folder, compiled=False)
    run.train()
    return run


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_resumed_run_has_the_bits_of_one_never_stopped(whole, corpus, tmp_path, stop):
    recipe = whole.recipe
    if recipe is READ_EARLY:
        mark(tmp_path / "cut")
    Run(recipe, corpus, tmp_path / "cut", compiled=False).train(until=stop)
    cut = Run(recipe, corpus, tmp_path / "cut", compiled=False)
    assert cut.step == stop
    cut.train()
    assert cut.step == whole.step == 8
    assert cut.n_tokens == whole.n_tokens
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, cut.network.state_dict()[name]), name
    for mine, other in ((whole.muon, cut.muon), (whole.adam, cut.adam)):
        for a, b in zip(mine.state.values(), other.state.values(), strict=True):
            assert all(torch.equal(torch.as_tensor(a[key]), torch.as_tensor(b[key])) for key in a)


def test_training_lowers_the_loss_and_logs_it(corpus, tmp_path):
    recipe = replace(RECIPE, phases=(Phase(40, 64, 1),))
    run = Run(recipe, corpus, tmp_path, compiled=False)
    seen = []
    run.train(progress=seen.append)
    rows = [json.loads(line) for line in (tmp_path / "loss.jsonl").read_text().splitlines()]
    assert rows == seen
    assert [row["step"] for row in rows] == [10, 20, 30, 40]
    assert rows[-1]["tokens"] == 40 * 512
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.2


def test_positions_seen_for_the_first_time_begin_near_those_known(corpus, tmp_path):
    phases = (Phase(2, 64, 1), Phase(4, 256, 1, lr=(0.0, 0.0)))
    run = Run(replace(RECIPE, phases=phases, warmup=0), corpus, tmp_path, compiled=False)
    run.train(until=2)
    before = run.network.wpe.weight.detach().clone()
    run.train()
    after = run.network.wpe.weight.detach()
    assert torch.equal(after[:64], before[:64])
    torch.testing.assert_close(after[64:256], before[64:256] + before[32:64].mean(0))
    assert torch.equal(after[256:], before[256:])


def test_training_with_sparsity_fires_fewer_memories(corpus, tmp_path):
    firing = []
    for sparsity in (0.0, 0.5):
        recipe = replace(RECIPE, phases=(Phase(40, 64, 1, sparsity=sparsity),))
        run = Run(recipe, corpus, tmp_path / str(sparsity), compiled=False)
        run.train()
        firing.append([])
        with torch.no_grad():
            run.network.final_stream(torch.from_numpy(corpus.tokens[:128].astype("int64"))[None], firing[-1])
    assert sum(firing[1]) < 0.8 * sum(firing[0])


def test_only_the_values_that_a_file_names_change(corpus, tmp_path):
    recipe = replace(READ_EARLY, phases=(Phase(2, 64, 2), replace(AGREEING, until=4, revive=False)))
    changing = mark(tmp_path, share=0.5)
    run = Run(recipe, corpus, tmp_path, compiled=False)
    run.train(until=2)
    before = {name: tensor.clone() for name, tensor in run.network.state_dict().items()}
    run.train()
    after = run.network.state_dict()
    for layer in range(4):
        name = f"blocks.{layer}.w_out.weight"
        changed = (after[name] != before[name]).any(0)
        assert changed.tolist() == (changing[layer - 2].tolist() if layer >= 2 else [True] * 32)
    assert not torch.equal(after["blocks.3.w_in.weight"], before["blocks.3.w_in.weight"])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (np.ones((2, 31), dtype=bool), r"shape \(2, 31\)"),
        (np.ones((2, 32)), "float64 numbers"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_other_values_is_refused(corpus, tmp_path, content, why):
    path = tmp_path / "changing.npy"
    path.write_text("half a file") if content is None else np.save(path, content)
    with pytest.raises(CheckpointFault, match=why):
        Run(READ_EARLY, corpus, tmp_path, compiled=False)


@pytest.mark.parametrize("until", [5, None])
def test_without_the_file_training_stops_before_the_first_phase_that_needs_it(corpus, tmp_path, until):
    Run(READ_EARLY, corpus, tmp_path, compiled=False).train(until=2)
    for _ in range(2):
        run = Run(READ_EARLY, corpus, tmp_path, compiled=False)
        with pytest.raises(CheckpointFault, match=r"from step 3.*changing.npy.*tools.changing_values"):
            run.train(until=until)
        assert run.step == 3
    mark(tmp_path)
    run = Run(READ_EARLY, corpus, tmp_path, compiled=False)
    assert run.step == 3
    run.train(until=until)
    assert run.step == (until or READ_EARLY.steps)


@pytest.mark.parametrize("price", ["agreement", "lens"])
def test_a_price_reaches_the_weights(corpus, tmp_path, price):
    weights = []
    for value in (0.0, 0.1):
        mark(tmp_path / str(value))
        phases = (Phase(2, 64, 2), replace(Phase(4, 64, 2), **{price: value}))
        run = Run(replace(READ_EARLY, phases=phases), corpus, tmp_path / str(value), compiled=False)
        run.train()
        weights.append(run.network.blocks[2].w_out.weight)
    assert not torch.equal(*weights)


def test_a_checkpoint_of_another_recipe_is_refused(corpus, tmp_path):
    Run(RECIPE, corpus, tmp_path, compiled=False).train(until=1)
    with pytest.raises(CheckpointFault, match="not of this recipe"):
        Run(TOY, corpus, tmp_path, compiled=False)


def test_a_damaged_checkpoint_is_refused(corpus, tmp_path):
    Run(RECIPE, corpus, tmp_path, compiled=False).train(until=1)
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointFault, match="Delete it to start again"):
        Run(RECIPE, corpus, tmp_path, compiled=False)


def test_a_checkpoint_of_another_vocabulary_is_refused(corpus, tmp_path):
    Run(RECIPE, replace(corpus, vocabulary="abc"), tmp_path, compiled=False).train(until=1)
    with pytest.raises(CheckpointFault, match="vocabulary abc, and this text is encoded with vocabulary def"):
        Run(RECIPE, replace(corpus, vocabulary="def"), tmp_path, compiled=False)


def test_the_checkpoint_before_the_last_stays_and_is_named_when_the_last_is_damaged(corpus, tmp_path):
    for until in (1, 2):
        Run(RECIPE, corpus, tmp_path, compiled=False).train(until=until)
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointFault, match=r"Rename .*checkpoint\.previous\.pt"):
        Run(RECIPE, corpus, tmp_path, compiled=False)
    (tmp_path / "checkpoint.previous.pt").rename(tmp_path / "checkpoint.pt")
    assert Run(RECIPE, corpus, tmp_path, compiled=False).step == 1


def test_rows_logged_after_the_last_checkpoint_are_logged_once(corpus, tmp_path):
    recipe = replace(RECIPE, phases=(Phase(30, 64, 1),))
    Run(recipe, corpus, tmp_path, compiled=False).train(until=10)
    saved = (tmp_path / "checkpoint.pt").read_bytes()
    Run(recipe, corpus, tmp_path, compiled=False).train(until=20)
    (tmp_path / "checkpoint.pt").write_bytes(saved)  # as if the process had been killed before it saved step 20
    Run(recipe, corpus, tmp_path, compiled=False).train()
    rows = [json.loads(line) for line in (tmp_path / "loss.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 20, 30]


def test_a_run_is_measured_on_held_back_text_at_its_end(corpus, tmp_path):
    run = Run(RECIPE, corpus, tmp_path, held_back=corpus, compiled=False)
    run.train()
    row = json.loads((tmp_path / "held_back.jsonl").read_text())
    assert row["step"] == RECIPE.steps
    ids = torch.from_numpy(corpus.tokens.astype("int64"))
    n_rows = (len(ids) - 1) // 256
    assert n_rows < 128
    starts = np.linspace(0, len(ids) - 257, n_rows).astype(int)
    rows = torch.stack([ids[start : start + 257] for start in starts])
    with torch.no_grad():
        logits = run.network(rows[:, :-1]).flatten(0, 1)
    exact = torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten()).item()
    assert row["held_back"] == pytest.approx(exact, rel=1e-2)
    assert row["bits_per_byte"] == pytest.approx(row["held_back"] / np.log(2) / 3, rel=1e-3)


def test_rows_cover_a_window_and_share_their_border_token():
    rows = split_into_rows(torch.arange(513)[None], 128)
    assert rows.shape == (4, 129)
    assert rows[:, 0].tolist() == [0, 128, 256, 384]
    assert rows[:, -1].tolist() == [128, 256, 384, 512]
