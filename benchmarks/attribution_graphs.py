"""Circuits of features beside circuit-tracer's attribution graphs: the same edges, and what either costs.

    .peers/transformer-lens-3.9.0/bin/python benchmarks/attribution_graphs.py          # half a minute

circuit-tracer's own demonstrations need transcoders that are fetched from the hub, for models (Gemma 2, Llama 3.2,
Qwen 3) that are not here. So both libraries get one model of GPT-2's shape with random weights and one random
transcoder for each layer. In circuit-tracer's graph heads are no nodes: an edge from feature to feature includes all
ways through attention, with patterns and norms as in the run. The same is computed here from the linear pass, with
features as the only leaves.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from typing import Any

import huggingface_hub.constants
import torch
from measure import Claim, record
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import unembed
from unembed.circuit_graph.features import in_place_of_memories
from unembed.circuit_graph.relevance import Aim, readout, seed
from unembed.dictionaries import AttachedDictionary, Dictionary, attach
from unembed.linear_model.linear_pass import linear_pass
from unembed.linear_model.linear_rules import linearized
from unembed.linear_model.pass_tensors import LinearPass

TOKENS = [5, 17, 23, 42, 11, 8, 60, 33]
LAYERS, D_MODEL, HEADS, FEATURES, D_VOCAB = 4, 128, 4, 512, 500
KEPT = 100


class Tokenizer:
    """What circuit-tracer needs to know of one; the first token is the begin token."""

    cls_token_id = eos_token_id = None
    pad_token_id, bos_token_id, vocab_size = 0, TOKENS[0], D_VOCAB
    all_special_ids = (TOKENS[0],)
    bos_token = eos_token = pad_token = ""
    padding_side = "right"

    def decode(self, ids: Any) -> str:
        """The ids themselves."""
        return " ".join(map(str, torch.as_tensor(ids).flatten().tolist()))


def model_and_dictionaries() -> tuple[GPT2LMHeadModel, list[Dictionary]]:
    """A seeded model whose gains and biases are not 1 and 0, and a transcoder for each layer."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_embd": D_MODEL, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
    hf = GPT2LMHeadModel(GPT2Config(vocab_size=D_VOCAB, bos_token_id=1, eos_token_id=2, **shape)).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_((0.3 if parameter.dim() == 1 else 0.05) * torch.randn_like(parameter))
    made = [
        Dictionary(
            torch.randn(D_MODEL, FEATURES) / D_MODEL**0.5,
            0.1 * torch.randn(FEATURES) - 0.8,
            (torch.randn(FEATURES, D_MODEL) / FEATURES**0.5,),
            0.1 * torch.randn(D_MODEL),
            "relu",
            layer=layer,
            reads="mlp_in",
            writes="mlp_out",
        )
        for layer in range(LAYERS)
    ]
    return hf, made


