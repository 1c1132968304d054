"""Edits of whole layers and of the stream equal hand-written hooks on the model's own modules, in every dtype."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.conftest import tiny
from tests.families import FAMILIES
from unembed.errors import InvalidInput, PointMissing, Unsupported
from unembed.language_model import LanguageModel, load
from unembed.logit_attribution import attribution
from unembed.stream.interventions import (
    Edit,
    add_vector,
    replace_stream,
    scale_attention,
    scale_ffn,
    set_coefficient,
)
from unembed.stream.run import run

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def wren() -> LanguageModel:
    return load()


def _vector(lm: LanguageModel, seed: int = 0) -> Tensor:
    return torch.randn(lm.d_model, generator=torch.Generator().manual_seed(seed))


def _logits_with(lm: LanguageModel, tokens: Tensor, module: nn.Module, change: Callable[[Tensor], Tensor]) -> Tensor:
    def hook(_m: nn.Module, _args: object, out: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)

    handle = module.register_forward_hook(hook)
    try:
        with torch.no_grad():
            return lm.hf(tokens, use_cache=False).logits
    finally:
        handle.remove()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gptj", "mixtral", "opt"])
def test_a_vector_is_added_to_what_the_block_returns(name: str, dtype: torch.dtype, tokens: Tensor) -> None:
    lm = tiny(name, dtype)
    vector = _vector(lm)
    got = run(lm, tokens, edits=[add_vector(0, vector, 2.0, positions=[3])]).logits

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 3] = (x[:, 3] + 2.0 * vector).to(dtype)
        return x

    assert torch.equal(got, _logits_with(lm, tokens, lm.structure.blocks[0].module, change))
    assert not torch.equal(got, run(lm, tokens).logits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(FAMILIES))
def test_the_other_runs_stream_gives_the_other_runs_prediction(name: str, dtype: torch.dtype, tokens: Tensor) -> None:
    lm = tiny(name, dtype)
    last = lm.n_layers - 1
    other = run(lm, tokens[1:], "resid_post")
    edit = replace_stream(last, other["resid_post"][last][0, -1])
    assert torch.equal(run(lm, tokens[:1], edits=[edit]).logits[0, -1], other.logits[0, -1])


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "granite", "opt", "mixtral"])
def test_a_scaled_layer_adds_that_multiple_to_the_stream(name: str, tokens: Tensor) -> None:
    lm = tiny(name)
    plain = run(lm, tokens, ["attn_out", "mlp_out"])
    for make, point in ((scale_attention, "attn_out"), (scale_ffn, "mlp_out")):
        edited = run(lm, tokens, [point], [make(0, 0.25, positions="last")])
        assert torch.allclose(edited[point][0][:, -1], 0.25 * plain[point][0][:, -1], atol=1e-6)
        assert torch.equal(edited[point][0][:, :-1], plain[point][0][:, :-1])


def test_a_constant_added_to_attention_is_scaled_with_it(tokens: Tensor) -> None:
    config = AutoConfig.for_model(
        "gpt_neox_japanese", vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, use_cache=False
    )
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if parameter.dim() == 1 and "bias" in name:
                parameter.normal_()
    lm = load(hf)
    layer = next(i for i, b in enumerate(lm.structure.blocks) if b.mixer and b.mixer.constant is not None)
    plain = run(lm, tokens, "attn_out").at("attn_out", layer)
    edited = run(lm, tokens, "attn_out", [scale_attention(layer, 0.5)]).at("attn_out", layer)
    assert torch.allclose(edited, 0.5 * plain, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gptj"])
@pytest.mark.parametrize("by", ["component", "head", "memory"])
def test_an_attribution_has_a_row_for_what_an_edit_adds(name: str, dtype: torch.dtype, by: str, tokens: Tensor) -> None:
    lm = tiny(name, dtype)
    edit = add_vector(0, _vector(lm), 3.0)
    found = attribution(lm, tokens[:1], 7, against=9, by=by, edits=(edit,))
    rows = {row.label: row.contribution for row in found.rows}
    seen = run(lm, tokens[:1], ["resid_post", "unedited_post"], [edit])
    change = (seen["resid_post"][0] - seen["unedited_post"][0])[0, -1]
    assert float((change - 3.0 * _vector(lm)).abs().max()) < (1e-5 if dtype == torch.float32 else 0.1)
    # With the edit's row the sum closes; without it, it would miss the logit by that row.
    assert abs(found.total - found.logit) <= (1e-3 if dtype == torch.float32 else 0.2) * max(map(abs, rows.values()))
    assert abs(rows["edit 0"]) > 0


def test_the_writers_of_an_edited_stream_add_up(tokens: Tensor) -> None:
    from unembed.stream.decomposition import writer_points, writers

    lm = tiny("gemma2")
    points = ["resid_pre", "resid_post", "unedited_post", *writer_points(lm)]
    seen = run(lm, tokens, points, [add_vector(0, _vector(lm), 5.0)])
    found = writers(lm, seen, "resid_post", lm.n_layers - 1)
    assert "edit 0" in found.labels and found.error < 1e-5


def test_a_trace_of_an_edited_stream_attributes_the_edit(wren: LanguageModel) -> None:
    prompt = "Once upon a time"
    trace = wren.trace(prompt, edits=[add_vector(2, _vector(wren), 4.0, positions="last")])
    rows = trace.attribution(" there").rows
    assert [row.label for row in rows if row.label.startswith("edit")] == ["edit 2"]


def test_parts_of_a_scaled_layer_are_refused_by_name(tokens: Tensor) -> None:
    lm = tiny("llama")
    with pytest.raises(Unsupported, match="attribution by head under an edit of a layer's attention"):
        attribution(lm, tokens[:1], 7, by="head", edits=(scale_attention(0, 0.5),))
    assert attribution(lm, tokens[:1], 7, by="component", edits=(scale_attention(0, 0.5),)).error < 1e-4


def test_a_generation_with_a_vector_is_the_same_with_and_without_a_cache(wren: LanguageModel) -> None:
    edit = add_vector(1, _vector(wren), 3.0)
    [text] = wren.generate("Once upon a time", (edit,), max_new_tokens=8)
    ids = wren.encode("Once upon a time")
    for _ in range(8):
        ids = torch.cat([ids, run(wren, ids, edits=[edit]).logits[:, -1:].argmax(-1)], dim=1)
    assert wren.tokenizer is not None and wren.tokenizer.decode(ids[0]) == text


def test_an_edit_survives_json() -> None:
    for edit in (add_vector(1, [1.0, 2.5], 2.0, "last"), set_coefficient(0, 1, 2.0), scale_ffn(1, 0.0, [1, 2])):
        assert Edit.from_dict(json.loads(json.dumps(edit.to_dict()))) == edit


def test_bad_vectors_are_refused_in_one_line(tokens: Tensor) -> None:
    lm = tiny("gpt2")
    with pytest.raises(InvalidInput, match="has 48"):
        run(lm, tokens, edits=[add_vector(0, [1.0, 2.0])])
    with pytest.raises(InvalidInput, match="number"):
        add_vector(0, [float("nan")])
    with pytest.raises(InvalidInput, match="an edit of 'stream': it needs a vector"):
        Edit("stream", "add", 0, 0, 1.0)
    with pytest.raises(InvalidInput, match='only edits of "stream" take a vector'):
        Edit("coefficient", "set", 0, 0, 1.0, vector=(1.0, 2.0))
    with pytest.raises(PointMissing):
        run(load("attn-1l"), tokens, edits=[scale_ffn(0, 0.0)])


def test_edits_are_several_one_or_none() -> None:
    lm = load()
    one = set_coefficient(3, 950, to=0.0)
    listed = lm.run("The lake is 15", edits=[one]).logits
    assert torch.equal(lm.run("The lake is 15", edits=one).logits, listed)
    assert torch.equal(lm.trace("The lake is 15", edits=one).logits(), listed[0, -1])
    plain = lm.run("The lake is 15").logits
    assert torch.equal(lm.run("The lake is 15", edits=None).logits, plain)
    assert not torch.equal(listed, plain)
    assert lm.generate("The lake is 15", one, max_new_tokens=2) == lm.generate(
        "The lake is 15", [one], max_new_tokens=2
    )
