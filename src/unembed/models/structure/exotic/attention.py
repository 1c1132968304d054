"""Describe attention modules whose queries, keys and values do not lie in their weights in a standard layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from unembed.models.structure.attention_layout import Mixing, ModuleCall
from unembed.models.structure.attention_scores import score_rule
from unembed.models.structure.exotic.head_readings import find_readings
from unembed.models.structure.exotic.values import Output, find_values
from unembed.models.structure.families import facts_of
from unembed.models.structure.structure import GATES, AttentionSite, ValueSource


def without_layout(mixing: Mixing, site: AttentionSite, projections: Mapping[str, ModuleCall]) -> AttentionSite:
    """Add to the description what could be found: the mixed values, what the heads read, and the score formula.

    Args:
        mixing: the attention in the recorded forward pass; it has a pattern and an out-projection over heads.
        site: the description of the attention so far.
        projections: the linear layers inside it, in which no standard layout was found.
    """
    outputs, norms = _inside(mixing)
    no_values = facts_of(mixing.probe.config.model_type).no_values
    # Differential attention subtracts two similar softmaxes. The rounding error of the difference is relatively larger
    # than that of either softmax, so a larger error is accepted.
    tolerance = mixing.probe.tolerance * (1 if mixing.differential is None else 4)
    values = find_values(mixing, outputs, norms, tolerance)
    if values is None:
        return _with_values_of_another_layer(mixing, site, norms, no_values or _not_found(projections))
    if mixing.differential is not None:
        return replace(site, values=values, values_missing=mixing.differential.no_scores)
    reason = (
        no_values or "its values are not a linear map of the stream, or its queries and keys have an unknown layout"
    )
    return _with_readings(mixing, replace(site, values=values, values_missing=reason), values)


def _not_found(projections: Mapping[str, ModuleCall]) -> str:
    return (
        f"its values were not found in {', '.join(projections) or 'any projection'}: pattern times values is not what "
        "the out-projection receives"
    )


def _inside(mixing: Mixing) -> tuple[list[Output], list[tuple[Tensor, Tensor]]]:
    outputs: list[Output] = []
    norms: list[tuple[Tensor, Tensor]] = []
    for name, part in mixing.module.named_modules():
        call = mixing.probe.recording.calls.get(f"{mixing.path}.{name}") if name else None
        if call is None or part is mixing.out_projection or call.returned is None:
            continue
        outputs += [(part, item, t) for item, t in enumerate((_with_batch(call.returned), *call.others))]
        if "norm" in type(part).__name__.lower() and call.given is not None:
            norms.append((call.given, call.returned))
    return outputs, norms


def _with_batch(t: Tensor) -> Tensor:
    return t[None] if t.dim() == 2 else t


def _with_values_of_another_layer(
    mixing: Mixing, site: AttentionSite, norms: list[tuple[Tensor, Tensor]], not_found: str
) -> AttentionSite:
    probe = mixing.probe
    for name in reversed([p for p in probe.recording.calls if re.search(r"\bv_(norm|proj)$", p)]):
        returned = probe.recording.calls[name].returned
        if returned is None or name.startswith(mixing.block + "."):
            continue
        output = (probe.hf.get_submodule(name), 0, _with_batch(returned))
        values = find_values(mixing, [output], norms, probe.tolerance)
        if values is not None:
            reason = f"it uses the keys and values of another layer ({name})"
            return replace(site, values=values, values_missing=reason, scores=replace(site.scores, missing=reason))
    return replace(site, values_missing=not_found)


def _with_readings(mixing: Mixing, site: AttentionSite, values: ValueSource) -> AttentionSite:
    """Add what the heads read (a latent vector, or a projection that also returns a gate) and the score formula."""
    found = find_readings(mixing, values)
    if found is None:
        return site
    latent = found.readings.parts["v"][0].latent
    ways = ["its keys and values are read through a latent that has its own norm"] if latent is not None else []
    ways += ["each head's values are divided by their size"] if found.readings.normed_values else []
    ways += [GATES[values.gate]] if values.gate else []
    reason = " and ".join(ways) or site.values_missing
    site = replace(site, readings=found.readings, values_missing=reason, n_kv_heads=found.n_kv_heads)
    if "q" not in found.readings.parts:
        return site
    return replace(site, scores=score_rule(mixing, found.q, found.k, found.n_kv_heads, site.scores.missing))
