"""Split a logit into what each component of the model adds to it, and check that the contributions add up to the logit.

A component's contribution is the dot product of the vector that it adds to the residual stream with one direction. This
direction is the token's unembedding vector, carried back to the residual stream through the final norm and, in some
models, a projection. Each norm divides by the scale that it had in the run. Terms that are not vectors in
the residual stream have separate rows: the biases of norms and of the unembedding, and the effect of a logit soft cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput, PointMissing, SumNotProved, Unsupported
from unembed.lens import average_direction, final_scale, logit_direction
from unembed.logit_attribution.result import Attribution
from unembed.models.decoder import Decoder
from unembed.names import BY, By
from unembed.results import NOT_A_NUMBER, format_error, format_number, quoted
from unembed.stream.capture_points import has_point, require_point
from unembed.stream.decomposition import (
    Branch,
    Directions,
    attention_branch,
    branch_of_run,
    directions,
    memory_points,
    prove,
    source_values,
    steps_of,
    tolerance,
    writer_points,
)
from unembed.stream.interventions import Edit, Edits, as_edits
from unembed.stream.run import Run, Tokens, column_of, position_of, prepare, run
from unembed.validation import one_of


class _Columns:
    """Collects the rows of an attribution one after another, and stores each field of the rows as a list of tensors."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.parts: list[tuple[Tensor, ...]] = []

    def add(
        self, kind: str, contribution: Tensor, layer: int = -1, index: Tensor | int = -1, source: Tensor | int = -1
    ) -> None:
        contribution = contribution.reshape(-1).to(torch.promote_types(contribution.dtype, torch.float32)).cpu()
        if kind not in self.kinds:
            self.kinds.append(kind)
        numbers = (self.kinds.index(kind), layer, index, source)
        self.parts.append((*(torch.as_tensor(n).expand(len(contribution)) for n in numbers), contribution))


def pair(lm: Decoder, token: str | int, against: str | int | None) -> tuple[int, int | None]:
    """Return the ids of a token and of the token that it is compared with; the second is None if there is none.

    Raises:
        InvalidInput: both are the same token.
        NotOneToken: a text is not a single token.
    """
    target = lm.single_token(token)
    other = None if against is None else lm.single_token(against)
    if target == other:
        raise InvalidInput(
            f"{quoted(lm.token_strings([target])[0])} against itself",
            why="the difference of a logit to itself is 0",
            instead="Choose another token to compare with",
        )
    return target, other


def points_needed(lm: Decoder, by: str, edits: Sequence[Edit] = ()) -> tuple[str, ...]:
    """Return the capture points that a run under these edits must record for an attribution of this kind.

    Raises:
        InvalidInput: `by` is not a kind of attribution.
        PointMissing: no layer has the components that `by` names, such as heads.
        Unsupported: an edit scales a layer's whole attention or FFN output, so its heads or memories do not add up to
            it.
    """
    one_of("by", by, BY)
    extra = {"component": (), "head": ("z",), "source": ("z", "pattern", "values"), "memory": memory_points(lm)}[by]
    for point in extra:
        if not any(has_point(lm, point, layer) for layer in range(lm.n_layers)):
            require_point(lm, point, 0)  # raises an error with the reason
    targets = {edit.target for edit in edits}
    for target, kinds in (("attention", ("head", "source")), ("ffn", ("memory",))):
        if target in targets and by in kinds:
            raise Unsupported(
                f"an attribution by {by} under an edit of a layer's {target}",
                why="the edit scales the layer's summed output, so its heads or memories do not add up to it",
                instead='Use by="component"',
            )
    return ("resid_pre", "resid_post", *writer_points(lm), *extra, *(["unedited_post"] if "stream" in targets else []))


