"""Split a head's attention scores on a prompt into terms: content with content, positions, biases, ALiBi.

The QK circuit alone does not give the scores of most families. Learned positions and biases add terms, rotary
embeddings rotate the circuit by the offset, QK-norm divides queries and keys by their norms, and ALiBi adds a term. All
terms are summed here, and the softmax of the sum is compared with the pattern that the model computed.

Source: Elhage et al. 2021, "Splitting attention head terms into circuits", with the positional terms that they omit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.analyses import Cost
from unembed.attention.weights.composed_weights import is_composed, read_in_run
from unembed.attention.weights.paper import of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Section
from unembed.errors import InvalidInput, OutOfRange, SumNotProved, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.qk_norm import QKNorm
from unembed.models.structure.structure import AttentionSite
from unembed.names import SUM_TOLERANCE, head_name
from unembed.options import Head, Position, Prompt
from unembed.results import Displayed, Provenance, Table, format_error, format_setting
from unembed.stream.decomposition import tolerance
from unembed.stream.run import Run, Tokens, column_of, prepare, run


@dataclass(frozen=True, eq=False, repr=False)
class ScoreTerms(Displayed):
    """Attention scores before softmax and mask, as a sum of terms.

    Attributes:
        terms: each term by its name, as a tensor (dst, src) that is multiplied by the scale of scores, 1 / sqrt(d_head)
            in most families. A name is "alibi" or "DESTINATION x SOURCE"; for instance, "content x position" is the
            match of the destination's content with the source's position.
        scores: the sum of the terms, soft-capped if the model caps scores.
        pattern: the attention weights that the model computed.
        error: largest difference between softmax(scores), masked, and the pattern; the weight that goes to an attention
            sink is not compared.
    """

    terms: Mapping[str, Float[Tensor, "dst src"]]
    scores: Float[Tensor, "dst src"]
    pattern: Float[Tensor, "dst src"]
    error: float
    provenance: Provenance

    def to_table(self) -> Table:
        """One row for each pair of destination and source: each term, the score, and the attention weight."""
        pairs = [(d, s) for d in range(len(self.scores)) for s in range(d + 1)]
        parts = {**self.terms, "score": self.scores, "attention": self.pattern}
        columns: dict[str, list[float]] = {"destination": [d for d, _ in pairs], "source": [s for _, s in pairs]}
        columns |= {name: [float(part[pair]) for pair in pairs] for name, part in parts.items()}
        return Table("Attention scores as a sum", columns, self.provenance)

    def at(self, destination: int, source: int) -> tuple[float, dict[str, float]]:
        """Return the score with which one position attends to another, and its terms, sorted by magnitude.

        Raises:
            OutOfRange: the prompt has no such position, or the source comes after the destination.
        """
        if not 0 <= source <= destination < len(self.scores):
            raise OutOfRange(
                f"attention from position {destination} to position {source}",
                why=f"the prompt has {len(self.scores)} tokens, and a position does not attend to later ones",
            )
        terms = {name: float(part[destination, source]) for name, part in self.terms.items()}
        return float(self.scores[destination, source]), dict(sorted(terms.items(), key=lambda item: -abs(item[1])))


def score_points(lm: Decoder) -> list[str]:
    """Return the capture points that a run must record for `score_terms`."""
    embedded = lm.structure.position_embedding is not None
    return ["resid_pre", "pattern", *(("position_embedding",) if embedded else ())]


@torch.no_grad()
def score_terms(lm: Decoder, tokens: Tokens, layer: int, head: int, *, seen: Run | None = None) -> ScoreTerms:
    """Split the scores of one head on one prompt into terms, and check their sum against the model's own pattern.

    Args:
        tokens: one prompt.
        seen: a run of the prompt without edits that captured `score_points` in this layer; when None, the model is run.

    Raises:
        Unsupported: how the model computes scores could not be determined, or it clips queries and keys.
        SumNotProved: the softmax of the sum is not the model's pattern.
    """
    layer, head = lm.layer_and_head(layer, head)
    site = lm.structure.blocks[layer].attention
    what = f"the scores of {head_name(layer, head)} of {lm.name}"
    if not site.scores.understood:
        raise Unsupported(what, why=site.scores.missing, instead="Capture the attention patterns of a run")
    seen = run(lm, tokens, score_points(lm), logits=False, layers=[layer]) if seen is None else seen
    if seen.tokens.shape[0] != 1:
        raise InvalidInput(f"{seen.tokens.shape[0]} prompts", why="scores are split into terms for one prompt")
    positions = seen["position_embedding"][0][0] if "position_embedding" in seen else None
    parts = _read(lm, layer, seen.at("resid_pre", layer)[0], positions)
    q, k = (_turned(lm, layer, site, parts, which) for which in "qk")
    kv = head // site.queries_per_kv
    terms = {f"{a} x {b}": site.scores.scale * q[a][head] @ k[b][kv].mT for a in q for b in k}
    pos = seen.tokens.shape[1]
    where = torch.arange(pos, device=seen.tokens.device)
    if site.scores.alibi_slopes is not None:
        terms["alibi"] = (site.scores.alibi_slopes[head].double() * where).expand(pos, pos)
    total = torch.stack(list(terms.values())).sum(dim=0)
    if site.scores.softcap is not None:
        total = site.scores.softcap * torch.tanh(total / site.scores.softcap)
    hidden = where > where[:, None]
    if site.scores.window is not None:
        hidden = hidden | (where[:, None] - where >= site.scores.window)
    pattern = seen.at("pattern", layer)[0, head]
    # An attention sink takes a part of each destination's attention, and this part is not in the pattern. The softmax
    # of the scores is therefore multiplied by what the sink leaves, before it is compared with the pattern.
    seen_share = pattern.sum(dim=-1, keepdim=True)
    error = float((total.masked_fill(hidden, -torch.inf).softmax(dim=-1) * seen_share - pattern).abs().max())
    if not error <= max(tolerance(lm), SUM_TOLERANCE["float32"]):
        if site.clip is not None:
            why = f"queries and keys are clipped at {format_setting(site.clip)}, so they are not a sum of terms"
            raise Unsupported(what, why=why, instead="Capture the attention patterns of a run")
        raise SumNotProved(
            what,
            why=f"the softmax of their sum differs from the model's pattern by {format_error(error, 2)}",
            instead="Capture the attention patterns of a run",
        )
    provenance = lm.provenance(notes={"layer": layer, "head": head})
    return ScoreTerms(terms, total, pattern, error, provenance)


def _read(lm: Decoder, layer: int, x: Tensor, positions: Tensor | None) -> dict[str, Tensor]:
    """Return, in float64, the terms of the attention's input: content, learned positions, and the norm's bias."""
    site = lm.structure.blocks[layer].attention
    parts = {"content": x.double()}
    if site.positions_read:
        W_pos = lm.weights.W_pos
        if W_pos is None:
            raise Unsupported(f"the scores of layer {layer} of {lm.name}", why="its position embeddings were not found")
        parts["position"] = W_pos[: x.shape[0]].double()
    elif positions is not None:
        parts = {"content": (x - positions).double(), "position": positions.double()}
    norm = site.pre_norm
    if norm is not None:
        scale = norm.scale(x).double()
        parts = {name: norm.frozen(part, scale).double() for name, part in parts.items()}
        if norm.bias is not None:
            parts["bias"] = norm.bias.double().expand_as(x)
    return parts


def _projected(
    lm: Decoder, layer: int, which: str, parts: Mapping[str, Tensor]
) -> dict[str, Float[Tensor, "head pos d_head"]]:
    """Project each term to the queries or keys of all heads; the projection's bias is added to the term `bias`."""
    weights = lm.weights
    matrix, bias = (
        (weights.W_Q[layer], weights.b_Q[layer]) if which == "q" else (weights.W_K[layer], weights.b_K[layer])
    )
    made = {name: torch.einsum("pm,hmd->hpd", part, matrix.double()) for name, part in parts.items()}
    if bias is not None:
        pos = next(iter(made.values())).shape[1]
        whole = bias.double()[:, None].expand(-1, pos, -1)
        made["bias"] = made["bias"] + whole if "bias" in made else whole
    return made


