"""Induction from weights and from behaviour; in-context learning; the direct path against bigrams."""

import pytest
import scipy.stats
import torch
from torch.nn.functional import cross_entropy

import unembed
from tests.attention.handmade_model import induction_model
from tests.conftest import tiny
from tests.families import build
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered
from unembed.attention.behaviour.in_context import head_output_lengths, in_context, matched_heads, scores_on_text
from unembed.attention.behaviour.induction import matching_through
from unembed.attention.behaviour.source_effects import source_effects
from unembed.attention.text.bigrams import Bigrams
from unembed.attention.text.direct_path import average_ranks, direct_path
from unembed.attention.weights.folded_weights import embedding
from unembed.errors import InvalidInput, OutOfRange
from unembed.language_model import load
from unembed.stream.interventions import scale_head

TEXT = "The first month of the year is the month that comes before the second month of the year . "


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("basis", ["raw", "folded"])
@pytest.mark.parametrize("name", ["attention-only", "llama", "gemma2"])
def test_matching_through_a_head_equals_dense_eigenvalues(name: str, basis: str, centre: bool) -> None:
    circuits = unembed.circuits(tiny(name, torch.float64))
    spectra = matching_through(circuits.lm, circuits.product("qk", basis, centre), 0, 1, basis)

    W_E = embedding(circuits.lm, basis)
    sources = W_E - W_E.mean(dim=0) if centre else W_E
    for a in range(4):
        for b in range(4):
            full = W_E @ circuits.qk(1, b, basis=basis).dense() @ circuits.ov(0, a, basis).dense().T @ sources.T
            every = torch.linalg.eigvals(full)
            expected = every.real.sum() / every[every.abs().argsort(descending=True)][:12].abs().sum()
            torch.testing.assert_close(spectra.score[a, b], expected, rtol=1e-7, atol=1e-7)


def test_the_made_circuit_is_found_by_its_weights_and_by_what_it_does() -> None:
    found = unembed.circuits(induction_model()).induction(n_sequences=10, length=10)
    best = found[0]
    assert (best.layer, best.head) == (1, 0) and best.partner == (0, 0)
    assert best.copying > 0.99
    assert best.matching > 0.99 and best.k_composition > 0
    assert best.induction > 0.8 and best.partner_previous_token > 0.99
    with pytest.raises(InvalidInput, match="one layer"):
        unembed.circuits(_one_layer()).induction()


def test_the_seed_draws_the_random_circuits_that_composition_is_compared_with() -> None:
    circuits = unembed.circuits(induction_model())
    by_seed = []
    for seed in (0, 5):
        above_random = circuits.composition("k", baseline=True, basis="raw", seed=seed)
        for one in circuits.induction("raw", seed, n_sequences=4, length=8):
            assert one.partner is not None
            assert one.k_composition == float(above_random[*one.partner, one.layer, one.head])
        by_seed.append(above_random)
    assert not torch.equal(*by_seed)


def _one_layer():
    from unembed.models.architectures.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM

    torch.manual_seed(0)
    config = AttentionOnlyConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8)
    model = AttentionOnlyForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return unembed.load(model)


def test_losses_by_position_with_and_without_a_head() -> None:
    lm = unembed.load("attn-2l")
    texts = [TEXT * 4, TEXT[::-1] * 4]
    for heads in ([], [(0, 1), (1, 3)]):
        found = in_context(lm, texts, heads, window=32, early=3, late=28)
        assert found.to_table().columns["loss"] == found.losses.tolist()
        rows = torch.stack([s.tokens for s in _windows(lm, texts, 32)])
        logits = lm.run(rows, edits=[scale_head(a, b, 0.0) for a, b in heads]).logits[:, :-1]
        expected = cross_entropy(logits.transpose(1, 2), rows[:, 1:].long(), reduction="none").double().mean(0)
        torch.testing.assert_close(found.losses, expected, rtol=1e-5, atol=1e-5)
        assert found.n_windows == len(rows) and found.ablated == tuple(heads)
        assert found.score == pytest.approx(float(expected[18:].mean() - expected[:14].mean()), rel=1e-5)
    with pytest.raises(InvalidInput, match="no document"):
        in_context(lm, ["short"], window=400)


def test_control_heads_are_those_of_the_same_layer_nearest_in_output_length() -> None:
    lengths = torch.tensor([[1.0, 5.0, 4.0, 9.0], [2.0, 2.1, 8.0, 7.0]])
    assert matched_heads(lengths, [(0, 1), (1, 2)]) == [(0, 2), (1, 3)]
    assert matched_heads(lengths, [(0, 1), (0, 2)]) == [(0, 0), (0, 3)], "neither a given head nor one twice"
    assert matched_heads(lengths[:, :1], [(0, 0)]) == []
    lm = unembed.load("attn-2l")
    found = head_output_lengths(lm, [TEXT * 2], window=32, max_windows=1)
    tokens = next(iter(_windows(lm, [TEXT * 2], 32))).tokens[None]
    whole = lm.run(tokens, "attn_out").at("attn_out", 1)
    without = lm.run(tokens, "attn_out", edits=[scale_head(1, 3, 0.0)]).at("attn_out", 1)
    assert float(found[1, 3]) == pytest.approx(float((whole - without).norm(dim=-1).mean()), rel=1e-4)


