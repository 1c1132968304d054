"""Score what each head attends to on repeated random tokens: the previous token, an earlier copy, or what followed it.

Attention patterns are reduced to scores layer by layer while the model runs; none is stored.

Source: Elhage et al. 2021, "Induction heads"; Olsson et al. 2022, prefix-matching and copying scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.behaviour.repeated_pattern import Length, Sequences, repeated_tokens
from unembed.attention.weights.by_layer import by_layer, head_columns, number_or_none, places_of
from unembed.attention.weights.copying import copying, matching
from unembed.attention.weights.folded_weights import require_heads
from unembed.attention.weights.missing_circuits import not_available
from unembed.attention.weights.paper import COPYING_HEADS, NO_NUMBERS, NOT_IN_PAPER, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Screen, Section
from unembed.errors import InvalidInput, Unsupported
from unembed.lens import final_scale
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis, head_name
from unembed.options import CircuitBasis, Seed, ShowAll
from unembed.results import Displayed, Provenance, Table, format_cell, format_number, format_setting
from unembed.stream.decomposition import attention_branch, directions, mixing_points
from unembed.stream.hooks import Callback, Stop, attach_hooks, memory_guard
from unembed.stream.run import forward_arguments, prepare
from unembed.validation import positive_int

KINDS = ("previous_token", "duplicate_token", "induction", "copying", "resting", "current_token")
ROLE = 0.3
"""A head gets a role, such as induction, if its mean attention of that kind is at least this."""
_ROLES = {"induction": "induction", "previous_token": "previous token", "duplicate_token": "duplicate token"}
"""The kinds of attention that count as a role, with the names of the roles.

