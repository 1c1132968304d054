"""WikiLM against the formulas of its papers, written again in NumPy from the raw tensors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel, load
from unembed.models.architectures.wikilm import WikiLMConfig, WikiLMForCausalLM
from unembed.models.architectures.word_level import SPECIALS, word_tokenizer

SIZES = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    cutoffs=[20, 50],
    adaptive_factor=2,
    max_position_embeddings=64,
)


def wikilm(dtype: torch.dtype = torch.float32, seed: int = 0, **changes: object) -> WikiLMForCausalLM:
    """A small WikiLM whose biases and gains are not zeros and ones."""
    torch.manual_seed(seed)
    model = WikiLMForCausalLM(WikiLMConfig(**{**SIZES, **changes})).to(dtype).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.3 if parameter.dim() == 1 else 0.1) * torch.randn_like(parameter))
    return model


def tokens(rows: int = 2, pos: int = 9, n_words: int = 97) -> torch.Tensor:
    return torch.randint(4, n_words, (rows, pos), generator=torch.Generator().manual_seed(1))


def by_hand(model: WikiLMForCausalLM, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Streams after every block and log-probabilities, in float64 from the state dict alone."""
    config = model.config
    w = {k: v.double().numpy() for k, v in model.state_dict().items()}
    bounds = [0, *config.cutoffs, config.vocab_size]
    d, n = config.hidden_size, len(ids)
    embedding = "model.embed_tokens.bands"
    x = np.zeros((n, d))
    for i, word in enumerate(ids):
        band = max(b for b in range(len(bounds) - 1) if bounds[b] <= word)
        x[i] = w[f"{embedding}.{band}.projection.weight"] @ w[f"{embedding}.{band}.words.weight"][word - bounds[band]]
    f = np.exp(-np.arange(d // 2) * math.log(10000) / (d // 2 - 1))
    angles = (np.arange(n) + 2)[:, None] * f
    x = math.sqrt(d) * x + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    def norm(v: np.ndarray, name: str) -> np.ndarray:
        centred = v - v.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(v: np.ndarray, name: str) -> np.ndarray:
        return v @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def log_softmax(v: np.ndarray) -> np.ndarray:
        v = v - v.max(-1, keepdims=True)
        return v - np.log(np.exp(v).sum(-1, keepdims=True))

    streams, width = [], d // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}"
        read = norm(x, f"{at}.self_attn_layer_norm")
        q, k, v = (linear(read, f"{at}.self_attn.{c}_proj") for c in "qkv")
        z = np.zeros((n, d))
        for head in range(config.num_attention_heads):
            span = slice(head * width, (head + 1) * width)
            for dst in range(n):
                scores = (q[dst, span] * width**-0.5) @ k[: dst + 1, span].T
                z[dst, span] = np.exp(log_softmax(scores)) @ v[: dst + 1, span]
        x = x + linear(z, f"{at}.self_attn.out_proj")
        x = x + linear(np.maximum(linear(norm(x, f"{at}.final_layer_norm"), f"{at}.fc1"), 0), f"{at}.fc2")
        streams.append(x)
    first = np.concatenate([x @ w[f"{embedding}.0.words.weight"].T, x @ w["lm_head.class_proj.weight"].T], axis=1)
    first = log_softmax(first)
    parts = [first[:, : bounds[1]]]
    for band in range(1, len(bounds) - 1):
        narrow = x @ w[f"{embedding}.{band}.projection.weight"]
        within = log_softmax(narrow @ w[f"{embedding}.{band}.words.weight"].T)
        parts.append(first[:, bounds[1] + band - 1, None] + within)
    return np.stack(streams), np.concatenate(parts, axis=1)


def test_streams_and_log_probabilities_are_those_of_the_formulas():
    model = wikilm(torch.float64)
    ids = tokens(1)[0]
    streams, log_p = by_hand(model, ids.tolist())
    with torch.no_grad():
        out = model(ids[None], output_hidden_states=True)
    assert out.hidden_states is not None
    for layer, stream in enumerate(streams):
        torch.testing.assert_close(out.hidden_states[layer + 1][0], torch.from_numpy(stream), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out.logits[0], torch.from_numpy(log_p), rtol=1e-9, atol=1e-9)


def test_full_width_model_is_that_of_the_formulas_and_has_the_papers_size():
    """All widths of the paper's model, the full vocabulary included; two of its sixteen layers."""
    model = wikilm(**{k: v for k, v in WikiLMConfig(num_hidden_layers=2).to_dict().items() if k in SIZES})
    ids = [2, 5, 19_999, 20_000, 59_999, 60_000, 267_743]
    streams, log_p = by_hand(model, ids)
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    assert out.hidden_states is not None
    scale = float(np.abs(streams[-1]).max())
    torch.testing.assert_close(
        out.hidden_states[-1][0].double() / scale, torch.from_numpy(streams[-1]) / scale, rtol=0, atol=1e-5
    )
    spread = float(np.abs(log_p).max())
    torch.testing.assert_close(out.logits[0].double() / spread, torch.from_numpy(log_p) / spread, rtol=0, atol=1e-5)
    with torch.device("meta"):
        whole = WikiLMForCausalLM(WikiLMConfig())
    assert sum(p.numel() for p in whole.parameters()) == 246_933_504


def test_probabilities_sum_to_one_and_the_untied_readout_has_projections_of_its_own():
    tied, untied = wikilm(torch.float64), wikilm(torch.float64, tie_adaptive_proj=False)
    x = torch.randn(3, 48, dtype=torch.float64)
    for model in (tied, untied):
        with torch.no_grad():
            torch.testing.assert_close(model.lm_head(x).exp().sum(-1), torch.ones(3, dtype=torch.float64))
    assert not any("projections" in key for key in tied.state_dict())
    assert untied.state_dict()["lm_head.projections.1.weight"].shape == (12, 48)


def test_right_padding_and_the_cache_leave_every_number_as_it_is():
    model = wikilm(torch.float64)
    ids = tokens(1, 7)
    padded = torch.cat([ids, torch.ones(1, 3, dtype=torch.long)], dim=1)
    mask = (torch.arange(10) < 7).long()[None]
    with torch.no_grad():
        alone = model(ids).logits
        torch.testing.assert_close(model(padded, attention_mask=mask).logits[:, :7], alone, rtol=1e-9, atol=1e-9)
        first = model(ids[:, :4], use_cache=True)
        rest = model(ids[:, 4:], past_key_values=first.past_key_values, use_cache=True).logits
    torch.testing.assert_close(rest, alone[:, 4:], rtol=1e-9, atol=1e-9)


def test_generation_with_the_cache_takes_the_likeliest_word_each_time():
    model = wikilm(torch.float64)
    ids = tokens(1, 4)
    generated = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        ids, max_new_tokens=5, do_sample=False, eos_token_id=None
    )
    for _ in range(5):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert generated.tolist() == ids.tolist()


def test_saved_and_opened_again_by_transformers_it_is_the_same_model(tmp_path: Path):
    model = wikilm()
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), WikiLMConfig)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(tokens()).logits, model(tokens()).logits)


