"""Name the token mixers of layers (attention, Mamba, ...) in the usual words."""

from __future__ import annotations

from collections.abc import Sequence

from unembed.models.structure.structure import AttentionSite, Block

_KINDS = {
    "DeltaNet": "gated DeltaNet",
    "DeltaAttention": "Kimi Delta Attention",
    "ShortConv": "short convolution",
    **dict.fromkeys(("Mamba2", "Bamba", "GraniteMoeHybrid", "Zamba2"), "Mamba-2"),
    "amba": "Mamba",
    "Rwkv": "RWKV",
    "xLSTM": "xLSTM",
    "LightningAttention": "lightning attention",
    "LinearAttention": "linear attention",
    "RecurrentBlock": "RG-LRU",
}
"""The kinds of mixers other than attention: the first entry whose key is a part of the class name applies."""


def mixer_kind(site: AttentionSite) -> str:
    """Return the kind of a token mixer, such as "attention" or "Mamba"; its class name if the kind is unknown."""
    of_class = type(site.module).__name__
    return "attention" if site.is_attention else next((k for part, k in _KINDS.items() if part in of_class), of_class)


def site_name(site: AttentionSite) -> str:
    """Return "attention", or another token mixer in the form "mixer (Mamba)"."""
    return "attention" if site.is_attention else f"mixer ({mixer_kind(site)})"


def mixer_name(block: Block) -> str:
    """Return what comes before a block's FFN, such as "mixer (Mamba)" or "attention and mamba"; "" if nothing does."""
    own = [] if block.mixer is None else [site_name(block.mixer)]
    return " and ".join([*own, *(writer.label for writer in block.early_writers)])


def heads_in_words(blocks: Sequence[Block]) -> str:
    """Return the number of heads in a layer as text, such as "4 heads" or "4 attention heads, 8 Mamba-2 heads"."""
    by_kind: dict[str, set[int]] = {}
    for site in (block.mixer for block in blocks if block.mixer is not None):
        by_kind.setdefault(mixer_kind(site), set())
        if site.n_heads:
            by_kind[mixer_kind(site)].add(site.n_heads)
    parts = []
    for kind, numbers in sorted(by_kind.items(), key=lambda entry: entry[0] != "attention"):
        if numbers:
            several = f" to {max(numbers)}" if len(numbers) > 1 else ""
            parts.append(f"{min(numbers)}{several}{'' if len(by_kind) == 1 else f' {kind}'} heads")
    if parts:
        return ", ".join(parts)
    # JetMoE and Inkling have attention heads, but the outputs of single heads cannot be separated.
    return "heads with one joint output" if "attention" in by_kind else "no heads"
