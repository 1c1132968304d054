"""The networks for training: plain modules that compile well; their weights are copied into the shipped models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a network; `d_mlp` 0 means attention only, without norms."""

    n_layers: int
    d_model: int
    n_heads: int
    d_head: int
    d_mlp: int
    d_vocab: int
    context: int
    position_size: float = 0.7  # of the sinusoids that positions of an attention-only network start from
    position_base: float = 10_000.0  # about the longest wavelength of these, in units of 2 pi tokens


class Attention(nn.Module):
    """Causal attention with separate matrices, so that each is orthogonalised on its own."""

    def __init__(self, shape: Shape, *, bias: bool) -> None:
        """Query, key, value and output maps of one layer."""
        super().__init__()
        self.n_heads = shape.n_heads
        inner = shape.n_heads * shape.d_head
        self.q, self.k, self.v = (nn.Linear(shape.d_model, inner, bias=bias) for _ in range(3))
        self.o = nn.Linear(inner, shape.d_model, bias=bias)

    def forward(self, reads: Tensor, values: Tensor) -> Tensor:
        """The heads' output; queries and keys read `reads`, values read `values`."""
        batch, pos, _ = reads.shape

        def split(x: Tensor) -> Tensor:
            return x.view(batch, pos, self.n_heads, -1).transpose(1, 2)

        z = causal_attention(split(self.q(reads)), split(self.k(reads)), split(self.v(values)))
        return self.o(z.transpose(1, 2).reshape(batch, pos, -1))


def causal_attention(query: Tensor, key: Tensor, value: Tensor, block: int = 128) -> Tensor:
    """Softmax attention of each position to itself and those before, a block of queries at a time.

    Plain matrix products: on a CPU with short contexts and narrow heads the backward pass of the fused kernel takes
    three times as long.
    """
    n_pos, scale = query.shape[-2], query.shape[-1] ** -0.5
    parts = []
    for start in range(0, n_pos, block):
        stop = min(start + block, n_pos)
        scores = (query[..., start:stop, :] @ key[..., :stop, :].mT).float() * scale
        ahead = torch.arange(stop) > torch.arange(start, stop)[:, None]
        pattern = scores.masked_fill(ahead, -1e9).softmax(-1).to(value.dtype)
        parts.append(pattern @ value[..., :stop, :])
    return torch.cat(parts, dim=-2)


class Block(nn.Module):
    """Attention and feed-forward memories as in GPT-2, with ReLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.d_model)
        self.attention = Attention(shape, bias=True)
        self.ln_2 = nn.LayerNorm(shape.d_model)
        self.w_in = nn.Linear(shape.d_model, shape.d_mlp)
        self.w_out = nn.Linear(shape.d_mlp, shape.d_model)

    def forward(self, x: Tensor, firing: list[Tensor] | None = None) -> Tensor:
        """The stream after this layer; its `firing` memories are appended to a list that is given."""
        normed = self.ln_1(x)
        x = x + self.attention(normed, normed)
        coefficients = F.relu(self.w_in(self.ln_2(x)))
        if firing is not None:
            firing.append(firing_of(coefficients.float()))
        return x + self.w_out(coefficients)


def firing_of(coefficients: Tensor) -> Tensor:
    """How many memories (last axis) fire at a position on average, in a form that has a gradient.

    Each coefficient counts in units of its memory's mean while it fires, so neither the scale of coefficients nor one
    memory that always fires lowers the number.
    """
    flat = coefficients.flatten(0, -2)
    mean = flat.sum(0) / (flat > 0).sum(0).clamp(min=1)
    return (flat / mean.detach().clamp(min=1e-6)).sum(-1).mean()


class Wren(nn.Module):
    """GPT-2 with ReLU memories and tied embeddings."""

    def __init__(self, shape: Shape) -> None:
        """Weights drawn from the generator's state; weights that write to the stream start at zero."""
        super().__init__()
        self.shape = shape
        self.wte = nn.Embedding(shape.d_vocab, shape.d_model)
        self.wpe = nn.Embedding(shape.context, shape.d_model)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.ln_f = nn.LayerNorm(shape.d_model)
        _initialise(self)

    @property
    def unembedding(self) -> Tensor:
        """The matrix (d_vocab, d_model) that turns the last stream into logits."""
        return self.wte.weight

    @property
    def layers(self) -> list[Block]:
        """The blocks in order."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def final_stream(self, ids: Tensor, firing: list[Tensor] | None = None) -> Tensor:
        """What the unembedding reads; if a list is given, each layer's `firing_of` is appended to it."""
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, firing)
        return self.ln_f(x)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, pos, d_vocab)."""
        return F.linear(self.final_stream(ids), self.unembedding)


class AttentionOnly(nn.Module):
    """Attention layers without norms; positions are added to what queries and keys read, never to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.wte = nn.Embedding(shape.d_vocab, shape.d_model)
        self.wpe = nn.Embedding(shape.context, shape.d_model)
        self.layers = nn.ModuleList(Attention(shape, bias=False) for _ in range(shape.n_layers))
        self.lm_head = nn.Linear(shape.d_model, shape.d_vocab, bias=False)
        _initialise(self)
        nn.init.normal_(self.wte.weight, std=0.5)
        with torch.no_grad():
            self.wpe.weight.copy_(shape.position_size * sinusoids(shape.context, shape.d_model, shape.position_base))

    @property
    def unembedding(self) -> Tensor:
        """The matrix (d_vocab, d_model) that turns the last stream into logits."""
        return self.lm_head.weight

    def final_stream(self, ids: Tensor, firing: list[Tensor] | None = None) -> Tensor:
        """What the unembedding reads; there are no memories that could be added to the list."""
        x = self.wte(ids)
        positions = self.wpe.weight[: ids.shape[1]]
        for layer in self.layers:
            x = x + layer(x + positions, x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, pos, d_vocab)."""
        return F.linear(self.final_stream(ids), self.unembedding)


def sinusoids(n_pos: int, d_model: int, base: float = 10_000.0) -> Tensor:
    """Sines and cosines of the position: a shift by one is then a rotation, one matrix for all positions.

    Training starts from them. From noise, a head that attends one token back must be learned for every pair of
    neighbours separately, and within 9 million tokens none was (nor any induction head, which needs it).
    Source: Vaswani et al. 2017, section 3.5.
    """
    frequency = base ** (-torch.arange(0, d_model, 2) / d_model)
    angle = torch.arange(n_pos)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def build(shape: Shape) -> Wren | AttentionOnly:
    """A network of this shape with random weights."""
    return Wren(shape) if shape.d_mlp else AttentionOnly(shape)


def _initialise(network: nn.Module) -> None:
    for name, parameter in network.named_parameters():
        if name.endswith(".bias") or ".o." in name or "w_out" in name:
            nn.init.zeros_(parameter)
        elif parameter.ndim == 2:
            std = 0.02 if name in ("wte.weight", "wpe.weight", "lm_head.weight") else parameter.shape[1] ** -0.5
            nn.init.normal_(parameter, std=std)