Attention to the first position is not among them, since most heads have it.
"""
_TOKENS = 2048
"""Number of tokens in one forward pass."""


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores(Displayed):
    """For every head, scores of several kinds, averaged over sequences.

    Attention scores are probabilities. `copying` is in logits: the head's direct effect on the logit of the token it
    attends to most, above its mean effect on all tokens. Scores are NaN where a layer has no attention. `copying` is
    also NaN in the layers that `effects_missing` lists.
    """

    previous_token: Float[Tensor, "layer head"]
    """Mean attention to the position before."""
    duplicate_token: Float[Tensor, "layer head"]
    """Mean attention, in the second half of a sequence, to the earlier occurrence of the same token."""
    induction: Float[Tensor, "layer head"]
    """Mean attention, in the second half of a sequence, to the token after the earlier occurrence (prefix matching)."""
    copying: Float[Tensor, "layer head"]
    resting: Float[Tensor, "layer head"]
    """Mean attention to the first position."""
    current_token: Float[Tensor, "layer head"]
    """Mean attention to the position itself."""
    by_sequence: Float[Tensor, "kind sequence layer head"]
    """The scores of each sequence, of which the other fields are means; kinds in the order of `KINDS`."""
    length: int
    provenance: Provenance

    @classmethod
    def of(
        cls, by_sequence: Float[Tensor, "kind sequence layer head"], length: int, provenance: Provenance
    ) -> HeadScores:
        """Average scores over sequences; kinds come in the order of `KINDS`."""
        means = dict(zip(KINDS, by_sequence.mean(dim=1), strict=True))
        return cls(**means, by_sequence=by_sequence, length=length, provenance=provenance)

    def places(self) -> list[tuple[int, int]]:
        """Return (layer, head) of every attention head, in the order of the layers."""
        return places_of(self.induction)

    def to_table(self) -> Table:
        """One row for each attention head, in the order of the layers."""
        columns = head_columns(self.places(), **{kind: self[kind] for kind in KINDS})
        title = f"Head scores, means of {self.by_sequence.shape[1]} sequences of 2 x {self.length} tokens"
        return Table(title, columns, self.provenance)

    def __repr__(self) -> str:
        """Show only the head with the largest score of each kind, because the tensors themselves are long."""
        largest = [
            f"{kind} {format_number(v)} ({head_name(layer, head)})"
            for kind in KINDS
            for layer, head, v in self.top(kind, 1)
        ]
        layers, heads = self.induction.shape
        return f"HeadScores({layers} layers of {heads} heads; largest: {', '.join(largest)})"

    def __getitem__(self, kind: str) -> Float[Tensor, "layer head"]:
        if kind not in KINDS:
            raise InvalidInput(f"head score {kind!r}", why=f"it is not one of {', '.join(KINDS)}")
        return getattr(self, kind)

    def interval(self, kind: str) -> Float[Tensor, "layer head"]:
        """Return half the width of the 95 % confidence interval of a kind's mean score (normal approximation)."""
        self[kind]
        rows = self.by_sequence[KINDS.index(kind)]
        return 1.96 * rows.std(dim=0, correction=1 if len(rows) > 1 else 0) / len(rows) ** 0.5

    def top(self, kind: str, top: int = 5) -> list[tuple[int, int, float]]:
        """The heads with the largest scores of a kind: (layer, head, score)."""
        scores, top = self[kind], positive_int("top", top)
        known = ~scores.isnan()
        best = scores.masked_fill(~known, -torch.inf).flatten().topk(min(top, int(known.sum())))
        heads = scores.shape[1]
        return [(int(i) // heads, int(i) % heads, float(v)) for i, v in zip(best.indices, best.values, strict=True)]


def effects_missing(lm: Decoder) -> dict[int, str]:
    """Return the attention layers whose heads have no `copying` score, each with the reason."""
    missing: dict[int, str] = {}
    for layer in lm.attention_layers:
        site = lm.structure.blocks[layer].attention
        if mixing_points(lm):
            streams = lm.structure.streams
            missing[layer] = (
                "the stream is normalised on its way, at a scale of its own at every position"
                if streams is None
                else f"the model has {streams.count} streams, mixed differently at every position"
            )
        elif site.out_projection is None:
            missing[layer] = site.heads_missing
        elif site.out_projection in lm.structure.not_linear:
            missing[layer] = lm.structure.not_linear[site.out_projection]
    return missing


@torch.no_grad()
def head_scores(
    lm: Decoder, seed: int = 0, *, n_sequences: int = 50, length: int | None = None, tokens: Tensor | None = None
) -> HeadScores:
    """Return the scores of every head on random tokens repeated once.

    Args:
        length: number of tokens before the repetition; 64, or less in a shorter context, when None.
        tokens: sequences (sequence, 2 * length) to use instead of random ones; both halves of each are equal.

    Memory: the attention patterns of one layer over `_TOKENS` tokens.

    Raises:
        Unsupported: attention patterns of the model cannot be captured, or no layer has attention.
    """
    require_heads(lm, "head scores")
    front, drawn = 0, tokens is None
    if tokens is None:
        tokens, front = repeated_tokens(lm, n_sequences, length, seed)
        length = (tokens.shape[1] - front) // 2
    else:
        tokens, _ = prepare(lm, tokens)
        length = tokens.shape[1] // 2
        if tokens.shape[1] % 2 or not torch.equal(tokens[:, :length], tokens[:, length:]):
            raise InvalidInput("tokens", why="the second half of a sequence differs from the first")
    at_once = max(1, _TOKENS // tokens.shape[1])
    # The sequences contain few of the vocabulary's tokens, so effects on logits are computed for these tokens only.
    known, rows = tokens.unique(return_inverse=True)
    readouts = _readouts(lm, known)
    batches = zip(tokens.split(at_once), rows.split(at_once), strict=True)
    parts = [_scores_of(lm, some, rows_of, front, length, readouts) for some, rows_of in batches]
    notes = {"sequences": len(tokens), "length": length}
    provenance = lm.provenance(seed=seed if drawn else None, notes=notes)
    return HeadScores.of(torch.cat(parts, dim=1).cpu(), length, provenance)


class _Pass:
    """Collects the scores of one batch of sequences, layer by layer, while the model runs."""

    def __init__(self, lm: Decoder, rows: Tensor, front: int, length: int, readouts: Mapping[int, Tensor]) -> None:
        """Prepare a pass; `rows` gives, for each token of the sequences, the row of its vector in `readouts[layer]`."""
        self.lm, self.rows, self.length, self.readouts = lm, rows, length, readouts
        pos = rows.shape[1]
        self.second = torch.arange(front + length, pos, device=rows.device)
        self.after_first = torch.arange(1, pos, device=rows.device)
        self.scores: dict[int, Float[Tensor, "kind batch head"]] = {}
        self.effects: dict[int, Float[Tensor, "batch dst head"]] = {}
        self.z: dict[int, Tensor] = {}
        self.scale: Tensor | None = None

    def mixed(self, layer: int, z: Float[Tensor, "batch pos head d_head"]) -> None:
        """Store z (head outputs before W_O) of the second half, until the attention pattern of the layer arrives."""
        self.z[layer] = z[:, self.second].clone()

    def attended(self, layer: int, pattern: Float[Tensor, "batch head dst src"]) -> None:
        """Score the attention pattern of a layer, and compute what each head adds from the token it attends to most."""
        second, later = self.second, self.after_first
        places = {
            "previous_token": (later, later - 1),
            "duplicate_token": (second, second - self.length),
            "induction": (second, second - self.length + 1),
            "resting": (later, torch.zeros_like(later)),
            "current_token": (later, later),
        }
        scores = pattern.new_full((len(KINDS), *pattern.shape[:2]), torch.nan, dtype=torch.float64)
        for kind, (dst, src) in places.items():
            scores[KINDS.index(kind)] = pattern[:, :, dst, src].double().mean(dim=-1)
        self.scores[layer] = scores
        if layer not in self.readouts:
            return
        most = pattern[:, :, second].argmax(dim=-1)  # (batch, head, dst)
        rows = self.rows.gather(1, most.flatten(1)).view(most.shape).transpose(1, 2)
        readout, z = self.readouts[layer], self.z.pop(layer)
        effects = [_direct_effects(self.lm, layer, one, readout[row]) for one, row in zip(z, rows, strict=True)]
        self.effects[layer] = torch.stack(effects)

    def end(self, resid: Float[Tensor, "batch pos d_model"]) -> None:
        """Compute the scale of the final norm from the residual stream after the last layer."""
        self.scale = final_scale(self.lm, resid[:, self.second])[..., 0]

    def result(self) -> Float[Tensor, "kind sequence layer head"]:
        """Return the scores of all layers; NaN in layers without attention."""
        assert self.scale is not None
        for layer, effects in self.effects.items():
            self.scores[layer][KINDS.index("copying")] = (effects / self.scale[:, :, None]).double().mean(dim=1)
        heads_first = {layer: scores.movedim(2, 0) for layer, scores in self.scores.items()}
        return by_layer(self.lm.n_layers, heads_first).movedim((2, 3), (0, 1))


def _scores_of(
    lm: Decoder, tokens: Tensor, rows: Tensor, front: int, length: int, readouts: Mapping[int, Tensor]
) -> Float[Tensor, "kind sequence layer head"]:
    current = _Pass(lm, rows, front, length, readouts)

    def end(resid: Tensor) -> None:
        current.end(resid)
        raise Stop

    taps: dict[tuple[str, int], Callback] = {("resid_post", lm.n_layers - 1): end}
    for layer in lm.attention_layers:
        if layer in readouts:
            taps["z", layer] = partial(current.mixed, layer)
        taps["pattern", layer] = partial(current.attended, layer)
    guard = memory_guard(f"the patterns of {tokens.numel()} tokens")
    with guard, attach_hooks(lm, taps) as under_way, suppress(Stop):
        lm.hf(tokens, **forward_arguments(lm, torch.ones_like(tokens)), **under_way.arguments)
    return current.result()


def _readouts(lm: Decoder, ids: Int[Tensor, " token"]) -> dict[int, Float[Tensor, "token d_model"]]:
    """Return, by layer and token, the direction in the attention's output that raises the logit above the mean logit.

    Later blocks may rescale the stream, so the directions differ between layers.
    """
    missing = effects_missing(lm)
    if missing.keys() == set(lm.attention_layers):
        return {}
    pulled = directions(lm, _centred_unembedding(lm, ids))
    return {n: pulled.steps[n]["attn_out"] for n in lm.attention_layers if n not in missing}


def _centred_unembedding(lm: Decoder, ids: Int[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
    """Return for each token the direction that raises its logit above the mean of all logits.

    The division by the final norm's scale is left out.
    """
    W_U = lm.weights.W_U.T
    centred = W_U[ids] - W_U.mean(dim=0)
    norm = lm.structure.final_norm
    if norm is not None:
        centred = norm.pulled_back(centred, torch.ones(1, dtype=W_U.dtype, device=W_U.device))
    return centred * lm.structure.logit_scale


def _direct_effects(
    lm: Decoder, layer: int, z: Float[Tensor, "pos head d_head"], directions: Float[Tensor, "pos head d_model"]
) -> Float[Tensor, "pos head"]:
    """Return what each head adds along the direction of each position, not divided by the final norm's scale."""
    branch = attention_branch(lm, layer, z)
    written = torch.einsum("phd,hdm->phm", z, lm.weights.W_O[layer])
    if branch.norm is not None and branch.scale is not None:
        written = branch.norm.frozen(written, branch.scale[:, None])
    return (written * directions).sum(dim=-1) * branch.multiplier


def main_kind(scores: HeadScores, layer: int, head: int) -> str | None:
    """Return the kind of attention that a head shows most on repeated tokens; None if no score reaches `ROLE`."""
    best = max(_ROLES, key=lambda kind: float(scores[kind][layer, head]))
    return best if float(scores[best][layer, head]) >= ROLE else None


def role_of(scores: HeadScores, layer: int, head: int) -> str:
    """Return the name of a head's role; "" if it has none."""
    return _ROLES.get(main_kind(scores, layer, head) or "", "")


def _by_role(scores: HeadScores, places: Sequence[tuple[int, int]]) -> list[int]:
    """Return the order of heads by role, and within a role by score, largest first; heads without a role come last."""
    roles = [*_ROLES.values(), ""]

    def key(n: int) -> tuple[int, float]:
        best = max(float(scores[kind][places[n]]) for kind in _ROLES)
        return roles.index(role_of(scores, *places[n])), -best

    return sorted(range(len(places)), key=key)


def _in_order(columns: Mapping[str, list[Any]], order: Sequence[int]) -> dict[str, list[Any]]:
    return {name: [values[n] for n in order] for name, values in columns.items()}


def _largest_first(columns: Mapping[str, list[Any]], by: str) -> dict[str, list[Any]]:
    """Return the columns with their rows sorted by one column, largest value first and missing values last."""
    keys = [(value is None, -(value or 0.0)) for value in columns[by]]
    return _in_order(columns, sorted(range(len(keys)), key=keys.__getitem__))


def heads_section(circuits: HeadMatrices, scores: HeadScores, basis: HeadBasis, provenance: Provenance) -> Section:
    """Describe every head: what it attends to on repeated tokens, and whether its circuits copy and match.

    A cell is empty where a layer has no such score; the section's text says why.
    """
    places = scores.places()
    by_circuit, missing = _by_circuit(circuits, basis, places)
    if no_effects := effects_missing(circuits.lm):
        missing["What heads add to logits"] = no_effects
    columns: dict[str, list[Any]] = {
        "layer": [layer for layer, _ in places],
        "head": [head for _, head in places],
        "role": [role_of(scores, *place) for place in places],
    }
    by_weights: dict[str, list[Any]] = {name: columns[name] for name in ("layer", "head")}
    copied = dict(by_weights)
    for kind in KINDS:
        mean, half = scores[kind], scores.interval(kind)
        table_of_kind = copied if kind == "copying" else columns
        for name, values in ((kind, mean), (f"{kind}_low", mean - half), (f"{kind}_high", mean + half)):
            table_of_kind[name] = [number_or_none(values[place]) for place in places]
    by_weights |= by_circuit
    n, length = scores.by_sequence.shape[1], scores.length
    note = (
        f"Scores of attention are means over {n} sequences of {length} random tokens repeated twice, with 95 % "
        "intervals. Copying and matching scores come from the weights alone: the sum of the eigenvalues of the full OV "
        "or QK circuit, divided by the sum of their absolute values. Beside each is the share of eigenvalues that are "
        f"positive. A head has a role if its mean attention of that kind is at least {format_setting(ROLE)}. Heads "
        "with a role come first, and for each role those with the largest score."
    )
    if others := [str(n) for n in range(circuits.lm.n_layers) if n not in circuits.lm.attention_layers]:
        without = "Layers without attention have no attention weights, so these scores do not exist there"
        note += f" {without}: {', '.join(others)}."
    absent = (line for what, reasons in missing.items() for line in not_available(what, reasons, circuits.lm))
    columns = _in_order(columns, _by_role(scores, places))
    copied, by_weights = _largest_first(copied, "copying"), _largest_first(by_weights, "copying_score")
    heat = (
        drawing("heat", f"heads_{y}", title, "head", y, table, rows="layer", y_range=ends, published=NOT_IN_PAPER)
        for table, y, title, ends in (
            ("heads", "previous_token", "Attention to the previous token", (0, 1)),
            ("heads", "induction", "Attention to the token after the earlier occurrence", (0, 1)),
            ("heads_by_weights", "copying_score", "Copying score of the OV circuit", (-1, 1)),
        )
    )
    positive = {
        "x_label": "OV, share positive",
        "y_label": "QK, share positive",
        "y_range": (0, 1),
        "percent": True,
        "published": NO_NUMBERS,
    }
    title, x, y = "Positive eigenvalues of the QK and OV circuits", "positive_eigenvalues", "positive_matching"
    scatter = drawing("scatter", "heads_positive", title, x, y, "heads_by_weights", **positive)
    edges = [i / 5 for i in range(-5, 6)]
    known = [s for s in by_circuit["copying_score"] if s is not None]
    counted = [sum(low <= s < high or (high == 1 and s == 1) for s in known) for low, high in pairwise(edges)]
    histogram = {
        "copying_score": [f"{format_cell(low, 1)} to {format_cell(high, 1)}" for low, high in pairwise(edges)],
        "heads": counted,
    }
    published = f"Published: {COPYING_HEADS} of the one-layer model copy; no other numbers are at hand."
    name = "copying_histogram"
    bars = drawing("bar", name, "Heads by copying score", "copying_score", "heads", published=published)
    attended, copies = "What heads attend to on repeated random tokens", "How many heads have which copying score"
    by_circuits = "What the circuits of heads copy and match, by weights"
    added = "What heads add to the logit of the token they attend to most, above the mean"
    exhibits = (
        exhibit(
            "heads",
            attended,
            columns,
            provenance,
            percent=tuple(kind for kind in KINDS if kind != "copying"),
            unbroken=("role",),
        ),
        exhibit("heads_by_weights", by_circuits, by_weights, provenance, percent=(x, y)),
        exhibit("heads_copying", added, copied, provenance, folded=True),
        exhibit(name, copies, histogram, provenance, folded=True),
    )
    return Section("Heads", (note, *absent), exhibits, (*heat, scatter, bars))


def _by_circuit(
    circuits: HeadMatrices, basis: HeadBasis, places: Sequence[tuple[int, int]]
) -> tuple[dict[str, list[float | None]], dict[str, Mapping[int, str]]]:
    """Return scores of the OV and QK circuits as columns, and the layers that lack a circuit, with reasons."""
    columns: dict[str, list[float | None]] = {}
    missing: dict[str, Mapping[int, str]] = {}
    for what, spectra_of, names in (
        ("Copying", copying, ("copying_score", "positive_eigenvalues")),
        ("Matching", matching, ("matching_score", "positive_matching")),
    ):
        try:
            spectra = spectra_of(circuits, basis)
        except Unsupported as refused:
            columns |= {name: [None] * len(places) for name in names}
            missing[what] = dict.fromkeys(circuits.lm.attention_layers, refused.why)
            continue
        for name, values in zip(names, (spectra.score, spectra.positive_fraction), strict=True):
            columns[name] = [number_or_none(values[place]) for place in places]
        if spectra.missing:
            missing[what] = spectra.missing
    return columns, missing


def heads_answer(
    circuits: HeadMatrices,
    *,
    basis: CircuitBasis = None,
    sequences: Sequences = 50,
    length: Length = None,
    everything: ShowAll = False,
    seed: Seed = 0,
) -> Answer:
    """Score how much each head attends to certain tokens (such as the previous one), copies, and matches.

    In a terminal, each table lists only its first heads; heads with a role come first.

    Caution: A role is what a head does on repeated random tokens. Copying and matching come from the weights. On other
    text the head may do something else, which `ablate` measures.
    """
    lm, chosen = circuits.lm, circuits.known_basis(basis)
    provenance = lm.provenance(basis=chosen, seed=seed)
    scores = head_scores(lm, seed, n_sequences=sequences, length=length)
    section = heads_section(circuits, scores, chosen, provenance)
    if everything:
        whole = tuple(replace(one, listed=max(one.listed, len(one.table))) for one in section.exhibits)
        section = replace(section, exhibits=whole)
    return Answer(f"Heads of {lm.name}", (section,), provenance, screen=Screen("heads"))


ANALYSIS = of_circuits("heads", heads_answer, "heads --model wren")
