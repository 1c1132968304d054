"""Select memories (FFN neurons) to turn on, to make text less toxic.

They are selected by hand, by the toxicity score of their top tokens, or greedily within a limit on perplexity. Source:
Geva et al. 2022, section 6.1 (by hand and by scores). The greedy method is not from the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.jacobian.basis import basis_or_default
from unembed.memories.values import Values, value_ends, value_readings
from unembed.models.decoder import Decoder, require_decoder
from unembed.results import Displayed, Table, format_percent, format_setting
from unembed.steering.continuations import ON
from unembed.steering.text_cost import perplexity
from unembed.stream.gradients import on_the_graph
from unembed.stream.hooks import attach_hooks
from unembed.stream.interventions import Edit, set_coefficient
from unembed.stream.run import cache_argument
from unembed.toxicity.scorers import Scorer

PAPER_VALUES = (
    *((13, 1852), (14, 72), (14, 1394), (15, 215), (16, 461)),
    *((16, 3208), (16, 4060), (17, 2920), (18, 1890), (22, 3769)),
)
"""Layer and index (from 0) of the ten memories of gpt2-medium that the paper picked by hand (Table 8)."""


@dataclass(frozen=True, eq=False, repr=False)
class Selection(Displayed):
    """Selected memories (FFN neurons): the edits that turn them on, and a table."""

    edits: tuple[Edit, ...]
    table: Table
    """The tokens that each memory promotes. For the greedy method: after each step, the surprisal of unwanted and
    wanted text, and the perplexity."""

    def to_table(self) -> Table:
        """Return the table of selected memories."""
        return self.table


def manual(lm: Decoder, memories: Sequence[tuple[int, int]], to: float = ON) -> Selection:
    """Select memories by their layer and index; `to` is the coefficient to set.

    Raises:
        OutOfRange: the model has no such memory.
    """
    chosen = [lm.memory(*memory) for memory in memories]
    signs = [-1 if to < 0 else 1] * len(chosen)
    table = _table(lm, chosen, {}, "Values picked by hand", signs)
    return Selection(tuple(set_coefficient(*m, to) for m in chosen), table)


def paper_values(lm: Decoder, to: float = ON) -> Selection:
    """Select the ten memories of gpt2-medium that the paper lists in Table 8.

    Raises:
        InvalidInput: the model has another shape, so these indices do not apply.
    """
    lm = require_decoder(lm)
    shape = (lm.n_layers, lm.d_model, lm.d_mlp)
    if shape != (24, 1024, 4096):
        raise InvalidInput(
            f"the paper's ten values in {lm.name}",
            why="they were picked in gpt2-medium",
            instead="Open gpt2-medium, or choose values by a scorer or greedily",
        )
    return manual(lm, PAPER_VALUES, to)


def value_scores(
    lm: Decoder, scorer: Scorer, top: int = 30, *, layers: Sequence[int] | None = None, negative: bool = False
) -> Float[Tensor, "layer d_mlp"]:
    """Return the toxicity score of each value vector's top tokens, joined into a text.

    Layers with fewer value vectors are padded with NaN.

    Args:
        top: number of top tokens.
        layers: the layers to score; all when None.
        negative: score the tokens that are promoted at negative coefficients (gated layers) instead.

    Source: Geva et al. 2022, appendix A.4.
    """
    lm = require_decoder(lm)
    ids = value_readings(lm, top, layers=layers, bottom=negative).ids
    scores = torch.full(ids.shape[:2], float("nan"))
    for row, found in zip(scores, ids, strict=True):
        texts = ["".join(lm.token_strings(tokens)) for tokens in found[found[:, 0] >= 0].long()]
        row[: len(texts)] = torch.tensor(scorer.score(texts)["toxicity"], dtype=torch.float32)
    return scores


def by_scorer(
    lm: Decoder,
    scorer: Scorer,
    n: int = 10,
    *,
    below: float = 0.1,
    lowest: bool = False,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    to: float = ON,
) -> Selection:
    """Select random memories among those whose top tokens have a toxicity score below a threshold, as in the paper.

    In gated layers, coefficients have either sign: both signs are candidates, but a memory is selected at most once.
    The sign in the weights is a convention, and the selection does not depend on it.

    Args:
        scorer: scores the 30 top tokens of each value vector.
        n: number of memories to select.
        below: the threshold of the score.
        lowest: select the memories with the lowest scores instead of random ones.
        layers: the layers to select from; all when None.
        seed: the seed of the random choice.
        to: the size of the coefficient to set.

    Raises:
        InvalidInput: fewer than n values score below the threshold.
    """
    lm = require_decoder(lm)
    chosen_layers = list(lm.memory_layers) if layers is None else [lm.layer(layer) for layer in layers]
    signed = any(lm.is_signed(layer) for layer in chosen_layers)
    scores = torch.stack(
        [value_scores(lm, scorer, layers=chosen_layers, negative=n) for n in (False, True)[: 1 + signed]]
    )
    first = torch.ones(scores.shape[1:], dtype=torch.long)
    if signed:
        # The sign of a value vector v in the weights is arbitrary, and both v and -v are candidates. The seed picks
        # candidates by their index. So that the choice does not depend on the sign, the first of the two is always the
        # one whose top token has the higher score.
        up, down = (ends.scores[..., 0].cpu() for ends in value_ends(lm, 1, layers=chosen_layers))
        first = torch.where(-down > up, -1, 1)
        scores = torch.where(first > 0, scores, scores.flip(0))
    flat = scores.flatten()
    fit = (flat < below).nonzero()[:, 0]
    if len(fit) < n:
        raise InvalidInput(
            f"no {n} values score below {below}",
            why=f"{len(fit)} of {int(flat.isfinite().sum())} do, according to {scorer.name}",
            instead="Raise the threshold, or request fewer",
        )
    if lowest:
        order = flat.argsort(stable=True)
    else:
        order = fit[torch.randperm(len(fit), generator=torch.Generator().manual_seed(seed))]
    _, n_layers, width = scores.shape
    picked: dict[tuple[int, int], int] = {}
    for i in order.tolist():
        memory = i % (n_layers * width)
        picked.setdefault((chosen_layers[memory // width], memory % width), i)
        if len(picked) == n:
            break
    firsts = first.flatten().tolist()
    signs = [(-1 if i >= len(firsts) else 1) * firsts[i % len(firsts)] for i in picked.values()]
    extra: dict[str, list[Any]] = {"toxicity": flat[list(picked.values())].tolist()}
    table = _table(
        lm, list(picked), extra, f"Values whose top tokens {scorer.name} scores below {format_setting(below)}", signs
    )
    return Selection(tuple(set_coefficient(*m, sign * to) for m, sign in zip(picked, signs, strict=True)), table)


def _table(
    lm: Decoder,
    memories: Sequence[tuple[int, int]],
    extra: dict[str, list[Any]],
    title: str,
    signs: Sequence[int] | None = None,
) -> Table:
    """Return a table of memories and the tokens that they promote at these signs (positive when None)."""
    signs = [1] * len(memories) if signs is None else signs
    poles = {"pole": ["negative" if sign < 0 else "positive" for sign in signs]}
    columns = {
        "layer": [layer for layer, _ in memories],
        "index": [index for _, index in memories],
        **(poles if any(lm.is_signed(n) for n in lm.memory_layers) else {}),
        **extra,
        "top_tokens": [Values(lm).top_tokens(*m, 10, bottom=sign < 0) for m, sign in zip(memories, signs, strict=True)],
    }
    return Table(title, columns, lm.provenance(basis=basis_or_default(lm, None, "raw")))


def first_order(lm: Decoder, rows: Int[Tensor, "row pos"], to: float) -> Float[Tensor, "layer d_mlp"]:
    """Estimate, for each memory alone, how its coefficient set to `to` changes a text's surprisal, in nats per token.

    The first-order estimate is the sum over positions of (to - m) times the derivative of the mean loss by the
    coefficient m. One forward and backward pass gives it for all memories.

    Memory: the activations of 1,024 tokens with their gradients.
    """
    points = [("coefficients", layer) for layer in lm.memory_layers]
    total = torch.zeros(lm.n_layers, max(map(lm.n_memories_of, lm.memory_layers)), dtype=torch.float32)
    scored = rows.shape[0] * (rows.shape[1] - 1)
    for ids in rows.to(lm.device).split(max(1, 1024 // rows.shape[1])):
        own: dict[tuple[str, int], Tensor] = {}
        with torch.enable_grad(), attach_hooks(lm, {}) as current, on_the_graph(lm, points, own, current):
            logits = lm.hf(ids, **cache_argument(lm), **current.arguments).logits[:, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
            grads = torch.autograd.grad(loss, [own[point] for point in points])
        for point, grad in zip(points, grads, strict=True):
            change = ((to - own[point].detach()) * grad).flatten(0, -2).sum(0).float().cpu()
            total[point[1], : len(change)] += change / scored
    return total


def greedy(
    lm: Decoder,
    unwanted: Int[Tensor, "unwanted unwanted_pos"],
    clean: Int[Tensor, "clean clean_pos"],
    *,
    wanted: Int[Tensor, "wanted wanted_pos"] | None = None,
    n: int = 10,
    budget: float = 0.17,
    strengths: Sequence[float] = (ON, 2 * ON, 4 * ON),
    tried: int = 12,
    progress: Callable[[int, int], None] | None = None,
) -> Selection:
    """Select memories and coefficients that make unwanted text less probable, one by one, within a limit on perplexity.

    All memories are ranked with every coefficient in `strengths` by a first-order estimate of their gain. Each step
    measures the next `tried` candidates of this ranking exactly. Of those that raise the clean text's surprisal by no
    more than this step's share of the budget, it selects the one with the largest gain. The gain is the increase of the
    unwanted text's surprisal minus that of the wanted text, in nats per token.

    Args:
        unwanted: windows of text to make less probable, such as toxic comments.
        clean: windows of text whose perplexity should not increase.
        wanted: windows of text like `unwanted` but not toxic, such as other comments, so that only toxicity counts.
        n: largest number of memories to select.
        budget: largest relative increase of the clean text's perplexity; the paper's ten memories increase it by 0.17
            (from 21.7 to 25.3).
        strengths: coefficients to try. A negative one suppresses a value vector's top tokens, which the paper did not
            do.
        tried: number of candidates to measure exactly in each step.
        progress: called with the number of steps done and their total.

    Returns:
        The edits, and a table with one row for each step. There are fewer than n edits if no further one helps within
        the budget.
    """
    lm = require_decoder(lm)
    base = {name: _nats(lm, rows) for name, rows in _named(unwanted, clean, wanted)}
    curve = [_row(0, None, base, base)]
    edits: list[Edit] = []
    ranked = _ranked(lm, unwanted, clean, wanted, strengths, tried * n)
    while len(edits) < n and ranked:
        step = len(edits) + 1
        allowed = math.log1p(budget) * step / n
        best: tuple[float, Edit, dict] | None = None
        for edit in ranked[:tried]:
            found = {name: _nats(lm, rows, [*edits, edit]) for name, rows in _named(unwanted, clean, wanted)}
            row = _row(step, edit, found, base)
            if row["price_nats"] <= allowed and _gain(row) > max(_gain(curve[-1]), best[0] if best else -math.inf):
                best = (_gain(row), edit, row)
        if best is None:
            # None of the measured candidates is within the budget and raises the gain, so the next ones are measured.
            ranked = ranked[tried:]
            continue
        edits.append(best[1])
        curve.append(best[2])
        ranked = [e for e in ranked if (e.layer, e.index) != (best[1].layer, best[1].index)]
        if progress is not None:
            progress(step, n)
    columns = {name: [row[name] for row in curve] for name in curve[0]}
    columns["perplexity"] = [math.exp(base["clean"] + row["price_nats"]) for row in curve]
    title = f"Values chosen greedily within {format_percent(budget, 0)} of perplexity"
    return Selection(tuple(edits), Table(title, columns, lm.provenance(notes={"budget": budget})))


def _named(unwanted: Tensor, clean: Tensor, wanted: Tensor | None) -> list[tuple[str, Tensor]]:
    named = [("unwanted", unwanted), ("clean", clean)]
    return named if wanted is None else [*named, ("wanted", wanted)]


def _nats(lm: Decoder, rows: Tensor, edits: Sequence[Edit] = ()) -> float:
    return math.log(perplexity(lm, rows, edits))


def _row(step: int, edit: Edit | None, found: dict[str, float], base: dict[str, float]) -> dict:
    return {
        "step": step,
        "layer": None if edit is None else edit.layer,
        "index": None if edit is None else edit.index,
        "coefficient": None if edit is None else edit.value,
        "unwanted_nats": found["unwanted"] - base["unwanted"],
        "wanted_nats": found["wanted"] - base["wanted"] if "wanted" in found else None,
        "price_nats": found["clean"] - base["clean"],
    }


def _gain(row: dict) -> float:
    return row["unwanted_nats"] - (row["wanted_nats"] or 0.0)


def _ranked(
    lm: Decoder, unwanted: Tensor, clean: Tensor, wanted: Tensor | None, strengths: Sequence[float], top: int
) -> list[Edit]:
    """Return candidate edits by their first-order estimate of gain minus cost, best first."""
    found = []
    for to in strengths:
        gain = first_order(lm, unwanted, to) - first_order(lm, clean, to).clamp_min(0)
        if wanted is not None:
            gain -= first_order(lm, wanted, to)
        best = gain.flatten().topk(min(top, gain.numel()))
        found += [
            (v, divmod(i, gain.shape[1]), to) for v, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
    found.sort(key=lambda row: -row[0])
    return [set_coefficient(layer, index, to) for value, (layer, index), to in found if value > 0]
