"""The attention-only architecture against its formula, and against what transformers expects of a decoder."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from unembed.models.architectures.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM

IDS = torch.tensor([[5, 3, 9, 3, 5, 7, 1], [2, 2, 8, 4, 6, 0, 3]])


@pytest.fixture(params=["eager", "sdpa"])
def model(request: pytest.FixtureRequest) -> AttentionOnlyForCausalLM:
    torch.manual_seed(0)
    config = AttentionOnlyConfig(
        vocab_size=11,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        head_dim=5,
        max_position_embeddings=16,
    )
    config._attn_implementation = request.param
    model = AttentionOnlyForCausalLM(config).eval()
    for parameter in model.parameters():  # far from zero, so that the softmax is far from flat
        torch.nn.init.normal_(parameter, std=0.6)
    return model


def by_the_formula(model: AttentionOnlyForCausalLM, ids: Tensor, positions_in_stream: bool = False) -> Tensor:
    """Logits in float64: x + sum over heads of softmax((x + p) Wq ((x + p) Wk)^T / sqrt(d_head)) x Wv Wo."""
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    logits = []
    for row in ids:
        x = weights["model.embed_tokens.weight"][row]
        p = weights["model.embed_positions.weight"][: len(row)]
        if positions_in_stream:
            x, p = x + p, torch.zeros_like(p)
        for layer in range(model.config.num_hidden_layers):
            q, k, v, o = (weights[f"model.layers.{layer}.self_attn.{part}_proj.weight"] for part in "qkvo")
            written = torch.zeros_like(x)
            for head in range(model.config.num_attention_heads):
                rows = slice(head * model.config.head_dim, (head + 1) * model.config.head_dim)
                scores = ((x + p) @ q[rows].T) @ ((x + p) @ k[rows].T).T / model.config.head_dim**0.5
                scores[torch.ones_like(scores).triu(1).bool()] = -torch.inf
                written += scores.softmax(-1) @ (x @ v[rows].T) @ o[:, rows].T
            x = x + written
        logits.append(x @ weights["lm_head.weight"].T)
    return torch.stack(logits)


def test_logits_are_those_of_the_formula(model):
    torch.testing.assert_close(model(IDS).logits.double(), by_the_formula(model, IDS), rtol=1e-5, atol=1e-5)


def test_the_formula_detects_positions_in_the_stream(model):
    wrong = by_the_formula(model, IDS, positions_in_stream=True)
    assert not torch.allclose(model(IDS).logits.double(), wrong, rtol=1e-2, atol=1e-2)


def test_a_cached_prefix_gives_the_logits_of_the_whole_prompt(model):
    whole = model(IDS, use_cache=False)
    assert whole.past_key_values is None
    first = model(IDS[:, :4], use_cache=True)
    rest = model(IDS[:, 4:], past_key_values=first.past_key_values)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), whole.logits, rtol=1e-5, atol=1e-5)


def test_left_padding_gives_the_logits_of_the_text_alone(model):
    padded = torch.cat([torch.full((1, 3), 10), IDS[:1, :4]], dim=1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    batch = torch.cat([padded, IDS[1:]])
    out = model(
        batch,
        attention_mask=torch.cat([mask, torch.ones_like(mask)]),
        position_ids=torch.cat([positions, torch.arange(7)[None]]),
    )
    torch.testing.assert_close(out.logits[:1, 3:], model(IDS[:1, :4]).logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.logits[1:], model(IDS[1:]).logits, rtol=1e-5, atol=1e-5)


def test_generation_of_a_padded_batch_equals_each_alone(model):
    model.generation_config.pad_token_id = 10
    model.generation_config.eos_token_id = None
    settings = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}
    batch = torch.cat([torch.cat([torch.full((1, 3), 10), IDS[:1, :4]], dim=1), IDS[1:]])
    mask = (torch.arange(7) >= torch.tensor([[3], [0]])).long()
    together = model.generate(batch, attention_mask=mask, **settings)[:, 7:]
    alone = [model.generate(ids, attention_mask=torch.ones_like(ids), **settings) for ids in (IDS[:1, :4], IDS[1:])]
    assert together.tolist() == [alone[0][0, 4:].tolist(), alone[1][0, 7:].tolist()]


def test_eager_patterns_are_causal_and_their_rows_sum_to_one(model):
    model.set_attn_implementation("eager")
    patterns = model(IDS, output_attentions=True).attentions
    assert len(patterns) == 2
    for pattern in patterns:
        assert pattern.shape == (2, 3, 7, 7)
        torch.testing.assert_close(pattern.sum(-1), torch.ones(2, 3, 7))
        assert pattern.triu(1).count_nonzero() == 0


def test_hidden_states_are_the_stream_before_and_after_each_block(model):
    out = model(IDS, output_hidden_states=True)
    assert len(out.hidden_states) == 3
    torch.testing.assert_close(out.hidden_states[0], model.model.embed_tokens(IDS), rtol=0, atol=0)
    torch.testing.assert_close(model.lm_head(out.hidden_states[-1]), out.logits, rtol=0, atol=0)


def test_only_the_requested_positions_get_logits(model):
    whole = model(IDS).logits
    torch.testing.assert_close(model(IDS, logits_to_keep=2).logits, whole[:, -2:], rtol=0, atol=1e-6)
    torch.testing.assert_close(
        model(IDS, logits_to_keep=torch.tensor([1, 3])).logits, whole[:, [1, 3]], rtol=0, atol=1e-6
    )


def test_labels_give_the_shifted_cross_entropy(model):
    out = model(IDS, labels=IDS)
    expected = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected)


def test_a_saved_folder_opens_through_the_auto_classes(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), AttentionOnlyConfig)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert isinstance(opened, AttentionOnlyForCausalLM)
    torch.testing.assert_close(opened(IDS).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)


def test_both_or_neither_of_ids_and_embeddings_is_refused(model):
    with pytest.raises(ValueError, match="exactly one of input_ids or inputs_embeds"):
        model()