def kinds_of(lm: Decoder, edits: Sequence[Edit] = ()) -> list[By]:
    """Return the kinds of attribution that the model and these edits allow, except "source", whose result is large."""
    kinds: tuple[By, ...] = ("component", "head", "memory")
    found: list[By] = []
    for by in kinds:
        with suppress(PointMissing, Unsupported):
            points_needed(lm, by, edits)
            found.append(by)
    return found


@torch.no_grad()
def attribution(
    lm: Decoder,
    tokens: Tokens | Run,
    token: str | int,
    position: int = -1,
    against: str | int | None = None,
    by: By = "component",
    edits: Edits = (),
) -> Attribution:
    """Split a token's logit at a position, or its difference to another token's, into what each component adds to it.

    Args:
        tokens: a prompt, or a run that captured `points_needed(lm, by)` and the logits. If it captured attention
            patterns, the row of this position is enough.
        token: the token whose logit is attributed.
        position: the position whose prediction is attributed; the last by default.
        against: a second token; if given, the difference of the two logits is attributed.
        by: "component" (each layer's attention and FFN), "head", "source" (each head and source token) or "memory".
        edits: changes to make while the prompt runs; not used if `tokens` is a run.

    Raises:
        SumNotProved: the contributions miss the logit by more than the tolerance of the model's dtype.
        PointMissing, Unsupported: the model has no such components.

    Memory: layers * d_mlp contributions for "memory", layers * heads * positions for "source".
    Source: Elhage et al. 2021, "Transformers as sums of paths"; Geva et al. 2022, Eq. 2.
    """
    one_of("by", by, BY)
    edits = as_edits(edits)
    target, other = pair(lm, token, against)
    seen = tokens if isinstance(tokens, Run) else _run(lm, tokens, position, by, edits)
    column = position_of(seen, position)
    last = seen.at("resid_post", lm.n_layers - 1)[0, column]
    scale = final_scale(lm, last)
    u = logit_direction(lm, target, other) / scale
    columns = _Columns()
    pulled = directions(lm, u, seen, column)
    entered = seen.at("resid_pre" if lm.structure.streams is None else "streams", 0)[0, column]
    if lm.structure.position_embedding is not None:
        positions = seen["position_embedding"][0][0, column]
        columns.add("embedding", _along(entered - positions, pulled.start))
        columns.add("positions", _along(positions, pulled.start))
    else:
        columns.add("embedding", _along(entered, pulled.start))
    for layer, contribution in pulled.constants:
        columns.add("norm bias", contribution, layer)
    for layer, block in enumerate(lm.structure.blocks):
        for step in steps_of(block):
            direction = pulled.steps[layer][step.point]
            if step.point == "attn_out" and by in ("head", "source") and seen.has("z", layer):
                _heads(lm, seen, layer, column, direction, by, columns)
            elif step.point == "mlp_out" and by == "memory" and seen.has("coefficients", layer):
                contribution, branch = _of_memories(lm, seen, layer, column, direction)
                columns.add("memory", contribution, layer, torch.arange(len(contribution)))
                _branch_biases(columns, branch, lm.weights.b_out[layer], direction, layer, "ffn bias", None)
            else:
                columns.add(step.label, _along(seen.at(step.point, layer)[0, column], direction), layer)
        if seen.has("unedited_post", layer):
            change = seen.at("resid_post", layer)[0, column] - seen.at("unedited_post", layer)[0, column]
            if bool(change.any()):
                columns.add("edit", change.to(u.dtype) @ pulled.end[layer], layer)
    logit = seen.logits[0, column, target]
    linear = _biases(lm, target, other, columns, u.dtype)
    logit = logit - seen.logits[0, column, other] if other is not None else logit
    after_linear = logit - (last.to(u.dtype) @ u + linear.to(u))
    if lm.structure.logit_softcap is not None:
        columns.add("soft cap", after_linear)
    elif hasattr(lm.structure.head, "band_scores"):
        # An adaptive softmax splits the vocabulary into bands of words and normalises the scores within each band. So a
        # log-probability is not linear in the stream: what the linear scores leave over gets a row of its own.
        columns.add("band normalisers", after_linear)
    made = () if isinstance(tokens, Run) else edits
    found = _closed(lm, columns, target, other, position, by, float(logit), made)
    # The texts of source tokens are needed only for "source". If the run stores only one position, it lacks the tokens
    # of the others, so their texts are not known.
    if by != "source" or int(found.source.max()) >= seen.tokens.shape[1]:
        return found
    return replace(found, sources=tuple(lm.token_strings(seen.tokens[0])))


