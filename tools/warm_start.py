"""Training that begins from the weights of an earlier model instead of random ones.

The optimisers start from zero. With the same vocabulary the run continues at the same place in the text. With another
vocabulary each token starts at the mean embedding of the pieces that the earlier vocabulary splits it into.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GPT2LMHeadModel

from tools.training.loop import Run
from tools.training.networks import Wren
from unembed.errors import InvalidInput

MILESTONE = "milestone.json"
FIRST_PIECE = 257  # ids before it: the end-of-text token and the 256 bytes, the same in every vocabulary


@dataclass(frozen=True)
class Milestone:
    """The progress of a run, saved with the weights that ship."""

    step: int
    tokens: int
    pass_: int
    place: int
    rows: int

    def save(self, folder: Path) -> None:
        """Write `milestone.json`."""
        (folder / MILESTONE).write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Milestone | None:
        """What `save` wrote; None where there is no such file."""
        path = folder / MILESTONE
        return cls(**json.loads(path.read_text())) if path.exists() else None


def milestone_of(run: Run) -> Milestone:
    """The progress of a run."""
    windows = run.windows
    return Milestone(run.step, run.n_tokens, windows.pass_, windows.place, windows.rows)


def begin_from(run: Run, folder: Path, tokenizer: Tokenizer) -> None:
    """Give a run the weights of an exported model, and its position in the text if it has the same vocabulary.

    Raises:
        InvalidInput: the model has other sizes than the recipe, or none of its tokenizers is found.
    """
    if not isinstance(run.network, Wren):
        raise InvalidInput(
            f"beginning from {folder}", why="the recipe is attention-only", instead="Train it from random weights"
        )
    copy_weights(run.network, folder, tokenizer)
    milestone = Milestone.load(folder)
    if milestone is not None and _tokenizer_of(folder).to_str() == tokenizer.to_str():
        run.step = run.began = milestone.step
        run.n_tokens = milestone.tokens
        run.windows = run.windows_at(pass_=milestone.pass_, place=milestone.place, rows=milestone.rows)
        if (folder / "loss.jsonl").exists():
            shutil.copy(folder / "loss.jsonl", run.folder)


@torch.no_grad()
def copy_weights(network: Wren, folder: Path, tokenizer: Tokenizer) -> None:
    """Copy an exported model into a network of the same width and context, and at least as many layers.

    Layers that the earlier model lacks keep their random weights: what they write starts at zero, so the network
    computes what the earlier model computed.

    Args:
        network: what the weights are copied into.
        folder: an exported model; its tokenizer is in the folder, in the folder's `tokenizer/`, or in the parent's.
        tokenizer: the vocabulary of the network.

    Raises:
        InvalidInput: the model has another width, context or head size, more layers, or no tokenizer.
    """
    shape = network.shape
    model = GPT2LMHeadModel.from_pretrained(folder).float()
    config = model.config
    theirs = (config.n_embd, config.n_head, config.n_inner, config.n_positions)
    ours = (shape.d_model, shape.n_heads, shape.d_mlp, shape.context)
    if theirs != ours or config.n_layer > shape.n_layers:
        raise InvalidInput(
            f"beginning from {folder}",
            why=f"it has {config.n_layer} layers and (width, heads, memories a layer, positions) {theirs}; "
            f"the recipe has {shape.n_layers} layers and {ours}",
            instead="Give a model of the recipe's sizes, with at most as many layers",
        )
    state = model.transformer.state_dict()
    embeddings = _embeddings(state["wte.weight"], _tokenizer_of(folder), tokenizer)
    network.wte.weight[: len(embeddings)].copy_(embeddings)  # the matrix may have rows without a token
    network.wpe.weight.copy_(state["wpe.weight"])
    network.ln_f.load_state_dict({key: state[f"ln_f.{key}"] for key in ("weight", "bias")})
    for index in range(config.n_layer):
        at = f"h.{index}."
        layer = {f"{norm}.{key}": state[f"{at}{norm}.{key}"] for norm in ("ln_1", "ln_2") for key in ("weight", "bias")}
        # GPT-2 stores its matrices (d_in, d_out), with queries, keys and values side by side.
        for name, target in (("attn.c_proj", "attention.o"), ("mlp.c_fc", "w_in"), ("mlp.c_proj", "w_out")):
            layer |= {f"{target}.weight": state[f"{at}{name}.weight"].T, f"{target}.bias": state[f"{at}{name}.bias"]}
        weights = state[at + "attn.c_attn.weight"].T.chunk(3)
        biases = state[at + "attn.c_attn.bias"].chunk(3)
        for part, weight, bias in zip("qkv", weights, biases, strict=True):
            layer |= {f"attention.{part}.weight": weight, f"attention.{part}.bias": bias}
        network.blocks[index].load_state_dict(layer)


def _embeddings(earlier: Tensor, before: Tokenizer, after: Tokenizer) -> Tensor:
    """The embeddings (d_vocab, d_model) of a vocabulary from those of another."""
    if before.to_str() == after.to_str():
        return earlier
    rows = [earlier[token] for token in range(FIRST_PIECE)]
    for token in range(FIRST_PIECE, after.get_vocab_size()):
        pieces = before.encode(after.id_to_token(token), add_special_tokens=False).ids
        rows.append(earlier[pieces].mean(0))
    return torch.stack(rows)


def _tokenizer_of(folder: Path) -> Tokenizer:
    places = [folder, folder.parent / "tokenizer", folder.parent.parent / "tokenizer"]
    for place in places:
        if (place / "tokenizer.json").exists():
            return Tokenizer.from_file(str(place / "tokenizer.json"))
    raise InvalidInput(
        f"beginning from {folder}",
        why="it has no tokenizer.json, nor has a folder `tokenizer` next to or above it",
        instead="Copy the tokenizer of the model there",
    )