def test_cutoffs_that_do_not_rise_are_refused():
    with pytest.raises(InvalidInput, match="first word id of every band"):
        WikiLMConfig(vocab_size=10, cutoffs=[20])


# The two readings


def test_the_linear_view_gives_the_band_scores_and_gaps_of_log_probability_within_a_band():
    model = wikilm(torch.float64)
    head = model.lm_head
    x = torch.randn(5, 48, dtype=torch.float64)
    with torch.no_grad():
        scores, log_p = head.band_scores(x), head(x)
    torch.testing.assert_close(scores, x @ head.W_U)
    for start, end, _ in head.spans:
        gaps = scores[:, start:end] - scores[:, start : start + 1]
        torch.testing.assert_close(gaps, log_p[:, start:end] - log_p[:, start : start + 1])
    # Between bands a class's probability enters, so the linear view alone says something else there.
    between = scores[:, 25] - scores[:, 5] - (log_p[:, 25] - log_p[:, 5])
    assert float(between.abs().min()) > 1e-3


# As a model like any other


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return load(wikilm(), tokenizer=word_tokenizer([*SPECIALS, *(f"w{i}" for i in range(93))]))


def test_the_resolver_sees_its_parts(lm: LanguageModel):
    structure = lm.structure
    assert structure.final_norm is None
    assert lm.d_vocab == 97 and lm.d_mlp == 80
    ffn, attention = structure.blocks[0].feed_forward, structure.blocks[0].attention
    assert ffn is not None and ffn.pre_norm is not None and ffn.pre_norm.path.endswith("final_layer_norm")
    assert ffn.activation == "relu" and not ffn.is_gated
    assert attention.scores.understood and attention.scores.scale == 12**-0.5
    assert torch.equal(lm.weights.W_E, lm.hf.get_input_embeddings().W_E)  # type: ignore[operator]
    assert lm.weights.W_U.shape == (48, 97)