def _run(lm: Decoder, tokens: Tokens, position: int, by: By, edits: Edits) -> Run:
    """Run the prompt and capture what an attribution needs; of attention patterns, only the row of `position`."""
    ids, mask = prepare(lm, tokens)
    row = column_of(mask, position)
    return run(lm, ids, points_needed(lm, by, as_edits(edits)), edits, attention_mask=mask, row=row)


def _along(vector: Tensor, direction: Tensor) -> Float[Tensor, ""]:
    """Return the dot product of two tensors; with several residual streams, each tensor has one row per stream."""
    return (vector.to(direction.dtype) * direction).sum()


def _heads(lm: Decoder, seen: Run, layer: int, column: int, u: Tensor, by: str, columns: _Columns) -> None:
    """Add one row for each head of a layer, or with `by="source"` one row for each head and source token.

    A contribution is the dot product of a head's output with `u`. Heads of mixers other than attention (such as
    linear attention) are not split by source.
    """
    site = lm.structure.blocks[layer].mixer
    assert site is not None
    z = seen.at("z", layer)[0, column].to(u.dtype)
    branch = attention_branch(lm, layer, seen.at("z", layer)[0, column])
    read = lm.weights.W_O[layer].to(u.dtype) @ branch.direction(u)  # (n_heads, d_head)
    heads = torch.arange(site.n_heads)
    if by == "head" or not site.is_attention:
        columns.add("head", (z * read).sum(-1) * branch.factor, layer, heads)
    else:
        contribution = _by_source(lm, seen, layer, column, read) * branch.factor
        keys = torch.arange(contribution.shape[1])
        columns.add("head", contribution, layer, heads.repeat_interleave(len(keys)), keys.repeat(len(heads)))
    _branch_biases(columns, branch, lm.weights.b_O[layer], u, layer, "attention bias", site.constant)


def _by_source(
    lm: Decoder, seen: Run, layer: int, column: int, read: Float[Tensor, "head d_head"]
) -> Float[Tensor, "head src"]:
    """Return what each source token adds to the dot product of each head's z with that head's row of `read`.

    Raises:
        SumNotProved: pattern times values differs from z by more than the tolerance, relative to the size of z.
    """
    values = source_values(lm, seen, layer, gated=True).to(read.dtype)
    patterns = seen.at("pattern", layer)[0]
    pattern = patterns[:, column if patterns.shape[1] > 1 else 0].to(read.dtype)  # (head, src)
    z = seen.at("z", layer)[0, column].to(read.dtype)
    source = lm.structure.blocks[layer].attention.values
    mixed = torch.einsum("hs,hsd->hd", pattern.double(), values.double())
    if source is not None and source.gated:
        # The gate multiplies each channel of z by a factor. z is a sum over source tokens, so the factor applies to
        # each token's part of z.
        gate = torch.where(mixed == 0, 0.0, z.double() / mixed)
        mixed = mixed * gate
        contribution = (pattern * torch.einsum("hsd,hd->hs", values.double(), gate * read.double())).to(read.dtype)
    else:
        factors = _edited_factors(seen, layer, z.double(), mixed)
        mixed = mixed * factors
        contribution = pattern * torch.einsum("hsd,hd->hs", values, read) * factors.to(read.dtype)
    prove(f"the sources of layer {layer} of {lm.name}", mixed, z.double(), tolerance(lm), instead="Use by='head'")
    return contribution