def their_model(hf: GPT2LMHeadModel, dictionaries: list[Dictionary]) -> Any:
    """circuit-tracer's replacement model, with the same weights and transcoders."""
    # Gone from huggingface_hub 1, read by circuit-tracer.
    constants: Any = huggingface_hub.constants
    constants.HF_HUB_ENABLE_HF_TRANSFER = False
    from circuit_tracer.replacement_model import (  # pyright: ignore[reportMissingImports]
        replacement_model_transformerlens,
    )
    from circuit_tracer.transcoder import TranscoderSet  # pyright: ignore[reportMissingImports]
    from circuit_tracer.transcoder import single_layer_transcoder as single  # pyright: ignore[reportMissingImports]
    from transformer_lens import HookedTransformerConfig  # pyright: ignore[reportMissingImports]
    from transformer_lens.pretrained.weight_conversions import (  # pyright: ignore[reportMissingImports]
        convert_gpt2_weights,
    )

    shape = {"n_layers": LAYERS, "d_model": D_MODEL, "n_heads": HEADS, "d_head": D_MODEL // HEADS}
    shape |= {"d_mlp": 4 * D_MODEL, "d_vocab": D_VOCAB, "n_ctx": 64, "eps": hf.config.layer_norm_epsilon}
    config = HookedTransformerConfig(**shape, act_fn="gelu_new", normalization_type="LN", device="cpu")
    transcoders = {}
    for layer, part in enumerate(dictionaries):
        one = single.SingleLayerTranscoder(D_MODEL, FEATURES, torch.nn.functional.relu, layer, dtype=torch.float32)
        with torch.no_grad():
            one.W_enc.copy_(part.W_enc.T)
            one.W_dec.copy_(part.W_dec[0])
            one.b_enc.copy_(part.b_enc)
            one.b_dec.copy_(part.b_dec)
        transcoders[layer] = one
    whole = TranscoderSet(transcoders, "mlp.hook_in", "mlp.hook_out", scan="random")
    model = replacement_model_transformerlens.TransformerLensReplacementModel.from_config(config, whole)
    state = {
        name.replace(".mlp.", ".mlp.old_mlp.").replace("unembed.", "unembed.old_unembed."): value
        for name, value in convert_gpt2_weights(hf, config).items()
    }
    model.load_state_dict(state, strict=False)
    model.tokenizer = Tokenizer()
    with torch.no_grad():
        torch.testing.assert_close(model(torch.tensor([TOKENS])), hf(torch.tensor([TOKENS])).logits)
    return model


def our_edges(attached: AttachedDictionary, places: Tensor, answers: list[int]) -> tuple[Tensor, Tensor]:
    """Edges between features at (layer, position, index), and into the difference of two logits.

    Returns:
        What each feature's encoder receives from each other feature, (target, source); the same of the metric.
    """
    node = LinearPass.node

    def through_heads(self: LinearPass, own: Tensor, read: Tensor | None) -> Tensor:
        return linearized(own, read) if own.dim() == 4 and read is not None else node(self, own, read)

    LinearPass.node = through_heads
    try:
        made = linear_pass(attached.lm, torch.tensor([TOKENS]), None, in_place_of_memories(attached), cut=True)
    finally:
        LinearPass.node = node
    parts = [made.parts["feature", layer] for layer in range(LAYERS)]
    leaves = [part.own for part in parts]

    def from_features(output: Tensor, at: Tensor) -> Tensor:
        found = torch.autograd.grad([output], leaves, [at], retain_graph=True, allow_unused=True)
        sums = torch.stack(
            [torch.zeros_like(t) if g is None else t.detach() * g for t, g in zip(leaves, found, strict=True)]
        )
        return sums[places[:, 0], 0, places[:, 1], places[:, 2]]

    rows = []
    for layer, position, index in places.tolist():
        read = parts[layer].read
        assert read is not None
        at = torch.zeros_like(read)
        at[0, position, index] = 1.0
        rows.append(from_features(read, at))
    end = readout(made, Aim([answers[0]], [answers[1]]))
    return torch.stack(rows), from_features(made.last, seed(made, end.u))


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    if find_spec("circuit_tracer") is None:
        print("no circuit-tracer here: `make bench` installs it into .peers/transformer-lens-3.9.0", file=sys.stderr)
        return
    torch.set_num_threads(1)
    hf, dictionaries = model_and_dictionaries()
    peer = their_model(hf, dictionaries)
    from circuit_tracer.attribution.attribute import attribute  # pyright: ignore[reportMissingImports]

    def theirs(kept: int | None) -> Any:
        return attribute(TOKENS, peer, max_n_logits=2, desired_logit_prob=1.0, batch_size=64, max_feature_nodes=kept)

    graph = theirs(None)
    places = graph.active_features[graph.selected_features]
    n, matrix = len(places), graph.adjacency_matrix
    answers = graph.logit_token_ids.tolist()
    lm = unembed.load(hf)
    attached = attach(lm, dictionaries)
    edges, into = our_edges(attached, places, answers)
    between = float((matrix[:n, :n] - edges).abs().max() / matrix[:n, :n].abs().max())
    difference = matrix[-2, :n] - matrix[-1, :n]  # what they subtract from each logit, the mean of all, cancels
    at_end = float((difference - into).abs().max() / difference.abs().max())
    seconds = {"theirs": cpu(lambda: theirs(KEPT))}
    seconds["ours"] = cpu(lambda: lm.circuit(TOKENS, answers[0], answers[1], max_nodes=KEPT, dictionary=attached))
    claims = [
        Claim(f"largest difference of {n * n:,} edges between {n} features, to the largest edge", between, 1e-5),
        Claim("the same of the edges into the difference of two logits", at_end, 1e-5),
        Claim(f"time of a graph of {KEPT} nodes, to circuit-tracer with {KEPT} features", seconds["ours"] / seconds["theirs"], None,
              f"{seconds['ours']:.2f} s to {seconds['theirs']:.2f} s; ours has heads as nodes, every sum checked, and labels"),
    ]  # fmt: skip
    how = (
        f"GPT-2's shape, {LAYERS} layers of {D_MODEL}, random weights; a random transcoder of {FEATURES} features for "
        f"each layer; {len(TOKENS)} tokens; circuit-tracer 0.5.0. Its published transcoders and the models that they "
        "were trained on cannot be fetched here, so that its own demonstrations were not run."
    )
    record("Circuit of features beside circuit-tracer", claims, how=how)


def cpu(work: Any) -> float:
    """CPU seconds of a call, the second time."""
    work()
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
