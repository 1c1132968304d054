"""Measure in-context learning on text: the loss by position, also without some heads, and attention to repeated tokens.

Source: Elhage et al. 2021, "Induction heads"; Olsson et al. 2022 for the in-context score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.analyses import Cost
from unembed.attention.weights.by_layer import by_layer, head_columns, places_of
from unembed.attention.weights.folded_weights import require_heads
from unembed.attention.weights.paper import NOT_IN_PAPER, SAMPLE, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.document.exhibits import drawing, exhibit
from unembed.document.intervals import mean_of
from unembed.document.model import Answer, Section
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import head_name
from unembed.options import Corpus as CorpusName
from unembed.options import Option, Without
from unembed.results import Displayed, Provenance, Table, format_number
from unembed.stream.decomposition import attention_branch
from unembed.stream.interventions import scale_head
from unembed.stream.run import run


@dataclass(frozen=True, eq=False, repr=False)
class InContext(Displayed):
    """The loss at each position of windows of text, and how much lower it is late in the window than early.

    Attributes:
        by_window: loss in nats per token, at each position of each window.
        early, late: the two positions whose losses are compared; each loss is averaged over the ten positions before,
            the position itself, and the ten after.
        ablated: heads whose output was set to zero.
        repeated: True where the next token occurred earlier in the window.
    """

    by_window: Float[Tensor, "window pos"]
    early: int
    late: int
    ablated: tuple[tuple[int, int], ...]
    provenance: Provenance
    repeated: Bool[Tensor, "window pos"]

    def to_table(self) -> Table:
        """The mean loss over windows at each position, in nats."""
        columns = {"position": list(range(self.by_window.shape[1])), "loss": self.losses.tolist()}
        return Table(f"Loss by position, mean over {self.n_windows} windows", columns, self.provenance)

    @property
    def window(self) -> int:
        """The number of tokens in a window."""
        return self.by_window.shape[1] + 1

    @property
    def n_windows(self) -> int:
        """The number of windows that were read."""
        return len(self.by_window)

    @property
    def losses(self) -> Float[Tensor, " pos"]:
        """The mean loss over windows, in nats per token."""
        return self.by_window.mean(dim=0)

    @property
    def differences(self) -> Float[Tensor, " window"]:
        """Return the late loss minus the early loss of each window."""
        return self.around(self.late) - self.around(self.early)

    def losses_of(self, repeated: bool) -> Float[Tensor, " window"]:
        """Return each window's mean loss over the next tokens that occurred earlier in it, or over those that did not.

        Args:
            repeated: True for the mean over next tokens that occurred earlier, False for the others.
        """
        return torch.where(self.repeated == repeated, self.by_window, torch.nan).nanmean(dim=1)

    @property
    def score(self) -> float:
        """The late loss minus the early loss; negative where the model predicts better with more context."""
        return float(self.differences.mean())

    def around(self, position: int) -> Float[Tensor, " window"]:
        """Return each window's mean loss at a position, the ten before it and the ten after it."""
        return self.by_window[:, max(position - 10, 0) : position + 11].mean(dim=1)