def _windows(lm, texts, window):
    corpus = unembed.open_corpus(texts, segmentation="windows", window=window, overlap=0)
    return [s for s in corpus.segments(lm) if len(s) == window]


def test_scores_on_text_are_sums_over_the_pattern() -> None:
    lm = unembed.load("attn-2l")
    found = scores_on_text(lm, [TEXT * 3], window=24, max_windows=1)
    for row in found.to_table().rows():
        assert row["induction"] == float(found.induction[row["layer"], row["head"]])
    tokens = _windows(lm, [TEXT * 3], 24)[0].tokens
    pattern = lm.run(tokens, "pattern")["pattern"][:, 0]
    total, chance, n = torch.zeros(2, 8), 0.0, 0
    for i in range(24):
        earlier = [j for j in range(i) if tokens[j] == tokens[i]]
        if earlier:
            n += 1
            chance += len(earlier) / (i + 1)
            for j in earlier:
                total += pattern[:, :, i, j + 1]
    assert found.n_positions == n
    assert found.by_chance == pytest.approx(chance / n)
    torch.testing.assert_close(found.induction.float(), total / n, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["attention-only", "gemma2", "granite"])
def test_the_two_pictures_of_a_position(name: str) -> None:
    """The effect by source is the attribution's share by source, up to the mean over tokens and biases."""
    lm = tiny(name)
    tokens = torch.tensor([[5, 9, 31, 5, 77]])
    circuits = unembed.circuits(lm)
    one, other = (source_effects(circuits, tokens, 1, 2, 4, token) for token in (7, 40))
    torch.testing.assert_close(one.attention, lm.run(tokens, "pattern").at("pattern", 1)[0, 2, 4])
    rows = lm.trace(tokens).attribution(7, against=40, by="source").rows
    shares = torch.tensor([r.contribution for r in rows if (r.layer, r.index) == (1, 2) and r.source is not None])
    torch.testing.assert_close((one.effect - other.effect).float(), shares.float(), rtol=1e-4, atol=1e-5)
    difference = source_effects(circuits, tokens, 1, 2, 4, 7, against=40)
    assert (difference.token, difference.against) == (7, 40)
    torch.testing.assert_close(difference.effect.float(), shares.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["minimax", "doge", "qwen3_next"])
def test_the_two_pictures_of_a_position_include_the_gate_and_the_factors_of_the_stream(model_type: str) -> None:
    lm = load(tiny_model(model_type))
    tokens, circuits = torch.tensor([[5, 9, 31, 5, 77]]), unembed.circuits(lm)
    layer = lm.attention_layers[-1]
    one, other = (source_effects(circuits, tokens, layer, 2, 4, token) for token in (7, 40))
    rows = lm.trace(tokens).attribution(7, against=40, by="source").rows
    shares = torch.tensor([r.contribution for r in rows if (r.layer, r.index) == (layer, 2) and r.source is not None])
    torch.testing.assert_close((one.effect - other.effect).float(), shares.float(), rtol=1e-3, atol=1e-6)


def test_a_position_or_head_that_does_not_exist_is_refused() -> None:
    circuits = unembed.circuits(tiny("attention-only"))
    tokens = torch.tensor([[5, 9, 31, 5, 77]])
    for position in (5, -6):
        with pytest.raises(OutOfRange, match="position"):
            circuits.source_effects(tokens, 1, 2, position, 7)
    with pytest.raises(OutOfRange, match="head 9"):
        circuits.source_effects(tokens, 1, 9, 0, 7)
    assert torch.equal(
        circuits.source_effects(tokens, 1, 2, -1, 7).effect, source_effects(circuits, tokens, 1, 2, 4, 7).effect
    )


def test_average_ranks_and_bigrams() -> None:
    values = torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0, 1.0])
    torch.testing.assert_close(average_ranks(values), torch.tensor(scipy.stats.rankdata(values)) - 1)
    text = torch.tensor([1, 2, 1, 2, 3, 1, 2])
    counts = Bigrams.of([text], 5)
    pairs = dict(
        zip(zip(counts.first.tolist(), counts.second.tolist(), strict=True), counts.count.tolist(), strict=True)
    )
    assert pairs == {(1, 2): 3, (2, 1): 1, (2, 3): 1, (3, 1): 1}
    # A smoothed model gives probabilities: summed over all pairs after one token they make 1.
    total = sum(
        torch.exp(torch.tensor(-counts.cross_entropy_of(Bigrams.of([torch.tensor([2, b])], 5)))) for b in range(5)
    )
    assert float(total) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("shipped", ["attn-2l"])
