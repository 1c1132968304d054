"""Rotate all weights that touch the stream: outputs stay the same, as the stream has no privileged basis.

This is exact for models without norms, for RMSNorm after its gain is folded into the next matrix, and for LayerNorm if
the rotation leaves the mean over channels unchanged.

Source: Elhage et al. 2021, "The residual stream as a communication channel".
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.models.loading import Opened
from unembed.models.norms import Norm
from unembed.models.offload import is_offloaded
from unembed.models.structure.mixer_names import site_name

D = TypeVar("D", bound=Decoder)


def random_rotation(d_model: int, seed: int = 0, *, keep_mean: bool = False) -> Float[Tensor, "d_model d_model"]:
    """Return a random orthogonal matrix in float64; with `keep_mean`, it maps the all-ones direction to itself.

    LayerNorm subtracts the mean over channels, so a model with LayerNorm stays the same only if the rotation maps the
    all-ones direction to itself.
    """
    g = torch.Generator().manual_seed(seed)
    if not keep_mean:
        q, r = torch.linalg.qr(torch.randn(d_model, d_model, generator=g, dtype=torch.float64))
        return q * r.diagonal().sign()
    frame = torch.randn(d_model, d_model, generator=g, dtype=torch.float64)
    frame[:, 0] = 1.0
    basis, _ = torch.linalg.qr(frame)  # the first column is the all-ones direction, up to length and sign
    inner = torch.eye(d_model, dtype=torch.float64)
    inner[1:, 1:] = random_rotation(d_model - 1, seed + 1)
    return basis @ inner @ basis.T


def rotated(lm: D, seed: int = 0) -> D:
    """Return a copy of the model with a randomly rotated stream; it computes the same outputs.

    Where the unembedding shares the weights of the embedding, the copy has two separate matrices, so that the final
    norm's gain can be folded.

    Raises:
        InvalidInput: the stream cannot be rotated, as for `rotate_stream`.

    Memory: a second model of the same size, and an unembedding.
    """
    _check_rotatable(lm, copied=True)
    hf = copy.deepcopy(lm.hf)
    head = hf.get_output_embeddings()
    if _is_tied(lm) and head is not None:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        hf.config.tie_word_embeddings = False
    copied = type(lm)(Opened(hf, lm.tokenizer, f"{lm.name}, stream turned"))
    rotate_stream(copied, seed)
    return copied


@torch.no_grad()
def rotate_stream(lm: Decoder, seed: int = 0) -> None:
    """Rotate the stream's coordinates at random, in place, in every weight that reads or writes it.

    Logits stay the same. Norm gains are first multiplied into the matrices after the norm. `rotated` rotates a copy and
    leaves the model unchanged.

    Raises:
        InvalidInput: the stream has a privileged basis or cannot be rotated in place. The reason may be a norm on the
            output of attention or FFN; a final norm with a gain, if the unembedding is tied to the embedding; or a
            module that reads the stream in an unknown way.
    """
    structure = lm.structure
    _check_rotatable(lm)
    norms = [b.attention.pre_norm for b in structure.blocks] + [
        b.feed_forward.pre_norm for b in structure.blocks if b.feed_forward is not None
    ]
    centred = any(norm is not None and norm.centred for norm in [*norms, structure.final_norm])
    R = random_rotation(lm.d_model, seed, keep_mean=centred)
    weights = lm.weights

    def reads(matrix: Tensor, norm: Norm | None) -> None:
        """Rotate a matrix whose rows are stream channels: W becomes R' diag(g) W, with g the norm's gain."""
        gained = matrix.double() if norm is None else norm.gain.double()[:, None] * matrix.double()
        matrix.copy_((R.T.to(matrix.device) @ gained).to(matrix.dtype))

    def writes(matrix: Tensor | None) -> None:
        """Rotate a matrix whose last axis is the stream: W becomes W R."""
        if matrix is not None:
            matrix.copy_((matrix.double() @ R.to(matrix.device)).to(matrix.dtype))

    def flat(matrix: Tensor) -> Tensor:
        return matrix.transpose(0, 1).reshape(matrix.shape[1], -1)

    tied = _is_tied(lm)
    for n, block in enumerate(structure.blocks):
        site, ffn = block.attention, block.feed_forward
        for per_layer in (weights.W_Q, weights.W_K, weights.W_V):
            matrix = per_layer[n]
            whole = flat(matrix).clone()
            reads(whole, site.pre_norm)
            matrix.copy_(whole.view(matrix.shape[1], matrix.shape[0], -1).transpose(0, 1))
        writes(weights.W_O[n])
        writes(weights.b_O[n])
        if ffn is not None:
            gate = weights.W_gate[n]
            for matrix in (weights.W_in[n], gate):
                if matrix is not None:
                    reads(matrix, ffn.pre_norm)
            writes(weights.W_out[n])
            writes(weights.b_out[n])
    if not tied:
        reads(weights.W_U, structure.final_norm)
    writes(weights.W_E)
    writes(None if structure.position_embedding is None else structure.position_embedding.weight)  # type: ignore[arg-type]
    writes(None if structure.read_positions is None else structure.read_positions.weight)  # type: ignore[arg-type]
    for norm in {id(n.module): n for n in [*norms, structure.final_norm] if n is not None}.values():
        _level(norm, R)


def _is_tied(lm: Decoder) -> bool:
    return lm.weights.W_U.data_ptr() == lm.weights.W_E.data_ptr()


def _check_rotatable(lm: Decoder, copied: bool = False) -> None:
    """Refuse a model that cannot be rotated in place or, with `copied`, in a copy with an unembedding of its own."""
    structure = lm.structure
    tied = _is_tied(lm) and not (copied and lm.hf.get_output_embeddings() is not None)
    other = next((b for b in structure.blocks if b.mixer is None or not b.mixer.is_attention), None)
    added = next((w.label for b in structure.blocks for w in (*b.early_writers, *b.late_writers)), None)
    sites = [b.mixer for b in structure.blocks if b.mixer is not None]
    composed = next((site for site in sites if site.head_layout is None), None)
    why = None
    if other is not None:
        kind = "no token mixer" if other.mixer is None else f"a {site_name(other.mixer)} instead of attention"
        why = f"its layer {structure.blocks.index(other)} has {kind}"
    elif composed is not None:
        why = composed.values_missing
    elif structure.streams is not None or structure.has_stream_norms or structure.has_gains or added is not None:
        why = "its stream is mixed, normalised, rescaled or written to by parts other than attention and FFNs"
    elif is_offloaded(lm.hf):
        why = "layers are offloaded, so a weight that is read is a copy, and changing it would not change the model"
    elif len({own.device for own in lm.hf.parameters()}) > 1:
        why = "its layers are on several devices, and a weight read from another device than the embedding's is a copy"
    elif structure.embedding_scale is None:
        why = "a norm or projections follow the embedding table"
    elif any(b.attention.branch_norm is not None for b in structure.blocks):
        why = "a norm on the output of attention or FFN has a gain of its own for each channel"
    elif any(b.feed_forward is not None and b.feed_forward.down_proj is None for b in structure.blocks):
        why = "its FFN is a mixture of experts"
    elif tied and (norm := structure.final_norm) is not None and bool(((norm.gain - 1).abs() > 1e-6).any()):
        why = "its embedding and unembedding share one matrix, into which the final norm's gain cannot be folded"
    elif lm.n_heads != lm.n_kv_heads and structure.blocks[0].attention.layout.kind == "per_group":
        why = "its query weights can only be read as a copy, so they cannot be changed in place"
    if why is not None:
        raise InvalidInput(f"the stream of {lm.name} cannot be rotated in place", why=why)


def _level(norm: Norm, R: Tensor) -> None:
    """Set a norm's gain to 1, divide its bias by the old gain, and rotate the bias, so that outputs stay the same."""
    gain, module = norm.gain.double(), norm.module
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        bias.copy_(((bias.double() / gain) @ R.to(bias.device)).to(bias.dtype))
    if isinstance(weight, Tensor):
        # Gemma multiplies by 1 + weight, so the gain and the weight differ by a constant, which is measured here.
        offset = float((gain - weight.double()).mean())
        weight.fill_(1.0 - round(offset))
    norm.__dict__.pop("_responses", None)
    for name in ("gain", "bias"):
        norm.__dict__.pop(name, None)