def _turned(
    lm: Decoder, layer: int, site: AttentionSite, parts: Mapping[str, Tensor], which: str
) -> dict[str, Float[Tensor, "head pos d_head"]]:
    """Return the queries or keys of all heads term by term: projected, normalised as in the run, and rotated."""
    module = site.scores.q_norm if which == "q" else site.scores.k_norm
    made = read_in_run(lm, layer, which, parts) if is_composed(site) else _projected(lm, layer, which, parts)
    first = next(iter(made.values()))
    pos = first.shape[1]
    where = torch.arange(pos, device=lm.device)
    rotary = site.scores.rotary

    def rotate(t: Tensor) -> Tensor:
        return t if rotary is None else rotary.rotate(t, where)

    if module is None:
        return {name: rotate(t) for name, t in made.items()}
    if site.scores.norm_after_rotary:
        made = {name: rotate(t) for name, t in made.items()}
    norm = QKNorm.of(module, first.shape[0], first.shape[2], first.to(lm.dtype))
    whole = torch.stack(list(made.values())).sum(dim=0)
    sizes = norm.sizes(whole.to(lm.dtype)).double()
    made = {name: norm.linear(t) / sizes for name, t in made.items()}
    if bool(norm.bias.any()):
        made["bias"] = made.get("bias", torch.zeros(1, dtype=torch.float64)) + norm.bias.double()[:, None]
    made = {name: t.expand(-1, pos, -1) for name, t in made.items()}
    return made if site.scores.norm_after_rotary else {name: rotate(t) for name, t in made.items()}


def scores_answer(circuits: HeadMatrices, head: Head, prompt: Prompt, *, position: Position = -1) -> Answer:
    """Split a head's attention scores at one position into terms: content, positions, biases, ALiBi.

    Caution: Softmax ignores a term that is equal for all sources. So compare a term between sources; its size alone
    means little.
    """
    lm = circuits.lm
    ids, mask = prepare(lm, prompt)
    position = column_of(mask, position)
    layer, index = lm.layer_and_head(*head)
    found, provenance, n = score_terms(lm, ids, layer, index), lm.provenance(), position + 1
    columns = {
        "position": list(range(n)),
        "token": lm.token_strings(ids[0, :n]),
        "attention": found.pattern[position, :n].tolist(),
        "score": found.scores[position, :n].tolist(),
    }
    for term, part in found.terms.items():
        columns[term.replace(" ", "_")] = part[position, :n].tolist()
    text = (
        f"The scores of position {position} before the softmax, as sums of terms. A term DESTINATION x SOURCE is how "
        "one part of the destination (its content, its position or biases) matches one part of the source. A term that "
        "is the same for all sources changes no attention weight. The softmax of the sums differs from the model's own "
        f"pattern by at most {format_error(found.error)}.",
    )
    title = f"Scores of head {head_name(layer, index)} at position {position}"
    table = exhibit("scores", title, columns, provenance, percent=("attention",))
    figure = drawing("text", "scores", "Attention", "token", "attention", percent=True)
    section = Section("Attention scores", text, (table,), (figure,))
    return Answer(f"Attention scores of head {head} of {lm.name}", (section,), provenance)


ANALYSIS = of_circuits("scores", scores_answer, 'scores L0H0 "The first month of the year"', Cost.INSTANT)
