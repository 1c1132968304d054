"""Return what a head's matrices read from the stream and write to it, with or without the norms around them.

There are two bases. `raw` is the weights alone, as in the papers. In `folded`, everything linear between the stream and
a matrix is multiplied into the matrix. These are the gain and centring of norms (before the matrix, on the branch's
output as in Gemma 2 and OLMo 2, QK-norm, the final norm), the multiplier of the branch's output, the scale of the
embedding, and factors on the stream itself (see `stream_gains`). Only the scalar 1 / sigma of each norm at each
position is left out.

Products with W_E and W_U are centred by default: components that change no probability are subtracted.

- The mean column of W_U shifts all logits by the same amount, which does not change the softmax (`center_unembed` in
  TransformerLens). Where logits are soft-capped it has an effect, so it is not removed.
- Every LayerNorm subtracts the mean of a vector over its channels. In models that read the stream through LayerNorms
  only, this mean is removed from the rows of W_E and from everything that is written to the stream.
- A term of the score that is the same for all sources does not change the softmax of a destination, so the mean
  embedding is subtracted on the source side of QK.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.weights.composed_weights import check_part, composed_notes, composed_weights, is_composed
from unembed.attention.weights.stream_gains import changes_stream, read_at_end, rescales_channels, written_to_end
from unembed.errors import InvalidInput, OutOfRange, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.norms import Norm
from unembed.models.qk_norm import QKNorm
from unembed.models.structure.mixer_names import mixer_kind
from unembed.names import HEAD_BASES, HeadBasis
from unembed.results import format_setting
from unembed.stream.run import run
from unembed.validation import as_int, as_tuple

_BLOCK = 8192
"""Number of vocabulary tokens in one matrix product."""


def check_basis(basis: HeadBasis) -> None:
    """Check that a basis exists for circuits.

    Raises:
        InvalidInput: the basis is not in `HEAD_BASES`.
    """
    if basis not in HEAD_BASES:
        raise InvalidInput(f"basis {basis!r:.60}", why=f"a circuit's basis is {' or '.join(HEAD_BASES)}")


def require_heads(lm: Decoder, what: str) -> None:
    """Check that a model has attention heads.

    Raises:
        Unsupported: the model has no layers, or none with attention.
    """
    if not lm.n_layers:
        raise Unsupported(
            f"{what} of {lm.name}", why="it has no layers and therefore no heads", instead="Use direct_path()"
        )
    if not lm.attention_layers:
        mixers = dict.fromkeys(mixer_kind(b.mixer) for b in lm.structure.blocks if b.mixer is not None)
        raise Unsupported(
            f"{what} of {lm.name}",
            why=f"its layers have {' or '.join(mixers)} instead of attention",
            instead="Use attributions by component",
        )


def default_basis(lm: Decoder) -> HeadBasis:
    """The default basis of reports and commands: "folded"; "raw" for models without norms or with several streams."""
    return "raw" if lm.structure.final_norm is None or lm.structure.streams is not None else "folded"


def at_least_float32(t: Tensor) -> Tensor:
    """Convert a half-precision tensor to float32; return others unchanged."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


def ignores_channel_mean(lm: Decoder) -> bool:
    """True if adding a constant to all channels of the stream changes nothing.

    This is so if all layers and the unembedding read the stream through LayerNorms.
    """
    norms = [lm.structure.final_norm]
    for block in lm.structure.blocks:
        if block.mixer is not None:
            norms.append(block.mixer.pre_norm)
        if block.feed_forward is not None:
            norms.append(block.feed_forward.pre_norm)
    return not rescales_channels(lm) and all(norm is not None and norm.centred for norm in norms)


def ignores_logit_mean(lm: Decoder) -> bool:
    """True if adding a constant to all logits changes no probability, because no soft cap follows the unembedding."""
    return lm.structure.logit_softcap is None


