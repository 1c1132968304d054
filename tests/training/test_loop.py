"""The loop: schedule, batches, optimisers, and a killed run that goes on as if nothing had happened."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from unembed.errors import CheckpointFault
from unembed.training.export import as_transformers, save
from unembed.training.gradients import Gradients
from unembed.training.loop import Run, split_into_rows
from unembed.training.muon import Muon, orthogonalised
from unembed.training.networks import Shape, build, causal_attention, spread_of
from unembed.training.recipes import RECIPES, Phase, Recipe
from unembed.training.windows import EncodedCorpus, Windows, repeated

PHASES = (Phase(3, 64, 2), Phase(5, 128, 1, repeated_windows=1), Phase(8, 64, 2, lr=(1.0, 0.0)))
RECIPE = Recipe(Shape(2, 16, 2, 8, 32, 50, 512), PHASES, warmup=2)
TOY = replace(RECIPE, shape=Shape(2, 16, 2, 8, 0, 50, 512))


@pytest.fixture(scope="module")
def corpus() -> EncodedCorpus:
    rng = np.random.default_rng(0)
    lengths = rng.integers(200, 900, size=12)
    tokens = np.minimum(rng.geometric(0.2, size=lengths.sum()), 49).astype(np.uint16)
    tokens[np.cumsum(lengths) - 1] = 0
    return EncodedCorpus(tokens, lengths, np.array(["letters"] * 6 + ["recipes"] * 6), lengths * 3)


@pytest.mark.parametrize("recipe", [RECIPE, TOY], ids=["wren", "toy"])
@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_resumed_run_has_the_bits_of_one_never_stopped(corpus, tmp_path, recipe, stop):
    whole = Run(recipe, corpus, tmp_path / "whole", compiled=False)
    whole.train()
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


def test_the_spread_of_k_equal_lengths_is_the_root_of_k_whatever_their_scale():
    lengths = torch.zeros(2, 10)
    lengths[0, :9] = 3.0
    lengths[1, 4] = 700.0
    assert spread_of(lengths).item() == pytest.approx((3 + 1) / 2, rel=1e-4)


def test_sparsity_adds_the_mean_spread_over_layers():
    torch.manual_seed(0)
    network: Any = build(RECIPE.shape)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ids = torch.randint(0, 50, (2, 21))
    seen = []
    for block in network.blocks:
        block.w_out.register_forward_pre_hook(lambda module, args: seen.append((args[0], module.weight)))
    gradients = Gradients(network, compiled=False)
    nats, spread = gradients.add(ids, sparsity=0.5, share=1.0)
    spreads = []
    for coefficients, weight in seen:
        lengths = coefficients.double() * weight.double().norm(dim=0)
        spreads.append((lengths.sum(-1) / lengths.norm(dim=-1)).mean().item())
    assert spread == pytest.approx(sum(spreads) / 2, rel=1e-3)
    logits = network(ids[:, :-1]).flatten(0, 1)
    exact = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).item()
    assert nats == pytest.approx(exact, rel=2e-2)  # autocast to bfloat16


def test_training_with_sparsity_spreads_over_fewer_memories(corpus, tmp_path):
    spread = []
    for sparsity in (0.0, 0.5):
        recipe = replace(RECIPE, phases=(Phase(40, 64, 1, sparsity=sparsity),))
        run = Run(recipe, corpus, tmp_path / str(sparsity), compiled=False)
        run.train()
        spread.append([])
        with torch.no_grad():
            run.network.final_stream(torch.from_numpy(corpus.tokens[:128].astype("int64"))[None], spread[-1])
    assert sum(spread[1]) < 0.8 * sum(spread[0])


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


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    recipe = replace(RECIPE, phases=(Phase(15, 64, 1), Phase(20, 64, 1, lr=(1.0, 0.0))), warmup=4)
    factors = [recipe.lr_factor(step) for step in range(20)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(factors[4:16]) == {1.0}
    assert factors[16:] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_the_learning_rate_rises_again_where_the_optimisers_began_anew():
    recipe = replace(RECIPE, phases=(Phase(10, 64, 1), Phase(20, 64, 1, lr=(0.8, 0.8), rise=5)), warmup=0)
    factors = [recipe.lr_factor(step) for step in range(20)]
    assert factors == pytest.approx([1.0] * 10 + [0.16, 0.32, 0.48, 0.64] + [0.8] * 6)


def test_a_pass_reads_every_window_once_and_the_next_pass_in_another_order(corpus):
    plain = replace(corpus, sources=np.array(["letters"] * 12))
    windows = Windows(plain, rows=1, width=64, seed=0)
    n = (len(plain.tokens) - 1) // 64
    first = torch.cat([windows.next() for _ in range(n)])
    assert windows.pass_ == 0
    expected = np.bincount(plain.tokens, minlength=50)
    got = np.bincount(first[:, :-1].flatten().numpy(), minlength=50)
    assert 0 <= (expected - got).sum() <= 64
    windows.next()
    assert (windows.pass_, windows.place) == (1, 1)


def test_a_source_read_twice_a_pass_comes_twice(corpus):
    windows = Windows(corpus, rows=1, width=64, seed=0)
    assert len(windows._line) == corpus.lengths[:6].sum() + 2 * corpus.lengths[6:].sum()


def test_rows_cover_a_window_and_share_their_border_token():
    rows = split_into_rows(torch.arange(513)[None], 128)
    assert rows.shape == (4, 129)
    assert rows[:, 0].tolist() == [0, 128, 256, 384]
    assert rows[:, -1].tolist() == [128, 256, 384, 512]


def test_repeated_windows_repeat_and_the_others_stay():
    windows = torch.arange(3 * 129).view(3, 129)
    drawn = set()
    for step in range(40):
        made = repeated(windows, 1, (5, 300), [0, step])
        period = int((made[0] == made[0, 0]).nonzero()[1])
        assert torch.equal(made[0, period:], made[0, :-period])
        assert torch.equal(made[1:], windows[1:])
        drawn.add(period)
    assert 5 <= min(drawn) < 10
    assert 50 < max(drawn) <= 64
    assert torch.equal(repeated(windows, 0, (5, 300), [0, 7]), windows)


@pytest.mark.parametrize("shape", [(6, 6), (12, 5), (5, 12)])
def test_an_orthogonalised_matrix_keeps_its_directions_and_evens_its_lengths(shape):
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    lengths = torch.linspace(0.3, 2.0, min(shape))
    made = orthogonalised((u * lengths @ v)[None])[0]
    inner = u.T @ made @ v.T
    assert (inner.diagonal() > 0.6).all()
    assert (inner.diagonal() < 1.3).all()
    assert (inner - inner.diagonal().diag()).abs().max() < 0.05


def test_muon_goes_down_a_bowl():
    torch.manual_seed(0)
    weight, goal = torch.nn.Parameter(torch.zeros(4, 8)), torch.randn(4, 8)
    muon = Muon([weight], lr=0.05)
    for _ in range(200):
        muon.zero_grad()
        (weight - goal).square().sum().backward()
        muon.step()
    assert (weight - goal).abs().max() < 0.2


@pytest.mark.parametrize("block", [128, 4])
def test_block_attention_is_causal_softmax_attention(block):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 10, 5) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(causal_attention(q, k, v, block=block), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [RECIPE.shape, TOY.shape], ids=["wren", "toy"])
def test_the_exported_model_gives_the_logits_of_the_network(shape):
    torch.manual_seed(0)
    network = build(shape)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ids = torch.randint(0, 50, (2, 20))
    torch.testing.assert_close(as_transformers(network)(ids).logits, network(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [RECIPE.shape, TOY.shape], ids=["wren", "toy"])
def test_positions_left_behind_change_nothing_before_them(shape, tmp_path):
    torch.manual_seed(0)
    network = build(shape)
    whole, shorter = tmp_path / "whole", tmp_path / "shorter"
    save(network, whole)
    save(network, shorter, n_positions=24)
    assert network.wpe.weight.shape[0] == 512
    ids = torch.randint(0, 50, (2, 24))
    opened = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in (whole, shorter)]
    assert opened[1].config.max_position_embeddings == 24
    assert torch.equal(opened[0](ids).logits, opened[1](ids).logits)


def test_every_recipe_trains_all_positions_it_ships():
    for name, recipe in RECIPES.items():
        if not recipe.shape.n_layers:
            continue  # a table of bigrams has no positions
        assert max(phase.context for phase in recipe.phases) == recipe.shape.context, name
        assert 512 % recipe.shape.context == 0