def test_the_direct_path_is_softmax_of_embedding_times_unembedding(shipped: str) -> None:
    lm = unembed.load(shipped)
    texts = [TEXT * 30] * 4
    found = direct_path(lm, texts, n_tokens=3)
    pieces = [s.tokens for s in unembed.open_corpus(texts, segmentation="windows", window=512, overlap=0).segments(lm)]
    log_p = (lm.weights.W_E @ lm.weights.W_U).log_softmax(-1)
    half = pieces[len(pieces) // 2 :]
    expected = -torch.cat([log_p[t[:-1], t[1:]] for t in half]).mean()
    assert found.cross_entropy == pytest.approx(float(expected), rel=1e-5)
    assert found.bigram_cross_entropy < found.unigram_cross_entropy
    assert found.to_table().columns["token"] == lm.token_strings(found.tokens)
    token = int(found.tokens[0])
    counts = torch.zeros(lm.d_vocab)
    for piece in pieces:
        for a, b in zip(piece[:-1].tolist(), piece[1:].tolist(), strict=True):
            counts[b] += a == token
    learned = ~lm.unlearned
    expected = scipy.stats.spearmanr(counts[learned], log_p[token, learned])[0]
    assert float(found.spearman[0]) == pytest.approx(expected, abs=1e-4)
    whole = direct_path(lm, texts, n_tokens=3, hide_unlearned=False)
    expected = scipy.stats.spearmanr(counts, log_p[token])[0]
    assert float(whole.spearman[0]) == pytest.approx(expected, abs=1e-4)
    assert found.provenance.notes["unlearned tokens left out"] == int(lm.unlearned.sum()) > 0


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_direct_path_has_the_final_norms_scale_of_the_run(family: str) -> None:
    """By the model's own modules in float64; the bare embedding's own scale would give another loss."""
    lm, texts = lettered(family, torch.float64), ["the dog sat of a zebra " * 30] * 4
    found = direct_path(lm, texts, n_tokens=3)
    window = unembed.open_corpus(texts, segmentation="windows", window=lm.n_ctx or 512, overlap=0)
    pieces = [s.tokens.long() for s in window.segments(lm)]
    half = pieces[len(pieces) // 2 :]
    hf = lm.hf.model if family == "llama" else lm.hf.transformer
    W_E, norm = (hf.embed_tokens, hf.norm) if family == "llama" else (hf.wte, hf.ln_f)
    streams = []
    handle = norm.register_forward_pre_hook(lambda _, args: streams.append(args[0][0]))
    with torch.no_grad():
        lm.hf(half[0][None])
        handle.remove()
        x = W_E.weight
        if family == "llama":
            divided = x / streams[0].square().mean(-1).add(norm.variance_epsilon).sqrt().median() * norm.weight
        else:
            scale = streams[0].var(-1, correction=0).add(norm.eps).sqrt().median()
            divided = (x - x.mean(-1, keepdim=True)) / scale * norm.weight + norm.bias
        log_p, bare = (lm.hf.lm_head(y).log_softmax(-1) for y in (divided, norm(x)))
        loss, other = (-torch.cat([p[t[:-1], t[1:]] for t in half]).mean() for p in (log_p, bare))
    assert found.cross_entropy == pytest.approx(float(loss), rel=1e-6)
    assert abs(found.cross_entropy - float(other)) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_matching_is_that_of_the_circuit_turned_by_the_offset(dtype: torch.dtype) -> None:
    lm = tiny("llama", dtype)
    circuits = unembed.circuits(lm)
    for offset in (0, 7, [1, 2, 3]):
        found = circuits.matching(offset=offset).eigenvalues
        for layer in range(2):
            for head in range(lm.n_heads):
                full = circuits.qk_full(layer, head, offset)
                expected = full.T.double().eigenvalues()
                for one in expected:  # the same set, whichever way conjugates are ordered
                    assert (found[layer, head] - one).abs().min() < 1e-3 * expected.abs().max()
    assert not torch.allclose(circuits.matching().score, circuits.matching(offset=7).score, atol=1e-3)
    product = circuits.product("qk", "raw")
    at = [matching_through(lm, product, 0, 1, "raw", offset).score for offset in (0, 9)]
    assert not torch.allclose(*at, atol=1e-3)
    with pytest.raises(InvalidInput, match="offset -1"):
        circuits.matching(offset=-1)


def test_a_head_that_looks_at_itself_has_a_current_token_score() -> None:
    lm = unembed.load(build("gpt2"))
    with torch.no_grad():
        c_attn = lm.hf.transformer.h[0].attn.c_attn
        c_attn.weight[:, : 2 * lm.d_model] = 0.0
        c_attn.bias[: 2 * lm.d_model] = 0.0
    scores = unembed.circuits(lm).head_scores(n_sequences=2, length=6)
    expected = sum(1 / (n + 1) for n in range(1, 12)) / 11  # attention spread evenly
    assert scores.current_token[0].tolist() == pytest.approx([expected] * lm.n_heads, rel=1e-5)
    assert scores["current_token"] is scores.current_token


def test_the_table_of_source_effects_has_a_row_for_each_source() -> None:
    circuits = unembed.circuits(unembed.load("attn-2l"))
    found = circuits.source_effects("The first month of the first", 1, 5, -1, " month")
    table = found.to_table()
    assert table.columns["attention"] == found.attention.tolist() and table.columns["source"][-1] == len(table) - 1
    assert (table.provenance.notes["layer"], table.provenance.notes["head"]) == (1, 5)