def _edited_factors(
    seen: Run, layer: int, z: Float[Tensor, "head d_head"], mixed: Float[Tensor, "head d_head"]
) -> Float[Tensor, "head 1"]:
    """Return the factor by which the run's edits scale each head.

    An edit scales z after it was computed as attention pattern times values, so pattern and values do not show it.
    """
    factors = torch.ones_like(z[:, :1])
    for edit in (seen.provenance.notes or {}).get("edits", ()):
        if edit["target"] == "head" and edit["action"] == "scale" and edit["layer"] == layer:
            n = edit["index"]
            factors[n] = (z[n] @ mixed[n]) / (mixed[n] @ mixed[n]).clamp_min(torch.finfo(z.dtype).tiny)
    return factors


def _of_memories(lm: Decoder, seen: Run, layer: int, column: int, u: Tensor) -> tuple[Float[Tensor, " d_mlp"], Branch]:
    per_unit, branch = _per_unit(lm, seen, layer, column, u)
    return seen.at("coefficients", layer)[0, column].to(u.dtype) * per_unit, branch


def _per_unit(lm: Decoder, seen: Run, layer: int, column: int, u: Tensor) -> tuple[Float[Tensor, " d_mlp"], Branch]:
    lm.feed_forward(layer)  # raises an error with the reason
    branch = branch_of_run(lm, seen, layer, column)
    return (lm.weights.W_out[layer].to(u.dtype) @ branch.direction(u)) * branch.factor, branch


def _branch_biases(
    columns: _Columns, branch: Branch, bias: Tensor | None, u: Tensor, layer: int, kind: str, constant: Tensor | None
) -> None:
    contributions = [] if constant is None else [constant.to(u.dtype) @ u]
    if bias is not None:
        contributions.append((bias.to(u.dtype) @ branch.direction(u)) * branch.factor)
    if branch.bias is not None:
        contributions.append(branch.bias.to(u.dtype) @ u)
    if contributions:
        columns.add(kind, torch.stack([s.reshape(()) for s in contributions]).sum(), layer)


def _biases(lm: Decoder, target: int, other: int | None, columns: _Columns, dtype: torch.dtype) -> Tensor:
    """Add rows for the biases of the final norm and of the unembedding, and return their sum."""
    total = torch.zeros((), dtype=dtype)
    norm, W_U, b_U = lm.structure.final_norm, lm.weights.W_U, lm.weights.b_U
    if norm is not None and norm.bias is not None:
        direction = W_U[:, target] if other is None else W_U[:, target] - W_U[:, other]
        contribution = norm.bias.to(dtype) @ direction.to(dtype) * lm.structure.logit_scale
        columns.add("final norm bias", contribution)
        total = total + contribution.cpu()
    if b_U is not None:
        contribution = (b_U[target] if other is None else b_U[target] - b_U[other]).to(dtype) * lm.structure.logit_scale
        columns.add("unembedding bias", contribution)
        total = total + contribution.cpu()
    return total


def _closed(
    lm: Decoder, columns: _Columns, target: int, other: int | None, position: int, by: str, logit: float, edits: Edits
) -> Attribution:
    kind, layer, index, source, contribution = (torch.cat(column) for column in zip(*columns.parts, strict=True))
    total, error = proved_sum(lm, contribution, logit, f"the attribution of token {target} in {lm.name}")
    about = lm.provenance(basis="frozen", notes={"edits": [e.to_dict() for e in as_edits(edits)]} if edits else None)
    kinds, experts = tuple(columns.kinds), tuple(map(lm.experts_of, range(lm.n_layers)))
    parts = (kinds, kind, layer, index, source, contribution)
    answers = tuple(lm.token_strings([one for one in (target, other) if one is not None]))
    return Attribution(
        target, other, position, by, *parts, logit, total, error, about, experts=experts, answers=answers
    )


