"""Copies of `wren` with one change each, so that the answer to a question about them is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2LMHeadModel

import unembed

SILENCED = ("L1M40", "L3M950", "L5M484", "L6M7", "L7M985")
"""Memories (FFN neurons) whose value vectors are zero."""
RAISED = {
    "L0M12": " London", "L1M77": " music", "L2M500": " river", "L3M3": " doctor",
    "L4M1000": " yellow", "L5M640": " Monday", "L6M256": " army", "L7M31": " eleven",
}  # fmt: skip
"""Memories and the token whose row of the unembedding became their value vector."""
SHIFTS = {0: 3, 1: 2, 3: 5}
"""Layers whose heads changed places, and by how much the number of each head grew."""
QUIET = ("L2H4", "L3H0", "L5H6")
"""Heads that write nothing."""
PUSHED = {"ffn": (3, " music"), "attention": (5, " river")}
"""Layers with a bias along a token's row of the unembedding."""
_STRENGTH = 20.0


def _place(address: str, letter: str) -> tuple[int, int]:
    layer, number = address.removeprefix("L").split(letter)
    return int(layer), int(number)


def _block(lm: unembed.LanguageModel, layer: int) -> Any:
    """A layer of the GPT-2 that wren is."""
    hf: Any = lm.hf
    return hf.transformer.h[layer]


def _direction(lm: unembed.LanguageModel, token: str) -> torch.Tensor:
    rows = lm.hf.lm_head.weight.float()
    row = rows[lm.single_token(token)] - rows.mean(0)  # what all tokens share makes no token more probable than another
    return row / row.norm()


def silenced(lm: unembed.LanguageModel) -> None:
    """Set the value vectors of some memories to zero."""
    for address in SILENCED:
        layer, memory = _place(address, "M")
        _block(lm, layer).mlp.c_proj.weight[memory] = 0.0


def raised(lm: unembed.LanguageModel) -> None:
    """Give some memories a value vector along the row of a token in the unembedding."""
    for address, token in RAISED.items():
        layer, memory = _place(address, "M")
        _block(lm, layer).mlp.c_proj.weight[memory] = 3.0 * _direction(lm, token)


def swapped(lm: unembed.LanguageModel) -> None:
    """Give the heads of some layers other numbers, which changes no output."""
    for layer, shift in SHIFTS.items():
        attention, size = _block(lm, layer).attn, lm.hf.config.n_embd
        step = shift * size // lm.hf.config.n_head
        for part in range(3):  # queries, keys and values lie side by side
            columns = slice(part * size, (part + 1) * size)
            attention.c_attn.weight[:, columns] = attention.c_attn.weight[:, columns].roll(step, 1)
            attention.c_attn.bias[columns] = attention.c_attn.bias[columns].roll(step, 0)
        attention.c_proj.weight.copy_(attention.c_proj.weight.roll(step, 0))


def quiet(lm: unembed.LanguageModel) -> None:
    """Set the output weights of some heads to zero."""
    width = lm.hf.config.n_embd // lm.hf.config.n_head
    for address in QUIET:
        layer, head = _place(address, "H")
        _block(lm, layer).attn.c_proj.weight[head * width : (head + 1) * width] = 0.0


def pushed_by_ffn(lm: unembed.LanguageModel) -> None:
    """Add a token's direction to the bias of an FFN layer."""
    layer, token = PUSHED["ffn"]
    _block(lm, layer).mlp.c_proj.bias += _STRENGTH * _direction(lm, token)


def pushed_by_attention(lm: unembed.LanguageModel) -> None:
    """Add a token's direction to the bias of an attention layer."""
    layer, token = PUSHED["attention"]
    _block(lm, layer).attn.c_proj.bias += _STRENGTH * _direction(lm, token)


PLANTS: dict[str, Callable[[unembed.LanguageModel], None]] = {
    "silenced": silenced, "raised": raised, "swapped": swapped, "quiet": quiet,
    "pushed-by-ffn": pushed_by_ffn, "pushed-by-attention": pushed_by_attention,
}  # fmt: skip


@torch.no_grad()
def make(folder: Path) -> None:
    """Write each changed copy, with its tokenizer, to a folder of its name; a copy that is there stays."""
    for name, change in PLANTS.items():
        if (folder / name / "model.safetensors").is_file():
            continue
        lm = unembed.load("wren")
        assert isinstance(lm.hf, GPT2LMHeadModel) and lm.tokenizer is not None
        change(lm)
        lm.hf.save_pretrained(folder / name)
        lm.tokenizer.save_pretrained(folder / name)
