"""What the layers below make of a token, and skip-trigrams through it, against the model's own modules in float64."""

import pytest
import torch

import unembed
from tests.families import build
from tests.models.decoder_classes import tiny_model
from unembed.attention.text.skip_trigrams import TokenReading, centred_circuits
from unembed.attention.text.token_vectors import token_vectors
from unembed.errors import Unsupported
from unembed.models.norms import Norm

IDS = torch.tensor([3, 17, 40, 8, 29])


def through(norm: Norm, rows: torch.Tensor) -> torch.Tensor:
    """The rest of a norm: centring, gain and bias."""
    rows = rows - rows.mean(dim=-1, keepdim=True) if norm.centred else rows
    return rows * norm.gain + (0 if norm.bias is None else norm.bias)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_vectors_through_the_gain_are_what_the_attention_module_reads(name: str) -> None:
    hf = build(name, torch.float64)
    lm = unembed.load(hf)
    found = token_vectors(lm, IDS, [0, 1], "folded")
    for layer in (0, 1):
        norm = lm.structure.blocks[layer].attention.pre_norm
        assert norm is not None
        read: list[torch.Tensor] = []
        handle = norm.module.register_forward_hook(lambda _, __, out, read=read: read.append(out))
        with torch.no_grad():
            if layer == 0:
                norm.module(lm.weights.W_E[IDS][:, None])  # the embedding without a position
            else:
                hf(IDS[:, None])
        handle.remove()
        torch.testing.assert_close(through(norm, found[layer]), read[0][:, 0], rtol=1e-5, atol=1e-6)


def test_a_beginning_is_put_before_the_token_where_the_tokenizer_has_one() -> None:
    lm = unembed.load("wren", dtype="float32")
    begin = lm.tokenizer.bos_token_id
    ids = torch.tensor([300, 17])
    found = token_vectors(lm, ids, [2], "folded")[2]
    front = lm.encode("a")[0]
    lead = front[:1] if int(front[0]) == begin else torch.tensor([begin])
    for row, token in zip(found, ids, strict=True):
        prompt = torch.cat([lead, token[None]])[None]
        stream = lm.run(prompt, "resid_pre").at("resid_pre", 2)[0, -1]
        norm = lm.structure.blocks[2].attention.pre_norm
        torch.testing.assert_close(through(norm, row), norm.module(stream), rtol=1e-4, atol=1e-4)


def test_the_scores_of_a_later_layer_are_those_of_the_modules_own_matrices() -> None:
    """Every destination, source and output by brute force: rotary offset 1, grouped queries, norms, in float64."""
    lm = unembed.load(build("llama", torch.float64))
    circuits, layer, head = unembed.circuits(lm), 1, 2
    vectors = token_vectors(lm, IDS, [layer], "folded")
    J = torch.randn(lm.d_model, lm.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = centred_circuits(circuits, layer, head, "folded", 1, True, IDS, TokenReading(vectors))
    carried = centred_circuits(circuits, layer, head, "folded", 1, True, IDS, TokenReading(vectors, lambda _: J))
    site = lm.structure.blocks[layer].attention
    x = vectors[layer] * site.pre_norm.gain
    kv = head // site.queries_per_kv
    q, k = x @ lm.weights.W_Q[layer][head], x @ lm.weights.W_K[layer][kv]
    rotary, zero = site.scores.rotary, torch.zeros(len(IDS), dtype=torch.long)
    scores = rotary.rotate(q[None], zero + 1)[0] @ rotary.rotate(k[None], zero)[0].T * site.scores.scale
    torch.testing.assert_close(plain.qk.dense(), scores - scores.mean(dim=1, keepdim=True), rtol=1e-5, atol=1e-7)
    written = x @ lm.weights.W_V[layer][kv] @ lm.weights.W_O[layer][head]
    gain, W_U = lm.structure.final_norm.gain, lm.weights.W_U[:, IDS]
    for found, v in ((plain, written), (carried, written @ J)):
        logits = v * gain @ W_U
        torch.testing.assert_close(found.ov.dense(), logits - logits.mean(dim=1, keepdim=True), rtol=1e-5, atol=1e-7)


def test_blocks_that_change_the_stream_are_refused() -> None:
    with pytest.raises(Unsupported, match="they rescale it, or mix several streams"):
        token_vectors(unembed.load(tiny_model("doge")), IDS, [0], "folded")
