"""What the token mixers of layers are called in the field."""

from __future__ import annotations

from unembed.models.structure.structure import AttentionSite, Block

_KINDS = {
    "DeltaNet": "gated DeltaNet",
    "DeltaAttention": "Kimi Delta Attention",
    "ShortConv": "short convolution",
    "Mamba2": "Mamba-2",
    "amba": "Mamba",
    "Rwkv": "RWKV",
    "xLSTM": "xLSTM",
    "LightningAttention": "lightning attention",
    "LinearAttention": "linear attention",
    "RecurrentBlock": "RG-LRU",
}
"""Kinds of mixers other than attention, by a part of their class's name; the first that fits."""


def mixer_kind(site: AttentionSite) -> str:
    """The kind of a mixer: "attention", "Mamba", or the name of its class where it is none of the known ones."""
    of_class = type(site.module).__name__
    return "attention" if site.is_attention else next((k for part, k in _KINDS.items() if part in of_class), of_class)


def mixer_name(block: Block) -> str:
    """What a block does before its FFN: "attention", "mixer (Mamba)", "attention and mamba"; empty where nothing."""
    site = block.mixer
    own = "" if site is None else "attention" if site.is_attention else f"mixer ({mixer_kind(site)})"
    return " and ".join(filter(None, [own, *(writer.label for writer in block.early_writers)]))
