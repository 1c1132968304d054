"""Paths add up to the logits: exactly for attention-only models, with a stated remainder elsewhere."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

import unembed
from tests.attention.handmade_model import induction_model
from tests.conftest import tiny
from tests.models.architectures.test_wikilm import wikilm
from tests.models.decoder_classes import tiny_config, tiny_model
from unembed.attention.paths.expansion import expand
from unembed.errors import InvalidInput, OutOfMemory, OutOfRange, SumNotProved, Unsupported
from unembed.language_model import LanguageModel, load
from unembed.logit_attribution import attribution
from unembed.stream.run import run

PROMPT = torch.tensor([[5, 9, 31, 5, 77, 12]])
KINDS = ["attention-only", "gpt2", "llama-biases", "gemma2", "gptj", "granite", "bloom", "phi", "olmo2", "opt"]


@pytest.mark.parametrize("name", KINDS)
def test_all_orders_give_the_model_s_logits(name: str) -> None:
    lm = tiny(name, torch.float64)
    expansion = unembed.circuits(lm).expand(PROMPT, order=2)
    # Many families compute norms or the softmax in float32 whatever the weights are.
    assert expansion.error < (1e-6 if name == "attention-only" else 2e-6)
    assert expansion.exact == (name == "attention-only")
    assert expansion.remainder.norm() < 1e-9 * expansion.vectors.norm(), "two layers have no path through three heads"
    if lm.structure.logit_softcap is None:
        total = expansion.vectors.sum(0) @ lm.weights.W_U
        total = total if expansion.constant is None else total + expansion.constant
        torch.testing.assert_close(total, lm.run(PROMPT).logits[0, -1], rtol=1e-5, atol=1e-5)


def test_terms_of_an_attention_only_model_are_products_of_patterns_and_circuits() -> None:
    """Against the tensor products of the paper, formed densely."""
    lm = tiny("attention-only", torch.float64)
    circuits = unembed.circuits(lm)
    pattern = lm.run(PROMPT, "pattern")["pattern"][:, 0]
    W_E, W_U = lm.weights.W_E, lm.weights.W_U
    expansion = circuits.expand(PROMPT, order=2, position=4)
    x = W_E[PROMPT[0]]
    torch.testing.assert_close(expansion.term(()), x[4] @ W_U)
    for layer, head in ((0, 1), (1, 3)):
        expected = (pattern[layer, head] @ x @ circuits.ov(layer, head).dense() @ W_U)[4]
        torch.testing.assert_close(expansion.term(((layer, head),)), expected)
        torch.testing.assert_close(circuits.head(layer, head).effect(PROMPT, 4), expected)
    virtual = circuits.virtual_head((0, 2), (1, 1))
    torch.testing.assert_close(virtual.pattern(PROMPT)[0], pattern[1, 1] @ pattern[0, 2])
    dense = circuits.ov(0, 2).dense() @ circuits.ov(1, 1).dense()
    torch.testing.assert_close(virtual.ov().dense(), dense)
    expected = (pattern[1, 1] @ pattern[0, 2] @ x @ dense @ W_U)[4]
    torch.testing.assert_close(expansion.term(((0, 2), (1, 1))), expected)
    torch.testing.assert_close(virtual.effect(PROMPT, 4), expected)
    every = torch.linalg.eigvals(W_E @ dense @ W_U)
    assert virtual.copying(centre=False).score.item() == pytest.approx(
        (every.real.sum() / every.abs().sum()).item(), abs=1e-8
    )
    assert virtual.own_token().n_tokens == 97
    assert len(expansion) == 1 + 8 + 16


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_orders_left_out_are_the_remainder(name: str) -> None:
    lm = tiny(name, torch.float64)
    circuits = unembed.circuits(lm)
    low, high = circuits.expand(PROMPT, order=1), circuits.expand(PROMPT, order=2)
    assert low.error < 2e-6
    pairs = high.vectors[[o == 2 for o in high.orders]].sum(0)
    torch.testing.assert_close(low.remainder, pairs, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(high.by_order(7)[2], low.by_order(7)[2], rtol=1e-8, atol=1e-9)
    share = high.contribution(7)
    label, value = high.top(7, 1)[0]
    assert value == pytest.approx(share[share.abs().argmax()].item()) and label == high.labels[share.abs().argmax()]


def test_one_source_moves_every_destination_alike() -> None:
    """The effect of a source on the logits is the same for every destination that gives it the same weight."""
    lm = tiny("attention-only", torch.float64)
    circuits = unembed.circuits(lm)
    full = circuits.ov_full(0, 1, centre=False)
    row = full.rows(31)[0]
    pattern = circuits.head(0, 1).pattern(PROMPT)[0]
    base = PROMPT.clone()
    base[0, 2] = 40
    other = full.rows(40)[0]
    moved = circuits.head(0, 1).pattern(base)[0]
    for position in (3, 5):
        change = circuits.head(0, 1).effect(PROMPT, position) - circuits.head(0, 1).effect(base, position)
        rest = [i for i in range(6) if i != 2]
        unmoved = (pattern - moved)[position, rest] @ full.rows(PROMPT[0, rest].tolist())
        torch.testing.assert_close(change - unmoved, pattern[position, 2] * row - moved[position, 2] * other)


def test_term_importance_equals_the_definition_on_one_window(tmp_path) -> None:
    lm = unembed.load("attn-2l")
    lm = unembed.load(lm.hf.double(), tokenizer=lm.tokenizer)
    text = "The first month of the year is the month that comes before the second month of the year . " * 3
    found = unembed.circuits(lm).term_importance([text], window=40, max_tokens=30)
    assert found.error is not None and found.error < 1e-9
    assert found.direct_reduction == pytest.approx(math.log(lm.d_vocab) - float(found.losses[0]))
    assert found.n_terms == (1, 16, 64)
    ids = next(iter(unembed.open_corpus([text], segmentation="windows", window=40).batches(lm)))
    rows = ids.mask.bool().all(1)
    tokens, target = ids.tokens[rows], ids.next_tokens[rows]
    pattern = lm.run(tokens, "pattern")["pattern"]
    x = lm.weights.W_E[tokens]
    circuits = unembed.circuits(lm)

    def loss(stream: torch.Tensor) -> float:
        keep = ids.counted[rows] & (target >= 0)
        return float(cross_entropy((stream @ lm.weights.W_U)[keep], target[keep].long()))

    ones = [
        sum(pattern[n, :, h] @ x @ circuits.ov(n, h).dense() for h in range(8)) for n in range(2)
    ]  # order 1, by layer
    assert found.losses[0].item() == pytest.approx(loss(x), rel=1e-9)
    assert found.losses[1].item() == pytest.approx(loss(x + ones[0] + ones[1]), rel=1e-9)
    for n in range(2):
        assert found.by_layer[n].item() == pytest.approx(loss(x + ones[n]), rel=1e-9)
        assert found.without_layer[n].item() == pytest.approx(loss(x + ones[1 - n]), rel=1e-9)
    given = found.layer_reductions_given_others
    assert given.tolist() == pytest.approx([loss(x + ones[1 - n]) - loss(x + ones[0] + ones[1]) for n in range(2)])
    gains: dict[bool, list[float]] = {True: [], False: []}
    for position in range(tokens.shape[1]):
        after = int(target[0, position])
        if not ids.counted[rows][0, position] or after < 0:
            continue
        both = [(stream[0, position] @ lm.weights.W_U).log_softmax(-1)[after] for stream in (x, x + ones[0])]
        gains[after in tokens[0, : position + 1].tolist()].append(float(both[1] - both[0]))
    assert len(gains[True]) > 3 and len(gains[False]) > 3
    assert found.repeated_gain[0].item() == pytest.approx(sum(gains[True]) / len(gains[True]), rel=1e-5)
    assert found.new_gain[0].item() == pytest.approx(sum(gains[False]) / len(gains[False]), rel=1e-5)
    assert found.losses[2].item() == pytest.approx(found.loss, rel=1e-9)
    torch.testing.assert_close(found.reductions_per_term[1], found.reductions[1] / 64)


def test_term_importance_of_tokens_given() -> None:
    lm = tiny("gpt2", torch.float64)
    tokens = torch.randint(3, 97, (5, 12), generator=torch.Generator().manual_seed(0))
    found = unembed.circuits(lm).term_importance(tokens)
    table = found.to_table()
    assert table["order"] == list(range(len(found.losses))) and table["loss"] == found.losses.tolist()
    assert sum(table["reduction"]) == pytest.approx(found.uniform - table["loss"][-1])
    logits = lm.run(tokens).logits[:, :-1]
    expected = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert found.loss == pytest.approx(float(expected)) and found.n_tokens == 55
    assert found.error is not None and found.error < 1e-6, "all orders of a two-layer model, FFN outputs given"


def test_in_the_made_model_the_virtual_weights_are_where_they_were_put() -> None:
    circuits = unembed.circuits(induction_model())
    tokens = torch.tensor([[3, 7, 11, 2, 3, 7]])
    expansion = circuits.expand(tokens)
    assert expansion.exact and expansion.error < 1e-6  # the softmax is in float32
    label, share = expansion.top(11, 1)[0]
    assert label == "L1H0" and share > 9.9


def test_bad_questions_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from unembed.attention.paths import expansion

    circuits = unembed.circuits(tiny("gpt2"))
    with pytest.raises(InvalidInput, match="later layer"):
        circuits.virtual_head((1, 0), (1, 1))
    with pytest.raises(InvalidInput, match="2 prompts"):
        circuits.expand(PROMPT.expand(2, -1))
    with pytest.raises(OutOfRange, match="position 9"):
        circuits.expand(PROMPT, position=9)
    with pytest.raises(InvalidInput, match="order -1"):
        circuits.expand(PROMPT, order=-1)
    with pytest.raises(InvalidInput, match="has only"):
        circuits.expand(PROMPT, order=0).term(((0, 0),))
    monkeypatch.setattr(expansion, "_MOST", 10)
    with pytest.raises(OutOfMemory, match="lower order"):
        circuits.expand(PROMPT)


def test_the_table_adds_up_to_the_logit_of_the_likeliest_token() -> None:
    lm = unembed.load("attn-2l")
    found = unembed.circuits(lm).expand("The first month of the", order=1)
    token = int(found.logits.argmax())
    constant = 0.0 if found.constant is None else float(found.constant[token])
    total = sum(row["contribution"] for row in found.to_table().rows()) + constant
    assert total == pytest.approx(float(found.logits[token]), abs=1e-2)


def _perturbed(model_type: str) -> LanguageModel:
    if model_type != "gemma4_text":
        return load(tiny_model(model_type))
    torch.manual_seed(0)
    config = tiny_config(model_type)
    config.num_kv_shared_layers = 0
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for n, b in model.named_buffers() if n.endswith("layer_scalar"))):
            tensor.add_((0.3 if tensor.dim() <= 1 else 0.05) * torch.randn_like(tensor))
    return load(model)


@torch.no_grad()
@pytest.mark.parametrize(
    "model_type",
    [
        *("deepseek_v3", "youtu", "qwen3_next", "qwen3_5_text", "afmoe", "doge", "gemma4_text", "falcon_h1", "gpt_oss"),
        *("minimax", "gpt_neox_japanese"),
    ],
)
def test_paths_add_up_through_latents_gates_sinks_other_writers_and_rescaled_streams(model_type: str) -> None:
    lm, tokens = _perturbed(model_type), torch.arange(3, 12)[None]
    found = expand(lm, tokens, order=lm.n_layers)
    assert found.error < 2e-6 and not found.exact
    logits = lm.hf(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits[0, -1]
    token = int(logits.argmax())
    cap = lm.structure.logit_softcap
    own = logits[token].double() if cap is None else cap * torch.atanh(logits[token].double() / cap)
    constant = 0.0 if found.constant is None else float(found.constant[token])
    assert float(found.by_order(token).sum()) + constant == pytest.approx(float(own), rel=1e-4, abs=1e-5)
    # All paths that end in a head are what that head contributes, but for biases, which are terms of their own.
    heads = {
        (r.layer, r.index): r.contribution
        for r in attribution(lm, tokens, token, by="head").rows
        if r.index is not None
    }
    contribution = found.contribution(token)
    if not any("biases" in label for label in found.labels):
        for layer in lm.attention_layers:
            for head in range(4):
                paths = [i for i, path in enumerate(found.paths) if path and path[-1] == (layer, head)]
                mine = float(contribution[paths].sum())
                assert mine == pytest.approx(heads[layer, head], rel=1e-3, abs=1e-5), (layer, head)


@torch.no_grad()
def test_a_stream_that_is_normalised_on_its_way_is_linear_at_the_scales_of_the_run() -> None:
    """MiniMax in float64: every position is divided by its own scales, so sources and destinations differ."""
    model = tiny_model("minimax")
    model.set_experts_implementation("eager")
    lm, tokens = load(model.double()), torch.arange(3, 12)[None]
    logits = model(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits[0]
    for position in (1, 5, 8):
        found = expand(lm, tokens, order=2, position=position)
        assert found.orders.count(2) == 16 and found.remainder.norm() < 1e-9 * found.vectors.norm()
        total = found.vectors.sum(0) @ lm.weights.W_U
        torch.testing.assert_close(total, logits[position], rtol=1e-6, atol=1e-6)  # norms compute in float32
    importance = unembed.circuits(lm).term_importance(tokens)
    assert importance.error is not None and importance.error < 1e-6
    # The path through one head, by hand: V and O of the model between its norms, at their scales in the run.
    seen = run(lm, tokens, ["resid_pre", "resid_mid", "pattern", "resid_post"], logits=False)

    def scale(x: torch.Tensor) -> torch.Tensor:
        return (x.square().mean(-1, keepdim=True) + model.config.rms_norm_eps).sqrt()

    layers, n = model.model.layers, 2
    x = seen.at("resid_pre", n)[0] / scale(seen.at("resid_pre", n)[0]) * layers[n].input_layernorm.weight
    values = (layers[n].self_attn.v_proj(x)[:, :16]).double()
    z = seen.at("pattern", n)[0, 1].double() @ values  # head 1 shares the first key-value head
    x = z @ layers[n].self_attn.o_proj.weight[:, 16:32].T
    x = x * layers[n].post_attention_layernorm.weight / scale(seen.at("resid_mid", n)[0])
    for point, norm in (("resid_pre", "input_layernorm"), ("resid_mid", "post_attention_layernorm")):
        x = x * getattr(layers[3], norm).weight / scale(seen.at(point, 3)[0])
    x = x * model.model.norm.weight / scale(seen.at("resid_post", 3)[0])
    found = expand(lm, tokens, order=2)
    of_head = [i for i, path in enumerate(found.paths) if path and path[-1] == (n, 1)]
    torch.testing.assert_close(found.vectors[of_head].sum(0), x[-1], rtol=1e-5, atol=1e-7)


def test_terms_that_miss_the_logits_are_refused() -> None:
    """A head that changes the logits after the stream was read, and a softmax whose logits are no sum."""
    lm = load(tiny_model("llama"))
    assert expand(lm, PROMPT).error < 1e-5
    handle = lm.hf.lm_head.register_forward_hook(lambda _module, _args, logits: logits * 1.01)
    with pytest.raises(SumNotProved, match=r"differs from it by 9.9e−03 of its size"):
        expand(lm, PROMPT)
    handle.remove()
    with pytest.raises(Unsupported, match="adaptive softmax"):
        expand(load(wikilm()), PROMPT)


@pytest.mark.parametrize(
    ("model_type", "why"),
    [
        ("gemma4_text", "it uses the keys and values of another layer"),
        ("jetmoe", "chooses the query and output projections of its heads among experts"),
        ("rwkv", "have RWKV instead of attention"),
        ("gemma3n_text", "4 streams"),
        ("zaya", "half of each value comes from the position before"),
        ("diffllama", "difference of two softmaxes"),
    ],
)
def test_an_expansion_that_does_not_exist_names_the_part_of_the_architecture(model_type: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        expand(load(tiny_model(model_type)), torch.arange(3, 12)[None])