def proved_sum(lm: Decoder, contribution: Float[Tensor, " row"], logit: float, what: str) -> tuple[float, float]:
    """Return the sum of the contributions, and its relative error against the logit.

    Raises:
        SumNotProved: the error is larger than the tolerance of the model's dtype.
    """
    total = float(contribution.double().sum())
    error = abs(total - logit) / max(abs(logit), float(contribution.abs().max()), 1e-30)
    if not error <= tolerance(lm):
        raise SumNotProved(
            what,
            why=f"the contributions give {format_number(total, digits=6, undefined=NOT_A_NUMBER)}, the model gives "
            f"{format_number(logit, digits=6, undefined=NOT_A_NUMBER)} (relative error {format_error(error, 2)})",
            instead="Load with dtype='float32', remove hooks of your own from lm.hf, or report this model",
        )
    return total, error


@torch.no_grad()
def memory_contributions_per_unit(
    lm: Decoder, seen: Run, layers: Sequence[int], position: int, token: str | int, against: str | int | None = None
) -> list[Float[Tensor, " d_mlp"]]:
    """Return v_i . u: what each memory (FFN neuron) adds to a logit, or a difference, per unit of its coefficient.

    Multiplied by the coefficients of the run, these are the memory rows of `attribution(..., by="memory")`. Models in
    which only some layers have memories work too. The run must have captured `memory_points(lm)`, the last resid_post
    and `mixing_points(lm)`.

    Raises:
        Unsupported: a layer has no memories.
    """
    target, other = pair(lm, token, against)
    column = position_of(seen, position)
    pulled = _pulled(lm, seen, layers, column, logit_direction(lm, target, other))
    return [_per_unit(lm, seen, n, column, pulled.ffn(n))[0] for n in layers]


@torch.no_grad()
def memory_contributions_over_average(
    lm: Decoder, seen: Run, layers: Sequence[int], position: int, token: int
) -> list[Float[Tensor, " d_mlp"]]:
    """Return what each memory adds to a token's logit, minus what it adds to the mean logit of the vocabulary.

    A constant added to all logits changes no probability, so only this difference makes the token more likely. The run
    must have captured the same points as for `memory_contributions_per_unit`.

    Raises:
        Unsupported: a layer has no memories.
    """
    column = position_of(seen, position)
    pulled = _pulled(lm, seen, layers, column, logit_direction(lm, token) - average_direction(lm))
    return [_of_memories(lm, seen, n, column, pulled.ffn(n))[0] for n in layers]


def _pulled(
    lm: Decoder, seen: Run, layers: Sequence[int], column: int, direction: Float[Tensor, " d_model"]
) -> Directions:
    for n in layers:
        lm.feed_forward(n)  # raises where a layer has no memories
    scale = final_scale(lm, seen.at("resid_post", lm.n_layers - 1)[0, column])
    return directions(lm, direction / scale, seen, column)


@torch.no_grad()
def memory_contributions(lm: Decoder, seen: Run, token: str | int) -> Float[Tensor, "layer pos d_mlp"]:
    """Return what every memory adds to a token's logit, m_i (v_i . u), at every position of the first prompt.

    The run must have captured `memory_points(lm)`, the last resid_post and `mixing_points(lm)`.

    Raises:
        Unsupported: the model has no memories.

    Memory: the size of the result. Each value matrix is read once.
    """
    pulled = directions(lm, logit_direction(lm, lm.single_token(token)), seen)
    last = seen.at("resid_post", lm.n_layers - 1)[0]
    scale = final_scale(lm, last)
    m = seen["coefficients"][:, 0]
    out = torch.empty_like(m)
    for layer in range(lm.n_layers):
        branch = branch_of_run(lm, seen, layer)
        read = branch.direction(pulled.ffn(layer)).to(m.dtype) @ lm.weights.W_out[layer].T
        torch.mul(m[layer], read, out=out[layer])
        out[layer].mul_((branch.factor / scale).to(m.dtype))
    return out
