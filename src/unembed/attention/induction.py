"""Induction heads from the weights alone, beside what they do; and how much of in-context learning goes with them.

An induction head copies (OV), reads with its keys what a previous-token head wrote (K-composition), and through that
head matches a token with the token before the source (QK).

Source: Elhage et al. 2021, "Induction heads", "How induction heads work"; Olsson et al. 2022 for the in-context score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.copying import Spectra
from unembed.attention.head_scores import HeadScores
from unembed.attention.low_rank import by_modulus
from unembed.attention.sides import check_basis, reading, writing
from unembed.attention.windows import windows_of
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.stream.edits import scale_head
from unembed.stream.run import run

if TYPE_CHECKING:
    from unembed.attention.circuits import Circuits


@torch.no_grad()
def matching_through(
    lm: Decoder, product: Float[Tensor, "d_model d_model"], writer: int, reader: int, basis: str = "raw"
) -> Spectra:
    """Eigenvalues of W_E W_QK_b W_OV_a' W_E' for all heads a of one layer and b of a later one: (head_a, head_b, r).

    Positive where b attends to sources whose earlier token, as a wrote it down, is the token b stands at.

    Args:
        lm: the model.
        product: W_E' W_E, from `copying.product_with_embedding`.
        writer: layer of a.
        reader: layer of b.
        basis: "raw" or "folded".
    """
    check_basis(basis)
    dtype = product.dtype
    W_Q, W_K = (reading(lm, reader, which, basis).to(dtype) for which in "qk")
    W_V, W_O = reading(lm, writer, "v", basis).to(dtype), writing(lm, writer, basis).to(dtype)
    read = torch.einsum("bmk,aom->abko", W_K, W_O)  # what b's keys see of a's output channels
    meet = torch.einsum("amo,bmk->abok", W_V, product @ W_Q)  # a's values of tokens against b's queries of tokens
    return Spectra(by_modulus(torch.linalg.eigvals((read @ meet).double())))


@dataclass(frozen=True)
class Evidence:
    """One head, as a candidate for induction: its weights on one side, what it does on the other."""

    layer: int
    head: int
    copying: float
    """Eigenvalue score of its full OV circuit."""
    partner: tuple[int, int]
    """The earlier head whose output its keys read most, above random."""
    k_composition: float
    """How much, above random circuits of the same shapes."""
    matching: float
    """Eigenvalue score of its QK circuit through the partner."""
    induction: float
    """Attention to the token after the earlier occurrence, on repeated random tokens."""
    partner_previous_token: float
    """The partner's attention to the previous token."""

    @property
    def by_weights(self) -> float:
        """The three signs together: their product where all are positive, else 0."""
        signs = (self.copying, self.k_composition, self.matching)
        return signs[0] * signs[1] * signs[2] if min(signs) > 0 else 0.0


@torch.no_grad()
def evidence(
    circuits: Circuits,
    basis: str = "raw",
    seed: int = 0,
    *,
    n_sequences: int = 50,
    length: int | None = None,
    scores: HeadScores | None = None,
) -> list[Evidence]:
    """Every head above the first layer, the likeliest by its weights first.

    Args:
        circuits: of the model.
        basis: "raw" or "folded".
        seed: of the repeated tokens and the random circuits.
        n_sequences: of repeated tokens.
        length: before the repetition; 64, or what the context holds, when None.
        scores: head scores already measured.

    Raises:
        InvalidInput: the model has one layer, so nothing can compose.
    """
    lm = circuits.lm
    if lm.n_layers < 2:
        raise InvalidInput(
            f"induction in {lm.name}", why="it has one layer, and an induction head reads what an earlier head wrote"
        )
    copying = circuits.copying_scores(basis)
    reads = circuits.composition("k", baseline=True, basis=basis, seed=seed)
    scores = scores or circuits.head_scores(seed, n_sequences=n_sequences, length=length)
    product = circuits.product("qk", basis)
    found = []
    for layer in range(1, lm.n_layers):
        matching = torch.stack([matching_through(lm, product, n, layer, basis).score for n in range(layer)])
        for head in range(lm.n_heads):
            best = int(reads[:layer, :, layer, head].argmax())
            a, h = divmod(best, lm.n_heads)
            found.append(
                Evidence(
                    layer, head, float(copying[layer, head]), (a, h), float(reads[a, h, layer, head]),
                    float(matching[a, h, head]), float(scores.induction[layer, head]),
                    float(scores.previous_token[a, h]),
                )
            )  # fmt: skip
    return sorted(found, key=lambda e: -e.by_weights)


@dataclass(frozen=True, eq=False)
class InContext:
    """Loss by position, and how much lower it is late than early.

    Attributes:
        losses: nats a token at each position, mean over windows.
        early, late: positions compared (means over a few positions around each).
        n_windows: how many.
        ablated: heads whose output was taken away.
    """

    losses: Float[Tensor, " pos"]
    early: int
    late: int
    n_windows: int
    ablated: tuple[tuple[int, int], ...]

    @property
    def score(self) -> float:
        """Loss late minus loss early: negative where the model learns from its context."""
        return self._around(self.late) - self._around(self.early)

    def _around(self, position: int) -> float:
        near = self.losses[max(position - 10, 0) : position + 11]
        return float(near.mean())


