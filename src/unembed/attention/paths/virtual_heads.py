"""Describe, with the same methods, a single head or two heads in sequence that act as one (a virtual head).

A virtual head has its own attention pattern and OV circuit.

Source: Elhage et al. 2021, "Virtual attention heads": A_b A_a and W_OV_a W_OV_b.
"""

from __future__ import annotations

from functools import reduce
from operator import matmul
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.paths.linearized import frozen_run
from unembed.attention.weights.copying import OwnToken, Spectra, own_token_of
from unembed.attention.weights.low_rank import LowRank
from unembed.attention.weights.one_head import shown_entries
from unembed.attention.weights.paper import of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices, full_ov
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Section
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis, head_name
from unembed.options import CircuitBasis, Option, Position, Seed, Top
from unembed.options import Head as HeadName
from unembed.results import Provenance, format_percent, format_signed
from unembed.stream.run import Tokens, position_of, run
from unembed.validation import as_pair


class Head:
    """One head, or two heads of which the later one reads what the earlier one wrote."""

    def __init__(self, circuits: HeadMatrices, path: tuple[tuple[int, int], ...]) -> None:
        self.circuits = circuits
        self.path = path

    @property
    def label(self) -> str:
        """The name, such as "L1H3", or "L0H2 > L1H3" for two heads."""
        return " > ".join(head_name(layer, head) for layer, head in self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label} of {self.circuits.lm.name})"

    def ov(self, basis: HeadBasis = "raw") -> LowRank:
        """Return W_OV (d_model, d_model), from an attended source to the output; W_OV_a W_OV_b for two heads."""
        return reduce(matmul, (self.circuits.ov(*head, basis) for head in self.path))

    @torch.no_grad()
    def pattern(self, tokens: Tokens) -> Float[Tensor, "batch dst src"]:
        """Return the attention pattern on a prompt; for two heads it is the product A_b A_a."""
        layers = [layer for layer, _ in self.path]
        patterns = run(self.circuits.lm, tokens, "pattern", logits=False, layers=layers)["pattern"]
        return reduce(matmul, (one[:, head] for one, (_, head) in zip(patterns.flip(0), self.path[::-1], strict=True)))

    def ov_full(
        self,
        basis: HeadBasis = "raw",
        *,
        sources: Tensor | None = None,
        outputs: Tensor | None = None,
        centre: bool = True,
    ) -> LowRank:
        """Return each source token's effect on every output logit (d_vocab, d_vocab), or some rows and columns."""
        return full_ov(self.circuits.lm, self.ov(basis), basis, sources, outputs, centre)

    def copying(self, basis: HeadBasis = "raw", *, centre: bool = True) -> Spectra:
        """Return the eigenvalues of the full OV circuit, with their score and positive fraction."""
        ov = self.ov(basis)
        product = self.circuits.product("ov", basis, centre)
        found = LowRank(product @ ov.left.to(product.dtype), ov.right.to(product.dtype)).eigenvalues()
        return Spectra(found, self.circuits.lm.provenance(basis=basis, notes={"head": self.label}), ())

    def own_token(self, basis: HeadBasis = "raw", *, top: int = 10, n_tokens: int = 512, seed: int = 0) -> OwnToken:
        """Measure how the full OV circuit changes the logit of the token that is attended to; see `own_token_of`."""
        provenance = self.circuits.lm.provenance(basis=basis, seed=seed, notes={"head": self.label})
        return own_token_of(self.ov_full(basis), provenance, top, n_tokens, seed)

    @torch.no_grad()
    def effect(self, tokens: Tokens, position: int = -1) -> Float[Tensor, " d_vocab"]:
        """Return what the head adds to every logit at a position, given only the part of its input that passed no head.

        Raises:
            InvalidInput: there are several prompts.
            OutOfRange: there is no such position.
        """
        frozen = frozen_run(self.circuits.lm, tokens)
        if frozen.run.tokens.shape[0] != 1:
            raise InvalidInput(f"{frozen.run.tokens.shape[0]} prompts", why="an effect is computed for one prompt")
        position = position_of(frozen.run, position)
        x = frozen.constants_before(self.path[0][0])
        for layer, head in self.path:
            x = frozen.layers[layer].heads(x)[:, head]
        read = frozen.read(x)[0, position]
        return read @ self.circuits.lm.weights.W_U.to(read.dtype)


def head(circuits: HeadMatrices, layer: int, head: int) -> Head:
    """Return one head of the model as a `Head`."""
    return Head(circuits, (circuits.resolve_head(layer, head, "raw"),))