def test_memories_and_streams_are_watched(lm: LanguageModel):
    run = lm.run(tokens(), capture=("resid_mid", "resid_post", "coefficients", "mlp_out"))
    for layer in range(2):
        b_out = lm.weights.b_out[layer]
        assert b_out is not None
        written = run["coefficients"][layer] @ lm.weights.W_out[layer] + b_out
        torch.testing.assert_close(written, run["mlp_out"][layer], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(run["resid_mid"][layer] + run["mlp_out"][layer], run["resid_post"][layer])
    assert float(run["coefficients"].min()) == 0.0
    read = lm.hf.get_output_embeddings()
    assert read is not None
    torch.testing.assert_close(read(run["resid_post"][-1]), run.logits)


# Words


def test_text_is_split_at_spaces_and_opens_with_the_end_of_a_line(lm: LanguageModel):
    assert lm.encode("w0 w92  <unk> other\nw1").tolist() == [[2, 4, 96, 3, 3, 2, 5]]
    assert lm.decode(torch.tensor([4, 96])) == "w0 w92"
    assert lm.token_strings([2, 4]) == ["</s>", "w0"]
    assert lm.single_token("w1") == 5


def test_punctuation_stays_in_its_word():
    tokenizer = word_tokenizer([*SPECIALS, "@-@", "don't", "U.S."])
    assert tokenizer("don't @-@ U.S.")["input_ids"] == [2, 5, 4, 6]


def test_the_tokenizer_is_saved_and_opened_again(tmp_path: Path):
    tokenizer = word_tokenizer([*SPECIALS, "a", "b"])
    tokenizer.save_pretrained(tmp_path)
    WikiLMConfig(**SIZES).save_pretrained(tmp_path)  # type: ignore[arg-type]
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("b a")["input_ids"] == [2, 5, 4]
    assert again.pad_token_id == 1 and again.eos_token == "</s>"


@pytest.mark.parametrize("by", ["component", "head", "source", "memory"])
def test_an_attribution_of_a_log_probability_names_what_normalises_the_bands(by: str) -> None:
    lm = load(wikilm())
    prompt = torch.tensor([[3, 5, 8, 13, 21]])
    attribution = lm.trace(prompt).attribution(7, by=by)
    assert attribution.error < 1e-4
    assert attribution.logit == pytest.approx(float(lm.run(prompt).logits[0, -1, 7]), abs=1e-5)
    score = lm.structure.head.band_scores(lm.run(prompt, capture=("resid_post",))["resid_post"][-1][0, -1])[7]
    writers = sum(row.contribution for row in attribution.rows if row.label != "band normalisers")
    assert writers == pytest.approx(float(score.detach()), abs=1e-4)


def test_as_many_blocks_as_bands_of_words_are_still_the_blocks():
    lm = load(wikilm(torch.float64, num_hidden_layers=3))  # three bands, too
    assert lm.n_layers == 3 and len(lm.weights.W_out) == 3
    ids = tokens(1, 5)
    run = lm.run(ids, capture=("resid_post",))
    torch.testing.assert_close(run["resid_post"][-1][0], lm.hf.model(ids).last_hidden_state[0])


@torch.no_grad()
def test_log_probabilities_of_a_word_for_each_vector_are_those_of_the_whole_readout():
    head = wikilm(torch.float64).lm_head
    x = torch.randn(40, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    words = torch.arange(40) * 97 // 40  # in all three bands
    torch.testing.assert_close(head.log_probabilities(x, words), head(x).gather(1, words[:, None])[:, 0])