def without_channel_mean(lm: Decoder, rows: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
    """Subtract from stream vectors their mean over channels, if that changes nothing in the model."""
    if not ignores_channel_mean(lm):
        return rows
    rows = at_least_float32(rows)
    return rows - rows.mean(dim=-1, keepdim=True)


def reading_weights(
    lm: Decoder, layer: int, which: str, basis: HeadBasis = "raw", *, grouped: bool = False, part: str | None = None
) -> Float[Tensor, "head d_model d_head"]:
    """Return W_Q, W_K or W_V of a layer, for each query head (for each key-value head when `grouped`).

    Args:
        which: "q", "k" or "v".
        basis: "raw" gives a view of the weights unless heads share keys and values; "folded" gives new tensors, in
            float32 where the weights are in half precision.
        grouped: one matrix for each key-value head instead of each query head.
        part: "content" or "rotary" columns of the queries or keys of latent attention; all columns when None.

    Raises:
        Unsupported: no fixed matrix gives the queries, keys or values (see `composed_weights`).
    """
    site = lm.structure.blocks[layer].attention
    check_part(site, part)
    if is_composed(site):
        matrix = composed_weights(lm, layer, which, basis, part)
    else:
        matrix = {"q": lm.weights.W_Q, "k": lm.weights.W_K, "v": lm.weights.W_V}[which][layer]
    if basis == "folded":
        matrix = _through_norm(site.pre_norm, at_least_float32(matrix))
        module = {"q": site.scores.q_norm, "k": site.scores.k_norm}.get(which)
        if module is not None:
            matrix = QKNorm.of(module, matrix.shape[0], matrix.shape[2], matrix).linear(matrix)
        matrix = read_at_end(lm, matrix, layer, "attention")
    if which != "q" and not grouped and site.queries_per_kv > 1:
        matrix = matrix.repeat_interleave(site.queries_per_kv, dim=0)
    return matrix


def writing_weights(lm: Decoder, layer: int, basis: HeadBasis = "raw") -> Float[Tensor, "n_heads d_head d_model"]:
    """Return W_O of a layer; in the folded basis, with the linear part of all that is applied to its output."""
    site = lm.structure.blocks[layer].attention
    matrix = lm.weights.W_O[layer]
    if basis == "folded":
        matrix = at_least_float32(matrix)
        if site.branch_norm is not None:
            matrix = site.branch_norm.frozen(matrix, torch.ones(1, dtype=matrix.dtype, device=matrix.device))
        if site.multiplier != 1.0:
            matrix = matrix * site.multiplier
        matrix = written_to_end(lm, matrix, layer, "attention")
    return matrix


def embedding(
    lm: Decoder, basis: HeadBasis = "raw", ids: Tensor | None = None, *, centre: bool = False
) -> Float[Tensor, "token d_model"]:
    """Return W_E, or some of its rows; in the folded basis, the vectors that enter the stream.

    Where a norm follows the embedding, "folded" returns the norm's output, including the division, since this division
    depends on the token alone.

    Args:
        ids: tokens; the whole vocabulary when None.
        centre: subtract each row's mean over channels, if that changes nothing in the model.
    """
    ids = None if ids is None else _tokens(lm, ids)
    table = lm.weights.W_E if ids is None else lm.weights.W_E[ids]
    if basis == "folded":
        if lm.structure.positions == "added":
            raise Unsupported(
                f"the folded embedding of {lm.name}",
                why="the model adds positions to the embedding outside any module, so the two cannot be separated",
                instead="Use basis='raw'",
            )
        scale = lm.structure.embedding_scale
        if scale is None:
            table = _embedding_output(lm, torch.arange(lm.d_vocab, device=lm.device) if ids is None else ids)
        elif scale != 1.0:
            table = table * scale
        if lm.n_layers:
            table = written_to_end(lm, table, 0, "embedding")
    return without_channel_mean(lm, table) if centre else table


def _tokens(lm: Decoder, ids: Any) -> Int[Tensor, " token"]:
    """Check token ids; an id out of range would select another token, or crash the process on a GPU."""
    if not isinstance(ids, Tensor):
        ids = torch.tensor([as_int("token", i) for i in as_tuple("tokens", ids)], dtype=torch.long, device=lm.device)
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype is torch.bool:
        raise InvalidInput(
            f"tokens of shape {tuple(ids.shape)}", why="token ids must be a one-dimensional tensor of integers"
        )
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < lm.d_vocab:
        low, high = int(ids.min()), int(ids.max())
        raise OutOfRange(
            f"token {low if low < 0 else high}", why=f"the ids of the vocabulary are 0 to {lm.d_vocab - 1}"
        )
    return ids


def _embedding_output(lm: Decoder, ids: Tensor) -> Float[Tensor, "token d_model"]:
    """Return the vectors that enter the stream for single-token prompts, minus position embeddings.

    Used for models with a norm or projection after W_E.
    """
    positions = lm.structure.position_embedding is not None
    points = ("resid_pre", "position_embedding") if positions else ("resid_pre",)
    parts = []
    for block in ids.split(1024):
        captured = run(lm, block[:, None], points, logits=False, layers=[0])
        part = captured.at("resid_pre", 0)[:, 0]
        parts.append(part - captured["position_embedding"][0][:, 0] if positions else part)
    return torch.cat(parts)


def unembedding(
    lm: Decoder, basis: HeadBasis = "raw", ids: Tensor | None = None, *, centre: bool = False
) -> Float[Tensor, "d_model token"]:
    """Return W_U, or some columns; in the folded basis, times the final norm's gain and centring and the logit scale.

    Args:
        ids: tokens; the whole vocabulary when None.
        centre: subtract the mean column of the whole vocabulary, if that changes no probability.
    """
    table = lm.weights.W_U if ids is None else lm.weights.W_U[:, _tokens(lm, ids)]
    if basis == "folded":
        if lm.structure.final_norm is not None:
            table = lm.structure.final_norm.folded(at_least_float32(table))
        if lm.structure.logit_scale != 1.0:
            table = table * lm.structure.logit_scale
    return (
        at_least_float32(table) - mean_unembedding(lm, basis)[:, None] if centre and ignores_logit_mean(lm) else table
    )


def mean_unembedding(lm: Decoder, basis: HeadBasis) -> Float[Tensor, " d_model"]:
    """The mean column of W_U over the vocabulary. Memory: one block of columns."""
    W_U = lm.weights.W_U
    total = torch.zeros(lm.d_model, dtype=torch.float64, device=W_U.device)
    for columns in W_U.split(_BLOCK, dim=1):
        total += columns.double().sum(dim=1)
    mean = (total / lm.d_vocab).to(torch.promote_types(W_U.dtype, torch.float32))
    if basis == "folded":  # folding is linear, so the mean of folded columns is the folded mean
        if lm.structure.final_norm is not None:
            mean = lm.structure.final_norm.folded(mean[:, None])[:, 0]
        mean = mean * lm.structure.logit_scale
    return mean


def through_embedding(
    lm: Decoder,
    matrix: Float[Tensor, "d_model r"],
    basis: HeadBasis = "raw",
    ids: Tensor | None = None,
    *,
    centre: bool = True,
    sources: bool = False,
) -> Float[Tensor, "token r"]:
    """Return W_E @ matrix, in float32 or wider.

    Args:
        matrix: the matrix that reads the embedding.
        ids: tokens; the whole vocabulary when None.
        centre: subtract each embedding's mean over channels, if that changes nothing in the model.
        sources: the tokens are sources of a QK circuit: with `centre`, also subtract the mean over the vocabulary.

    Memory: the result and one block of embeddings.
    """
    matrix = at_least_float32(matrix)

    def product(tokens: Tensor | None) -> Tensor:
        table = embedding(lm, basis, tokens, centre=centre)
        return table.to(matrix.dtype) @ matrix

    is_table = basis == "raw" or (lm.structure.embedding_scale == 1.0 and not changes_stream(lm))
    if lm.dtype == matrix.dtype and (not centre or not ignores_channel_mean(lm)) and is_table:
        # W_E is used without a copy, so one product for the whole vocabulary takes no more memory than blocks do.
        every = product(None) if ids is None else None
    else:
        every = torch.cat([product(block) for block in vocabulary_blocks(lm)]) if ids is None else None
    found = product(ids) if every is None else every
    if not (centre and sources):
        return found
    if every is not None:
        return found - every.mean(dim=0)
    return found - mean_embedding(lm, basis, centre=True).to(matrix.dtype) @ matrix


def mean_embedding(lm: Decoder, basis: HeadBasis, *, centre: bool) -> Float[Tensor, " d_model"]:
    """The mean row of W_E over the vocabulary. Memory: one block of rows."""
    total = sum(embedding(lm, basis, block, centre=centre).double().sum(dim=0) for block in vocabulary_blocks(lm))
    assert isinstance(total, Tensor)
    return (total / lm.d_vocab).to(torch.promote_types(lm.dtype, torch.float32))


def through_unembedding(
    lm: Decoder,
    matrix: Float[Tensor, "r d_model"],
    basis: HeadBasis = "raw",
    ids: Tensor | None = None,
    *,
    centre: bool = True,
) -> Float[Tensor, "r token"]:
    """Return matrix @ W_U, in float32 or wider.

    Args:
        matrix: vectors of the stream, one per row.
        ids: tokens; the whole vocabulary when None.
        centre: subtract the mean over the whole vocabulary, if that changes no probability.

    Memory: the result and one block of W_U.
    """
    matrix = at_least_float32(matrix)
    # The final norm's gain is multiplied into `matrix` instead of W_U. The result is the same, and `matrix` is smaller.
    if basis == "folded":
        if (norm := lm.structure.final_norm) is not None:
            matrix = norm.frozen(matrix, torch.ones(1, device=matrix.device)).to(matrix.dtype)
        if lm.structure.logit_scale != 1.0:
            matrix = matrix * lm.structure.logit_scale
    if lm.dtype == matrix.dtype and ids is None:
        found = matrix @ lm.weights.W_U
    else:
        blocks = vocabulary_blocks(lm) if ids is None else [ids]
        found = torch.cat([matrix @ unembedding(lm, "raw", block).to(matrix.dtype) for block in blocks], dim=1)
    if not centre or not ignores_logit_mean(lm):
        return found
    if ids is None:
        return found - found.mean(dim=1, keepdim=True)
    return found - (matrix @ mean_unembedding(lm, "raw").to(matrix.dtype))[:, None]


def vocabulary_blocks(lm: Decoder) -> tuple[Int[Tensor, " token"], ...]:
    """Return the ids of the vocabulary in blocks small enough for one product."""
    return torch.arange(lm.d_vocab, device=lm.weights.W_E.device).split(_BLOCK)


def circuit_notes(lm: Decoder, layer: int, basis: HeadBasis, circuit: str) -> tuple[str, ...]:
    """Return notes on what a layer's circuit includes and leaves out."""
    site = lm.structure.blocks[layer].attention
    notes = composed_notes(site, basis, circuit)
    if site.pre_norm is not None or site.branch_norm is not None:
        notes.append("norm gains folded in" if basis == "folded" else "norms left out")
    if changes_stream(lm):
        notes.append(f"factors of the stream itself {'folded in' if basis == 'folded' else 'left out'}")
    if lm.structure.streams is not None:
        notes.append(f"the mixing of {lm.structure.streams.count} streams left out")
    if site.queries_per_kv > 1:
        notes.append(f"{'keys' if circuit == 'qk' else 'values'} shared by {site.queries_per_kv} query heads")
    if circuit == "ov":
        if site.clip is not None:
            notes.append(f"values are clipped at {format_setting(site.clip)} in the model, not here")
        return tuple(notes)
    if site.scores.q_norm is not None:
        gains = "its gains folded in" if basis == "folded" else "its gains left out"
        notes.append(f"QK-norm divides each query and key by its size in a run: {gains}")
    if site.scores.alibi_slopes is not None:
        notes.append("ALiBi adds its own term")
    if site.scores.softcap is not None:
        notes.append(f"scores are soft-capped at {format_setting(site.scores.softcap)}")
    if site.scores.window is not None:
        notes.append(f"sources further back than {site.scores.window - 1} are never read")
    return tuple(notes)


def _through_norm(norm: Norm | None, matrix: Float[Tensor, "head d_model d_head"]) -> Tensor:
    """Fold the gain and centring of the norm before a head into its reading matrix."""
    if norm is None:
        return matrix
    heads, d_model, d_head = matrix.shape
    folded = norm.folded(matrix.transpose(0, 1).reshape(d_model, heads * d_head))
    return folded.view(d_model, heads, d_head).transpose(0, 1)
