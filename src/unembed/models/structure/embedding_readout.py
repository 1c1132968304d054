"""Find how tokens enter a decoder's residual stream, and how the stream after the last block becomes logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unembed.models.norms import Norm
from unembed.models.offload import parameter
from unembed.models.structure.probe import Probe, factor_of, relative, same


def embedding_of(
    probe: Probe, embedding: nn.Module, blocks_path: str, x: Tensor
) -> tuple[nn.Module | None, float | None]:
    """Return the module that adds positions to the stream (or None), and the factor of the token embedding.

    The factor is the number by which the rows of the embedding matrix are multiplied when they enter the stream; None
    if the stream does not consist of such multiples.
    """
    table = parameter(embedding)
    plain = table is not None and table.shape[-1] == x.shape[-1]
    rows = table[probe.recording.tokens].to(x.dtype) if plain and table is not None else None
    candidates: list[tuple[nn.Module | None, Tensor]] = [(None, torch.zeros_like(x))]
    before_blocks = [p for p in probe.recording.calls if not p.startswith(blocks_path + ".")]
    for path in before_blocks:
        module = probe.hf.get_submodule(path)
        returned = probe.recording.returned(path)
        if module is not embedding and "position" in path.lower().replace("wpe", "position") and returned is not None:
            if returned.dim() == 2:
                returned = returned[None]
            if returned.shape[-2:] == x.shape[-2:]:
                candidates.append((module, returned.expand_as(x).to(x.dtype)))

    def fitting(embedded: Tensor) -> tuple[nn.Module | None, float] | None:
        """Return a module and a factor for which factor * `embedded` plus the module's output is the stream.

        The module is None if factor * `embedded` alone is the stream. The result is None if nothing fits.
        """
        for module, added in candidates:
            scale = float(((x - added) * embedded).double().sum() / embedded.double().square().sum())
            if relative(scale * embedded + added, x) <= 10 * probe.tolerance:
                return module, scale
        return None

    if rows is not None and (found := fitting(rows)) is not None:
        return found[0], _snapped(found[1], _embedding_scales(probe), probe.tolerance)
    if probe.norm_returning(x, "") is not None:
        return None, None
    # An adaptive input embedding has no single matrix whose rows could be compared with the stream, so its recorded
    # output is compared instead.
    given = probe.recording.returned(probe.path_of(embedding))
    if given is not None and given.shape == x.shape and (found := fitting(given)) is not None:
        return found[0], None
    # In the remaining models, code outside any module changes the stream before block 0: CTRL adds positions, NanoChat
    # normalises. The stream that enters block 0 then counts as one component, which is not split.
    return None, None


def _embedding_scales(probe: Probe) -> list[float]:
    configured = [getattr(probe.config, n, None) for n in ("embedding_multiplier", "scale_emb")]
    return [1.0, probe.d_model**0.5, *(float(v) for v in configured if v is not None)]


def _snapped(value: float, exact: list[float], tolerance: float) -> float:
    """Return the exact value (such as 1 or sqrt(d_model)) nearest to a fitted one, if it is within the tolerance."""
    nearest = min(exact, key=lambda e: abs(e - value) / abs(e))
    return nearest if abs(nearest - value) <= 10 * tolerance * abs(nearest) else value


def _divided(probe: Probe, head: nn.Module, entered: Tensor, last: Tensor) -> tuple[Norm, float] | None:
    """Return the final norm, and the factor by which its output is multiplied before the head (MiniCPM 3), or None."""
    if parameter(head, "bias") is not None:
        return None
    for path in probe.norms:
        if not same(probe.recording.given(path), last):
            continue
        normed = probe.recording.returned(path)
        assert normed is not None
        factor = factor_of(normed, entered)
        if relative(factor * normed, entered) <= probe.tolerance:
            return probe.norm(path), factor
    return None


def readout_of(probe: Probe, head: nn.Module, last: Tensor) -> tuple[Norm | None, float, float | None]:
    """Return the final norm, the factor of the logits, and their soft cap (None if there is none)."""
    head_path = probe.path_of(head)
    entered, out, logits = probe.recording.given(head_path), probe.recording.returned(head_path), probe.recording.logits
    assert entered is not None and out is not None
    before: float | None = None
    norm_path = probe.norm_returning(entered, "")
    if norm_path is not None:
        final_norm = probe.norm(norm_path)
        if not same(probe.recording.given(norm_path), last):
            raise probe.fail("its readout", f"the input of {norm_path} is not the last block's output")
    elif same(entered, last):
        final_norm = None
    elif (divided := _divided(probe, head, entered, last)) is not None:
        final_norm, before = divided
    else:
        raise probe.fail("its readout", "the head's input is neither the last block's output nor a norm of it")
    scale = float((logits * out).double().sum() / out.double().square().sum())
    if before is not None:
        if relative(scale * out, logits) > probe.tolerance:
            raise probe.fail("its readout", "the logits are not a constant times the head's output")
        return final_norm, before * scale, None
    configured = [v for n in ("logit_scale", "logits_scaling") if (v := getattr(probe.config, n, None))]
    scale = _snapped(scale, [1.0, *configured, *(1 / v for v in configured)], probe.tolerance)

    def capped(cap: float | None) -> bool:
        return bool(cap) and relative(cap * torch.tanh(out / cap), logits) <= probe.tolerance

    # A soft cap hardly changes small logits, so in half precision they fit with or without a cap. The cap in the config
    # is therefore tried first, then no cap.
    configured_cap = getattr(probe.config, "final_logit_softcapping", None)
    if configured_cap is not None and capped(configured_cap):
        return final_norm, 1.0, float(configured_cap)
    if relative(scale * out, logits) <= probe.tolerance:
        return final_norm, scale, None
    for cap in (30.0, 15.0):
        if capped(cap):
            return final_norm, 1.0, cap
    raise probe.fail("its readout", "the logits are not a constant times the head's output, with or without a soft cap")