def virtual_head(circuits: HeadMatrices, first: tuple[int, int], second: tuple[int, int]) -> Head:
    """Return two heads, each (layer, head), as one `Head` in which the second reads the output of the first.

    Raises:
        InvalidInput: the second head's layer is not after the first's.
    """
    a, b = (circuits.resolve_head(*as_pair("head", one), "raw") for one in (first, second))
    if a[0] >= b[0]:
        raise InvalidInput(
            f"virtual head of {head_name(a[0], a[1])} and {head_name(b[0], b[1])}",
            why="the second head must be in a later layer to read the first head's output",
        )
    return Head(circuits, (a, b))


def virtual_head_section(
    circuits: HeadMatrices, head: Head, top: int, basis: HeadBasis, seed: int, provenance: Provenance
) -> Section:
    """Describe two heads that act as one: what they copy, and the largest entries of their OV circuit."""
    spectrum, own = head.copying(basis), head.own_token(basis, seed=seed)
    entries = shown_entries(circuits.lm, head.ov_full(basis), top)
    largest = {
        "source_token": circuits.lm.token_strings(entries.rows),
        "output_token": circuits.lm.token_strings(entries.columns),
        "score": entries.values.tolist(),
    }
    values = {"real": spectrum.eigenvalues.real.tolist(), "imaginary": spectrum.eigenvalues.imag.tolist()}
    text = (
        f"The later head reads what the earlier one wrote, so the two move information as one head would. Copying "
        f"score {format_signed(float(spectrum.score))}, {format_percent(float(spectrum.positive_fraction), 0)} of "
        f"eigenvalues positive. A token's own logit lies {format_signed(own.mean_z)} standard deviations from its "
        f"row's mean, and in the row's top {own.k} for {format_percent(own.top_share, 1)} of {own.n_tokens:,} tokens.",
    )
    exhibits = (
        exhibit("virtual_head", f"Largest entries of the OV circuit of {head.label}", largest, provenance),
        exhibit("virtual_eigenvalues", f"Eigenvalues of {head.label}", values, provenance, folded=True),
    )
    return Section("Virtual head", text, exhibits)


def moved_section(lm: Decoder, head: Head, prompt: Tokens, position: int, top: int, provenance: Provenance) -> Section:
    """Show which sources a virtual head reads at a position of a prompt, and which logits it changes most."""
    seen = run(lm, prompt, logits=False)
    position = position_of(seen, position)
    tokens, pattern = seen.tokens[0], head.pattern(seen.tokens)[0]
    effect, n = head.effect(seen.tokens, position), position + 1
    sources = {
        "position": range(n),
        "token": lm.token_strings(tokens[:n]),
        "attention": pattern[position, :n].tolist(),
    }
    centred = effect.double() - effect.double().mean()
    best = centred.abs().masked_fill(lm.unlisted.to(centred.device), -torch.inf).topk(min(top, len(centred))).indices
    logits = {"token": lm.token_strings(best), "effect": centred[best].tolist()}
    moved, changed = f"From where it moves information to position {position}", "The logits it changes most"
    exhibits = (
        exhibit("virtual_pattern", moved, sources, provenance, percent=("attention",)),
        exhibit("virtual_effect", f"{changed}, above the mean of all tokens", logits, provenance),
    )
    figure = drawing("text", "virtual_pattern", "Attention", "token", "attention", percent=True)
    return Section("On a prompt", (), exhibits, (figure,))


def virtual_head_answer(
    circuits: HeadMatrices,
    first: HeadName,
    second: HeadName,
    *,
    prompt: Annotated[str | None, Option("The text to run the model on.")] = None,
    position: Position = -1,
    basis: CircuitBasis = None,
    top: Top = 20,
    seed: Seed = 0,
) -> Answer:
    """Show two heads that act as one (a virtual head): what they copy, and what they move on a prompt.

    Caution: The weights show what the two heads could move. With --prompt, the tables of the prompt show what they
    move.
    """
    lm, chosen = circuits.lm, circuits.known_basis(basis)
    pair = virtual_head(circuits, first, second)
    provenance = lm.provenance(basis=chosen, seed=seed)
    made = [virtual_head_section(circuits, pair, top, chosen, seed, provenance)]
    if prompt is not None:
        made.append(moved_section(lm, pair, prompt, position, top, provenance))
    return Answer(f"{pair.label} of {lm.name}", tuple(made), provenance)


ANALYSIS = of_circuits("virtual-head", virtual_head_answer, "virtual-head L0H0 L1H0")