@torch.no_grad()
def in_context(
    lm: Decoder,
    corpus: Any = None,
    ablate: Sequence[tuple[int, int]] = (),
    *,
    early: int | None = None,
    late: int | None = None,
    window: int | None = None,
    max_windows: int = 64,
    tokens_per_batch: int = 2048,
) -> InContext:
    """Loss at each position of windows of text, with or without some heads.

    Args:
        lm: the model.
        corpus: anything `unembed.open_corpus` takes; documents need to be at least as long as the window.
        ablate: heads (layer, head) that write nothing.
        early: position; a tenth of the window when None (50 of 512, as in Olsson et al. 2022).
        late: position; near the window's end when None (500 of 512).
        window: tokens; the model's context when None, at most 512.
        max_windows: where to stop.
        tokens_per_batch: tokens in a pass.

    Raises:
        InvalidInput: no document is as long as the window.
    """
    window = window or min(lm.n_ctx or 512, 512)
    late = window - max(2, window // 40) - 1 if late is None else late
    early = window // 10 if early is None else early
    edits = [scale_head(layer, head, 0.0) for layer, head in ablate]
    total, count = torch.zeros(window - 1, dtype=torch.float64), 0
    # No overlap: every window starts without context, or early positions would not be early.
    for batch in windows_of(corpus, window, overlap=0).batches(lm, tokens_per_batch):
        rows = batch.tokens[batch.lengths == window][: max_windows - count]
        if not len(rows):
            continue
        logits = run(lm, rows, edits=edits).logits[:, :-1]
        target = rows[:, 1:].to(logits.device).long()
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2).float(), target, reduction="none")
        total += losses.double().sum(dim=0).cpu()
        count += len(rows)
        if count >= max_windows:
            break
    if count == 0:
        raise InvalidInput(
            f"windows of {window} tokens", why="no document of the corpus is that long", instead="Use a shorter window"
        )
    return InContext(total / count, early, late, count, tuple((int(a), int(b)) for a, b in ablate))


@dataclass(frozen=True, eq=False)
class TextScores:
    """Head scores on real text: attention from positions whose token stood earlier in the window.

    Attributes:
        induction: attention to the tokens after the earlier occurrences, summed over them (layer, head).
        by_chance: what attention spread evenly over the earlier positions would give.
        previous_token: attention to the position before, over all positions.
        n_positions: positions with an earlier occurrence.
    """

    induction: Float[Tensor, "layer head"]
    by_chance: float
    previous_token: Float[Tensor, "layer head"]
    n_positions: int


@torch.no_grad()
def scores_on_text(lm: Decoder, corpus: Any = None, *, window: int | None = None, max_windows: int = 16) -> TextScores:
    """Where heads look on text when the token they stand at stood earlier: an induction head at what followed it.

    Memory: the patterns of one window.
    """
    window = window or min(lm.n_ctx or 256, 256)
    induction = torch.zeros(lm.n_layers, lm.n_heads, dtype=torch.float64)
    previous = torch.zeros_like(induction)
    chance, positions, windows = 0.0, 0, 0
    for segment in windows_of(corpus, window, overlap=0).segments(lm):
        if len(segment) < 8:
            continue
        tokens = segment.tokens
        same = (tokens[:, None] == tokens).tril(-1)  # (dst, earlier occurrence)
        after = torch.zeros_like(same)
        after[:, 1:] = same[:, :-1]  # (dst, what followed it)
        has = same.any(dim=1)
        pattern = run(lm, tokens[None], "pattern", logits=False)["pattern"][:, 0].cpu()
        induction += (pattern * after).sum(dim=-1)[:, :, has].double().sum(dim=-1)
        previous += pattern.diagonal(-1, dim1=-2, dim2=-1).double().mean(dim=-1)
        chance += float((after.sum(dim=1) / torch.arange(1, len(tokens) + 1))[has].sum())
        positions += int(has.sum())
        windows += 1
        if windows >= max_windows:
            break
    if positions == 0:
        raise InvalidInput("the corpus", why="no token of it occurs twice in a window")
    return TextScores(induction / positions, chance / positions, previous / windows, positions)


@dataclass(frozen=True, eq=False)
class Look:
    """One position of a prompt seen by one head: where it attends, and what attending there does to a logit.

    Attributes:
        attention: to each earlier position, and itself.
        effect: what each source adds to the token's logit, above the mean over all tokens: attention included.
        token: the token whose logit is meant.
    """

    attention: Float[Tensor, " src"]
    effect: Float[Tensor, " src"]
    token: int


@torch.no_grad()
def look(circuits: Circuits, tokens: Tensor | str, layer: int, head: int, position: int, token: str | int) -> Look:
    """The two pictures of one head at one position: attention by source, and its effect on a token's logit by source.

    Patterns and norm scales are those of the run; biases are left out.

    Raises:
        OutOfRange: there is no such head or position.
    """
    from unembed.attention.frozen import frozen_run

    lm = circuits.lm
    layer, head, target = lm.layer(layer), lm.head(head), lm.single_token(token)
    frozen = frozen_run(lm, tokens)
    one = frozen.layers[layer]
    position %= frozen.run.tokens.shape[1]
    weights = one.pattern[0, head, position]
    values = one.values(frozen.run.at("resid_pre", layer))[0, head]  # (src, d_head)
    written = (weights[:, None].to(values.dtype) * values) @ lm.weights.W_O[layer][head].to(values.dtype)
    if one.branch.norm is not None and one.branch.scale is not None:
        written = one.branch.norm.frozen(written, one.branch.scale[0, position][None]).to(values.dtype)
    written = written * one.branch.multiplier
    norm = lm.structure.final_norm
    read = written if norm is None else norm.frozen(written, frozen.final[0, position][None]).to(values.dtype)
    W_U = lm.weights.W_U.to(values.dtype)
    effect = read @ (W_U[:, target] - W_U.mean(dim=1)) * lm.structure.logit_scale
    return Look(weights[: position + 1], effect[: position + 1], target)
