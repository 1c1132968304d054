"""Both ends of a decoder: how tokens enter the stream, and how the last stream becomes logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unembed.models.norms import Norm
from unembed.models.offload import parameter
from unembed.models.structure.attention_layout import relative
from unembed.models.structure.probe import Look, same


def embedding_of(
    look: Look, embedding: nn.Module, blocks_path: str, x: Tensor
) -> tuple[nn.Module | None, float | None]:
    """The module that adds positions to the stream, and what W_E is multiplied by."""
    paths = {id(m): p for p, m in look.hf.named_modules()}
    table = parameter(embedding)
    plain = table is not None and table.shape[-1] == x.shape[-1]
    rows = table[look.recording.tokens].to(x.dtype) if plain and table is not None else None
    candidates: list[tuple[nn.Module | None, Tensor]] = [(None, torch.zeros_like(x))]
    before_blocks = [p for p in look.recording.calls if not p.startswith(blocks_path + ".")]
    for path in before_blocks:
        module = look.hf.get_submodule(path)
        returned = look.recording.returned(path)
        if module is not embedding and "position" in path.lower().replace("wpe", "position") and returned is not None:
            if returned.dim() == 2:
                returned = returned[None]
            if returned.shape[-2:] == x.shape[-2:]:
                candidates.append((module, returned.expand_as(x).to(x.dtype)))
    if rows is not None:
        for module, added in candidates:
            scale = float(((x - added) * rows).double().sum() / rows.double().square().sum())
            if relative(scale * rows + added, x) <= 10 * look.tolerance:
                return module, _snapped(scale, _embedding_scales(look), look.tolerance)
    if look.norm_returning(x, "") is not None:
        return None, None
    given = look.recording.returned(paths[id(embedding)])
    for module, added in candidates:
        # An embedding that is more than a table (adaptive input): its own output enters the stream.
        if given is not None and given.shape == x.shape:
            scale = float(((x - added) * given).double().sum() / given.double().square().sum())
            if relative(scale * given + added, x) <= 10 * look.tolerance:
                return module, None
    raise look.fail("its embedding", "what enters block 0 is not token embedding (scaled, normalised) plus positions")


def _embedding_scales(look: Look) -> list[float]:
    configured = [getattr(look.config, n, None) for n in ("embedding_multiplier", "scale_emb")]
    return [1.0, look.d_model**0.5, *(float(v) for v in configured if v is not None)]


def _snapped(value: float, exact: list[float], tolerance: float) -> float:
    """The exact number that a fitted one is a rounding of, or the fitted one."""
    return next((e for e in exact if abs(e - value) <= 10 * tolerance * abs(e)), value)


def readout_of(look: Look, head: nn.Module, last: Tensor) -> tuple[Norm | None, float, float | None]:
    """The final norm, what the head's output is multiplied by, and its soft cap."""
    head_path = next(p for p, m in look.hf.named_modules() if m is head)
    entered, out = look.recording.given(head_path), look.recording.returned(head_path)
    assert entered is not None and out is not None
    norm_path = look.norm_returning(entered, "")
    if norm_path is not None:
        final_norm = look.norm(norm_path)
        if not same(look.recording.given(norm_path), last):
            raise look.fail("its readout", f"{norm_path} does not read the last block's output")
    elif same(entered, last):
        final_norm = None
    else:
        raise look.fail("its readout", "the head reads neither the last block's output nor a norm of it")
    scale = float((look.recording.logits * out).double().sum() / out.double().square().sum())
    configured = [v for n in ("logit_scale", "logits_scaling") if (v := getattr(look.config, n, None))]
    scale = _snapped(scale, [1.0, *configured, *(1 / v for v in configured)], look.tolerance)

    def capped(cap: float | None) -> bool:
        return bool(cap) and relative(cap * torch.tanh(out / cap), look.recording.logits) <= look.tolerance

    # Small logits do not show a cap in half precision, so the config's own is tried before none.
    configured_cap = getattr(look.config, "final_logit_softcapping", None)
    if configured_cap is not None and capped(configured_cap):
        return final_norm, 1.0, float(configured_cap)
    if relative(scale * out, look.recording.logits) <= look.tolerance:
        return final_norm, scale, None
    for cap in (30.0, 15.0):
        if capped(cap):
            return final_norm, 1.0, cap
    raise look.fail("its readout", "the logits are neither the head's output, scaled, nor soft-capped")