@torch.no_grad()
def in_context(
    lm: Decoder,
    corpus: CorpusSource = None,
    ablate: Sequence[tuple[int, int]] = (),
    *,
    early: int | None = None,
    late: int | None = None,
    window: int | None = None,
    max_windows: int = 64,
    tokens_per_batch: int = 1024,
) -> InContext:
    """Measure the loss at each position of windows of text, with or without some heads.

    Args:
        corpus: anything `unembed.open_corpus` takes; documents need to be at least as long as the window.
        ablate: heads (layer, head) whose output is set to zero.
        early: the early position; when None, a tenth of the window (50 of 512 in Olsson et al. 2022).
        late: the late position; when None, near the window's end (500 of 512).
        window: length in tokens; the model's context when None, at most 512.
        max_windows: largest number of windows that are read.

    Memory: the logits of a batch, and a second copy of the logits of one window.

    Raises:
        InvalidInput: no document is as long as the window.
    """
    window = window or min(lm.n_ctx or 512, 512)
    late = window - max(2, window // 40) - 1 if late is None else late
    early = window // 10 if early is None else early
    edits = [scale_head(layer, head, 0.0) for layer, head in ablate]
    read: list[Tensor] = []
    repeated: list[Tensor] = []
    # Windows need not overlap: the loss at their first positions, which have little context, is measured too.
    text = windows_of(corpus, window, overlap=0)
    for batch in text.batches(lm, tokens_per_batch):
        rows = batch.tokens[batch.lengths == window][: max_windows - sum(map(len, read))]
        if not len(rows):
            continue
        logits = run(lm, rows, edits=edits).logits
        for row, tokens in zip(logits, rows.to(logits.device).long(), strict=True):
            losses = torch.nn.functional.cross_entropy(row[:-1].float(), tokens[1:], reduction="none")
            read.append(losses.double().cpu()[None])
        repeated.append(occurred_earlier(rows.long()))
        if sum(map(len, read)) >= max_windows:
            break
    if not read:
        raise InvalidInput(
            f"windows of {window} tokens", why="no document of the corpus is that long", instead="Use a shorter window"
        )
    ablated = tuple((int(a), int(b)) for a, b in ablate)
    provenance = lm.provenance(corpus=text.fingerprint, notes={"ablated": [head_name(n, h) for n, h in ablated]})
    return InContext(torch.cat(read), early, late, ablated, provenance, torch.cat(repeated))


def occurred_earlier(tokens: Int[Tensor, "window pos"]) -> Bool[Tensor, "window next"]:
    """Return, for each token of a window except the first, whether it occurs earlier in the window."""
    return torch.stack([(row[:, None] == row).tril(-1).any(dim=1)[1:] for row in tokens.cpu()])


@torch.no_grad()
def head_output_lengths(
    lm: Decoder, corpus: CorpusSource = None, *, window: int | None = None, max_windows: int = 8
) -> Float[Tensor, "layer head"]:
    """Return the mean norm of the vectors that each head adds to the stream on text; NaN in layers without heads.

    Raises:
        Unsupported: no attention layer has an output projection that can be split by head.
    """
    require_heads(lm, "the lengths of what heads add")
    layers = [n for n in lm.attention_layers if lm.structure.blocks[n].attention.out_projection is not None]
    if not layers:
        # No layer has a usable projection, so reading this property raises an error that says why.
        _ = lm.structure.blocks[lm.attention_layers[0]].attention.out_proj
    total = {n: torch.zeros(lm.structure.blocks[n].attention.n_heads, dtype=torch.float64) for n in layers}
    positions = 0
    for n, segment in enumerate(windows_of(corpus, window or min(lm.n_ctx or 256, 256), overlap=0).segments(lm)):
        if n == max_windows:
            break
        captured = run(lm, segment.tokens[None], "z", logits=False, layers=layers)
        for layer in layers:
            z = captured.at("z", layer)[0]  # (pos, head, d_head)
            branch = attention_branch(lm, layer, z)
            for head, W_O in enumerate(lm.weights.W_O[layer]):
                total[layer][head] += float(branch.written(z[:, head] @ W_O).float().norm(dim=-1).sum())
        positions += len(segment)
    return by_layer(lm.n_layers, {n: lengths / max(positions, 1) for n, lengths in total.items()})


def matched_heads(lengths: Float[Tensor, "layer head"], heads: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Choose for each head a control: another head of its layer whose output has a similar length.

    Compared with a control that writes little, any ablation would look large. The list is shorter than the given heads
    if their layers do not have enough other heads.
    """
    chosen: list[tuple[int, int]] = []
    for layer, head in heads:
        known = (~lengths[layer].isnan()).nonzero()[:, 0].tolist()
        free = [h for h in known if (layer, h) not in heads and (layer, h) not in chosen]
        if free:
            chosen.append((layer, min(free, key=lambda h: abs(float(lengths[layer, h] - lengths[layer, head])))))
    return chosen


@dataclass(frozen=True, eq=False, repr=False)
class TextScores(Displayed):
    """Head scores on text, measured at positions whose token occurred earlier in the window.

    Scores are NaN where a layer has no attention.

    Attributes:
        induction: total attention to the tokens that followed the earlier occurrences.
        by_chance: the induction score that a head would have if it attended equally to all earlier positions.
        previous_token: mean attention to the position before, over all positions.
        n_positions: number of positions whose token occurred earlier.
    """

    induction: Float[Tensor, "layer head"]
    by_chance: float
    previous_token: Float[Tensor, "layer head"]
    n_positions: int
    provenance: Provenance

    def to_table(self) -> Table:
        """One row for each attention head."""
        numbers = {"induction": self.induction, "previous_token": self.previous_token}
        columns = head_columns(places_of(self.induction), **numbers)
        return Table(
            f"Attention on text; induction by chance {format_number(self.by_chance)}", columns, self.provenance
        )


@torch.no_grad()
def scores_on_text(
    lm: Decoder, corpus: CorpusSource = None, *, window: int | None = None, max_windows: int = 16
) -> TextScores:
    """Measure where heads attend at positions whose token occurred earlier in the window.

    An induction head attends to the token that followed the earlier occurrence.

    Memory: the attention patterns of one window.
    """
    require_heads(lm, "attention on text")
    window = window or min(lm.n_ctx or 256, 256)
    induction: dict[int, Tensor] = {}
    previous: dict[int, Tensor] = {}
    chance, positions, windows = 0.0, 0, 0
    text = windows_of(corpus, window, overlap=0)
    for segment in text.segments(lm):
        if len(segment) < 8:
            continue
        tokens = segment.tokens
        # (dst, src): whether src is an earlier occurrence of dst's token
        same = (tokens[:, None] == tokens).tril(-1)
        # (dst, src): whether src follows an earlier occurrence of dst's token
        after = torch.zeros_like(same)
        after[:, 1:] = same[:, :-1]
        has = same.any(dim=1)
        captured = run(lm, tokens[None], "pattern", logits=False, layers=lm.attention_layers)
        for layer in lm.attention_layers:
            pattern = captured.at("pattern", layer)[0].cpu()
            by_head = (pattern * after).sum(dim=-1)[:, has].double().sum(dim=-1)
            before = pattern.diagonal(-1, dim1=-2, dim2=-1).double().mean(dim=-1)
            induction[layer] = induction.get(layer, 0) + by_head
            previous[layer] = previous.get(layer, 0) + before
        chance += float((after.sum(dim=1) / torch.arange(1, len(tokens) + 1))[has].sum())
        positions += int(has.sum())
        windows += 1
        if windows >= max_windows:
            break
    if positions == 0:
        raise InvalidInput("the corpus", why="no token occurs twice within a window")
    provenance = lm.provenance(corpus=text.fingerprint, notes={"windows": windows})
    per_position = by_layer(lm.n_layers, {n: total / positions for n, total in induction.items()})
    per_window = by_layer(lm.n_layers, {n: total / windows for n, total in previous.items()})
    return TextScores(per_position, chance / positions, per_window, positions, provenance)


def in_context_section(
    whole: InContext, without: InContext | None, control: InContext | None, provenance: Provenance
) -> Section:
    """Show the loss by position: of the whole model, without some heads, and without control heads."""
    steps = range(0, len(whole.losses) - 7, 8)

    def smoothed(found: InContext) -> list[float]:
        return [float(found.losses[i : i + 8].mean()) for i in steps]

    columns: dict[str, list[Any]] = {"position": list(steps), "loss": smoothed(whole)}
    text = (
        f"Mean loss over {whole.n_windows} windows of text, each read from its start; a row averages 8 positions. "
        f"The score is the loss at position {whole.late} minus that at position {whole.early}, each averaged with the "
        "ten positions before it and the ten after it. Intervals are 95 % confidence intervals over windows."
    )
    labels = ["the model"]
    for name, found in (("without", without), ("without_others", control)):
        if found is not None:
            columns[f"loss_{name}"] = smoothed(found)
            labels.append(f"without {', '.join(head_name(a, h) for a, h in found.ablated)}")
    runs = [whole, *(found for found in (without, control) if found is not None)]
    scores = {"heads": labels, "score": [mean_of(found.differences.numpy()) for found in runs]}
    exhibits = (
        exhibit("in_context_scores", "Late loss minus early loss, nats per token", scores, provenance),
        exhibit("in_context", "Loss by position", columns, provenance, folded=True),
    )
    y, shown = dict(zip(list(columns)[1:], labels, strict=True)), {"y_label": "nats a token", "published": NOT_IN_PAPER}
    figure = drawing("line", "in_context", "Loss by position", "position", y, **shown)
    return Section("In-context learning", (text,), exhibits, (figure,))


def in_context_answer(
    circuits: HeadMatrices,
    *,
    without: Without = (),
    corpus: CorpusName = None,
    early: Annotated[
        int | None,
        Option(
            "The early position, whose loss is compared with that of the late one; default: a tenth of the window's "
            "length.",
            low=0,
        ),
    ] = None,
    late: Annotated[
        int | None,
        Option(
            "The late position, whose loss is compared with that of the early one; default: near the window's end.",
            low=0,
        ),
    ] = None,
    window: Annotated[int | None, Option("Number of tokens in a window.", low=32)] = None,
    max_windows: Annotated[
        int, Option("Largest number of windows of text to read.", low=1, aliases=("--windows",))
    ] = 64,
) -> Answer:
    """Measure how much the loss falls with position, for the whole model and without some heads (Olsson et al. 2022).

    The score is the loss at a late position minus the loss at an early one. Without `--window`, a window is as long as
    the model's context, but at most 512 tokens.

    Caution: A later token can be easier for other reasons than its context; compare with --without a head.
    """
    lm = circuits.lm
    measured = partial(in_context, lm, corpus, early=early, late=late, window=window, max_windows=max_windows)
    whole, ablated = measured(), measured(without) if without else None
    provenance = lm.provenance(corpus=corpus or SAMPLE)
    made = in_context_section(whole, ablated, None, provenance)
    return Answer(f"In-context learning of {lm.name}", (made,), provenance)


ANALYSIS = of_circuits("in-context", in_context_answer, "in-context --without L1H0,L1H6", Cost.MINUTES)
