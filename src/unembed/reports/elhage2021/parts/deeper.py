"""The paper's claims about models of one or two layers, restated for deeper models.

The restated claims are not in the paper, so each finding is marked as an extension and has its own test. A deep model
has many heads. The tests therefore look for heads that do what the paper describes, compare them with the other heads
of their layers, and measure what removing them changes. Sums over paths treat the model as linear on the given text:
attention patterns, norm scales and the outputs of FFNs are fixed at their values in the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.attention.behaviour.head_scores import KINDS, ROLE
from unembed.attention.behaviour.in_context import in_context, matched_heads
from unembed.document.intervals import mean_of, paired_difference, rank_correlation
from unembed.document.model import EXTENSION
from unembed.document.numbers import format_interval, percent, signed
from unembed.names import head_name
from unembed.reports.elhage2021.measurements import Measure, Measurements, beyond
from unembed.reports.elhage2021.parts import one_layer, paths
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, above, judged, judged_if, once
from unembed.results import format_error, format_percent, format_setting, format_signed
from unembed.stream.decomposition import tolerance

FEW = 3
"""Smallest number of heads for which a mean over heads is judged."""
MORE = 1.25
"""Factor by which the share of confirmed triples must exceed that with shuffled sources.

An excess that is merely significant is no clear result, because with many heads even a tiny one is significant.
"""
WINDOWS = 24
"""Largest number of windows of text on which the loss without copying heads is measured."""


def _copies(m: Measurements) -> Bool[Tensor, "layer head"]:
    """Return a mask of the heads whose OV eigenvalues give a copying score of at least `one_layer.COPIES`."""
    return m.copying.score.nan_to_num(-1.0) >= one_layer.COPIES


@once
def copying_in_runs(m: Measurements) -> Numbers:
    """Compare how much copying heads, and the other heads of their layers, raise the token that they attend to."""
    effects, copies = m.scores.by_sequence[KINDS.index("copying")], _copies(m)
    known = ~effects.isnan().any(dim=0)
    lead: list[Float[Tensor, " sequence"]] = []
    for layer in range(m.lm.n_layers):
        own, others = (effects[:, layer, side & known[layer]] for side in (copies[layer], ~copies[layer]))
        if own.shape[1] and others.shape[1]:
            lead.append(own.mean(dim=1) - others.mean(dim=1))
    scores, mean = m.copying.score, effects.mean(dim=0)
    best = int(mean.masked_fill(~(copies & known), -torch.inf).argmax())
    return Numbers(
        best=(*divmod(best, mean.shape[1]), float(mean.flatten()[best])),
        copies=int(copies.sum()),
        heads=int((~scores.isnan()).sum()),
        most=float(scores.nan_to_num(-1.0).max()),
        layers=len(lead),
        effect=mean_of(effects[:, copies & known].mean(dim=1).tolist(), seed=m.seed),
        lead=mean_of(torch.stack(lead).mean(dim=0).tolist() if lead else [], seed=m.seed),
    )


def judge_copying_in_runs(n: Numbers) -> Judgement:
    """Judge whether heads whose weights suggest copying also copy in forward passes."""
    if not n.copies:
        return judged(
            f"No head has a copying score of {format_setting(one_layer.COPIES)}; the largest is "
            f"{format_signed(n.most)}.",
            False,
        )
    return judged(
        f"{n.copies} of {n.heads} heads have a copying score of at least {format_setting(one_layer.COPIES)}. On "
        f"repeated random tokens they add {signed(n.effect)} to the logit of the token that they attend to most, "
        f"above the mean of all tokens, {head_name(*n.best[:2])} most ({format_signed(n.best[2])}); that is "
        f"{signed(n.lead)} more than the other heads of their layers add, mean of {n.layers} layers.",
        above(n.effect, 0.0),
        above(n.lead, 0.0),
    )


def explain_copying_in_runs(m: Measurements) -> str:
    """State how copying scores correlate with effects in runs, and how much heads attend to the first token."""
    effects, scores = m.scores.copying, m.copying.score
    known, copies = ~(effects.isnan() | scores.isnan()), _copies(m)
    agrees = rank_correlation(scores[known].double().numpy(), effects[known].double().numpy(), seed=m.seed)
    resting, others = (float(m.scores.resting[side & known].mean()) for side in (copies, ~copies))
    return (
        f"Over {int(known.sum())} heads the rank correlation of copying score and effect in runs is "
        f"{format_interval(agrees)}; on these sequences copying heads give {format_percent(resting)} of their "
        f"attention to the first token, the others {format_percent(others)}."
    )


@once
def skip_trigrams(m: Measurements) -> Numbers:
    """Measure the share of triples whose output is likelier after the source, and the share with shuffled sources."""
    own, shuffled, layers = [], [], []
    for found in m.skip_trigrams:
        gains, controls = (one_layer.likelier(counts) for counts in (found.counts, found.shuffled))
        if gains and controls:
            own.append(float(np.mean(gains)))
            shuffled.append(float(np.mean(controls)))
            layers.append(found.layer)
    return Numbers(
        layers=layers,
        own=mean_of(own, seed=m.seed),
        shuffled=mean_of(shuffled, seed=m.seed),
        gain=mean_of([a - MORE * b for a, b in zip(own, shuffled, strict=True)], seed=m.seed),
        better=sum(a > b for a, b in zip(own, shuffled, strict=True)),
    )


def judge_skip_trigrams(n: Numbers) -> Judgement:
    """Judge whether the corpus confirms more of the heads' triples than of the triples with shuffled sources."""
    return judged(
        f"Of the largest triples of a head, through what the layers below make of each token, the output is likelier "
        f"after the source in {percent(n.own)}, with the sources shuffled among the triples in {percent(n.shuffled)}, "
        f"means of {n.gain.n} heads in {len({*n.layers})} layers; {n.better} heads are above their shuffled triples.",
        above(n.gain, 0.0) if n.gain.n >= FEW else None,
    )


@once
def bugs(m: Measurements) -> Numbers | None:
    """Count the pairs (destination, output) that each head raises after the source of its highest-scoring triple.

    Two kinds of pairs are counted: pairs that occur in the corpus, compared with random tokens of similar frequency;
    and crossed pairs. A crossed pair never occurs in the corpus, although its destination occurs with another of the
    outputs, and its output with another of the destinations.
    """
    raised = [found for found in m.skip_trigrams if found.triples]
    if not raised:
        return None
    found = [one_layer.pairs_after(m, head, head.triples[0].source) for head in raised]
    return Numbers(
        gain=mean_of([table.occurring - chance for table, chance, _ in found], seed=m.seed),
        crossed=mean_of([len(table.pairs) for table, *_ in found], seed=m.seed),
    )


def judge_bugs(n: Numbers) -> Judgement:
    """Judge whether heads raise pairs that occur in the corpus and, as a side effect, crossed pairs (see `bugs`)."""
    return judged(
        f"After the source of its largest triple a head raises {signed(n.gain)} more pairs that occur than tables of "
        f"random tokens of the same frequencies have, mean of {n.gain.n} heads, and {format_interval(n.crossed)} "
        "crossed pairs that never occur.",
        *((above(n.gain, 0.0), above(n.crossed, 0.0)) if n.gain.n >= FEW else (None,)),
    )


@once
def without_copying(m: Measurements) -> Numbers | None:
    """Measure how the loss of repeated and of new tokens rises without the heads that copy most.

    The control removes as many other heads of the same layers, whose outputs have the most similar norms. The result is
    None if the documents are too short.
    """
    whole = m.loss_in_context
    if whole is None:
        return None
    scores = m.copying.score.nan_to_num(-1.0).flatten()
    most = max(1, int((~m.copying.score.isnan()).sum()) // 10)
    order = scores.argsort(descending=True)[: min(most, int(_copies(m).sum()))].tolist()
    heads = [divmod(i, m.copying.score.shape[1]) for i in order]
    if not heads:
        return Numbers(heads=(), others=())
    count = min(WINDOWS, whole.n_windows)
    others = matched_heads(m.output_lengths, heads)
    with_all = [whole.losses_of(repeated)[:count].numpy() for repeated in (True, False)]

    def rises(chosen: list[tuple[int, int]]) -> list[Float[np.ndarray, " window"]]:
        found = in_context(m.lm, m.corpus, chosen, window=whole.window, max_windows=count)
        return [found.losses_of(repeated).numpy() - own for repeated, own in zip((True, False), with_all, strict=True)]

    own, control = rises(heads), rises(others) if others else None
    lead = own[0] - own[1]
    return Numbers(
        heads=tuple(heads),
        others=tuple(others),
        repeated=mean_of(own[0], seed=m.seed),
        new=mean_of(own[1], seed=m.seed),
        lead=mean_of(lead, seed=m.seed),
        beyond=None if control is None else paired_difference(lead, control[0] - control[1], seed=m.seed),
    )


def judge_without_copying(n: Numbers) -> Judgement:
    """Judge whether copying heads lower the loss of repeated tokens more than that of new tokens."""
    if not n.heads:
        return judged("No head copies by its eigenvalues, so none is removed.", False)
    here = (
        f"Without the {len(n.heads)} heads that copy most by weights, the loss of next tokens that occurred earlier in "
        f"the window rises by {signed(n.repeated)} nats and that of new ones by {signed(n.new)}, a difference of "
        f"{signed(n.lead)}"
    )
    if n.beyond is None:
        return Judgement(f"{here}; their layers have no other heads to compare with.", "not applicable")
    return judged(
        f"{here}; {signed(n.beyond)} more than without as many heads of the same layers, nearest in output length.",
        *((above(n.lead, one_layer.REPEATED), above(n.beyond, 0.0)) if n.lead.n >= FEW else (None,)),
    )


def explain_without_copying(m: Measurements) -> str:
    """State how many induction heads are among the removed heads, and how much these raise the token they attend to."""
    n = without_copying(m)
    removed = () if n is None else n.heads
    induces = {(e.layer, e.head) for e in m.evidence if e.induction >= ROLE}
    added = float(np.mean([float(m.scores.copying[place]) for place in removed])) if removed else 0.0
    return (
        f"{len(induces & set(removed))} of the {len(induces)} heads that attend to what followed an earlier occurrence "
        f"are among the {len(removed)} removed ones, which add {format_signed(added)} on average to the logit of the "
        f"token that they attend to on repeated random tokens (all heads: "
        f"{format_signed(float(m.scores.copying.nanmean()))})."
    )


def linear_expansion(m: Measurements) -> Numbers | None:
    """Return the error of the sum over paths with patterns, norm scales and FFN outputs fixed.

    None if the sum is exact without fixing them.
    """
    found = m.expansion
    if found.exact:
        return None
    return Numbers(error=found.error, n_terms=len(found), limit=tolerance(m.lm))


def judge_linear_expansion(n: Numbers) -> Judgement:
    """Judge whether the sum over paths, with the nonlinear steps fixed, equals the model's logits."""
    return judged(
        f"{n.n_terms:,} terms and the remainder give all logits with a relative error of {format_error(n.error)}, "
        "with attention patterns, norm scales and the outputs of parts other than attention fixed.",
        n.error < n.limit,
    )


def judge_virtual_heads(n: Numbers) -> Judgement:
    """Judge whether paths through one head lower the loss more than paths through several heads."""
    single = n.reductions[0]
    return judged_if(
        max(single, n.above_one) >= paths.MATTERS,
        f"In the linear model of the run, single heads take {format_signed(single)} nats off the loss, and all paths "
        f"through two or more heads {format_signed(n.above_one)}.",
        single > 2 * n.above_one,
    )


def explain_virtual_heads(m: Measurements) -> str:
    """State how many pairs of heads the model has, and by how much paths through exactly two heads lower the loss."""
    n = paths.term_importance(m)
    heads = [m.lm.structure.blocks[layer].attention.n_heads for layer in m.lm.attention_layers]
    pairs = (sum(heads) ** 2 - sum(h**2 for h in heads)) // 2
    two = "" if n is None else f"; paths through exactly two heads take {format_signed(n.reductions[1])} nats off"
    return f"{sum(heads)} heads in {len(heads)} layers form {pairs:,} pairs{two}."


def judge_later_layers(n: Numbers) -> Judgement:
    """Judge whether the heads of the later half of the layers lower the loss more than those of the earlier half."""
    known = list(n.given_others.items())
    half = len(known) // 2
    early, late = (sum(value for _, value in side) for side in (known[:half], known[half:]))
    return judged_if(
        max(early, late) >= paths.MATTERS,
        f"Taken away layer by layer, in the linear model of the run, the single heads of layers {known[half][0]} to "
        f"{known[-1][0]} raise the loss by {format_signed(late)} nats in all, those of layers {known[0][0]} to "
        f"{known[half - 1][0]} by {format_signed(early)}.",
        late > 2 * early,
    )


@once
def read_by_induction_heads(m: Measurements) -> Numbers:
    """Compare how much induction heads compose with previous-token heads, and with other heads of the same layers."""
    m.require_earlier_heads("composition")
    previous, induces = (m.scores[kind].nan_to_num(0.0) >= ROLE for kind in ("previous_token", "induction"))
    excess: dict[str, dict[tuple[int, int], list[float]]] = {mode: {} for mode in m.compositions}
    first, pairs = 0, 0
    for b, k in induces.nonzero().tolist():
        for a in range(b):
            for mode, ratios in m.compositions.items():
                row = ratios[a, :, b, k]
                own, others = row[previous[a]], row[~previous[a]]
                others = others[~others.isnan()]
                if not len(own) or not len(others) or bool(own.isnan().any()):
                    continue
                excess[mode].setdefault((b, k), []).extend((own - others.mean()).tolist())
                if mode == "k":
                    first, pairs = first + int((own > others.max()).sum()), pairs + len(own)
    means = {mode: {at: float(np.mean(values)) for at, values in of.items()} for mode, of in excess.items()}
    return Numbers(
        n_previous=int(previous.sum()),
        n_induction=int(induces.sum()),
        first=first,
        pairs=pairs,
        excess={mode: mean_of(list(of.values()), seed=m.seed) for mode, of in means.items()},
        over={
            mode: mean_of([means["k"][at] - value for at, value in of.items() if at in means["k"]], seed=m.seed)
            for mode, of in means.items()
        },
    )


def _no_pair(n: Numbers) -> Judgement | None:
    if n.pairs:
        return None
    here = f"{n.n_previous} heads attend to the previous token and {n.n_induction} to what followed; no pair composes."
    return judged(here, False)


def judge_read_by_keys(n: Numbers) -> Judgement:
    """Judge whether induction heads have K-composition with previous-token heads."""
    return _no_pair(n) or judged(
        f"The keys of {n.excess['k'].n} induction heads read the previous-token heads below them with a ratio "
        f"{signed(n.excess['k'])} above that of the other heads of the same layers. In {n.first} of {n.pairs} pairs "
        "the previous-token head is read more than each of those.",
        above(n.excess["k"], 0.0) if n.excess["k"].n >= FEW else None,
    )


def judge_rather_than(n: Numbers, mode: str, reads: str) -> Judgement:
    """Judge whether K-composition of induction heads with previous-token heads exceeds that of `mode` (q or v)."""
    return _no_pair(n) or judged(
        f"Above the other heads of the same layers, the {reads} of induction heads read previous-token heads with a "
        f"ratio of {signed(n.excess[mode])}, {signed(n.over[mode])} less than their keys do.",
        above(n.over[mode], 0.0) if n.over[mode].n >= FEW else None,
    )


def extension(
    of: Quantity[Measurements],
    measure: Measure,
    judge: Callable[[Numbers], Judgement | None],
    *,
    claim: str,
    what: str,
    test: str,
    layers: int,
    explain: Callable[[Measurements], str | None] = lambda _: None,
) -> Quantity[Measurements]:
    """Return a quantity that restates a published claim for models with more layers than the paper's model.

    Args:
        of: the published claim.
        layers: the number of layers of the paper's model; only models with more layers are judged.
    """
    name = f"{of.name} in deeper models"
    return Quantity(
        name, claim, where=of.where, what=what, published=EXTENSION, test=test, measure=beyond(measure, layers),
        judge=judge, explain=explain,
    )  # fmt: skip


_OF = {q.name: q for part in (*one_layer.PARTS, *paths.PARTS) for q in part.quantities}


def _rather_than(mode: str, reads: str) -> Quantity[Measurements]:
    return extension(
        _OF[f"{mode.upper()}-composition"],
        read_by_induction_heads,
        lambda n: judge_rather_than(n, mode, reads),
        claim=f"Induction heads read previous-token heads through their keys rather than through their {reads}.",
        what=f"The excess of the keys' Frobenius ratio, as above, less that of the {reads}.",
        test="The mean over induction heads is above 0, with its interval.",
        layers=2,
    )


_EXTENSIONS: Mapping[str, tuple[Quantity[Measurements], ...]] = {
    "copying": (
        extension(
            _OF["copying"],
            copying_in_runs,
            judge_copying_in_runs,
            claim="There are heads that copy by the eigenvalues of their OV circuits, and in runs they raise the token "
            "that they attend to more than other heads do.",
            what="Direct effect on the logit of the token attended to most, on repeated random tokens, of heads with a "
            f"copying score of at least {format_setting(one_layer.COPIES)}, and of the other heads of their layers.",
            test="There is such a head; their mean effect is above 0 and above that of the other heads, with intervals "
            "over sequences.",
            layers=1,
            explain=explain_copying_in_runs,
        ),
    ),
    "skip-trigrams": (
        extension(
            _OF["skip-trigrams"],
            skip_trigrams,
            judge_skip_trigrams,
            claim="Skip-trigrams can be read off the weights of the heads of every layer, through what the layers "
            "below make of a single token.",
            what="Share of each head's largest triples whose output is likelier with the source, and the same with "
            "shuffled sources.",
            test=f"The mean share is more than {format_setting(MORE)} times that of shuffled sources, with its "
            "interval over heads.",
            layers=1,
        ),
    ),
    "skip-trigram bugs": (
        extension(
            _OF["bugs"],
            bugs,
            judge_bugs,
            claim="Heads of every layer raise crossed pairs that never occur with the pairs that do.",
            what="Occurring and crossed pairs after one source for every head, among the 20 destinations and 20 "
            "outputs that it raises most.",
            test="Heads raise more occurring pairs than tables of random tokens of the same frequencies, with the "
            "interval over heads, and crossed pairs with them.",
            layers=1,
        ),
    ),
    "primitive in-context learning": (
        extension(
            _OF["primitive in-context learning"],
            without_copying,
            judge_without_copying,
            claim="Removing the heads that copy makes tokens that occurred earlier harder to predict, more than new "
            "ones.",
            what="Loss without the heads of the largest copying scores (at most a tenth of all) less the model's own, "
            "of next tokens that occurred earlier and of new ones.",
            test=f"The difference is above {format_setting(one_layer.REPEATED)} nats, and above that without as many "
            "heads of the same layers whose output is nearest in length, both with intervals over windows.",
            layers=1,
            explain=explain_without_copying,
        ),
    ),
    "path expansion": (
        extension(
            _OF["path expansion"],
            linear_expansion,
            judge_linear_expansion,
            claim="In the linear model of a run the logits are a sum over paths through heads.",
            what="Relative error of the sum of all terms and the remainder, with patterns, norm scales and FFN outputs "
            "fixed.",
            test="The error is below the tolerance of the model's dtype (1e-4 in float32). An identity: random weights "
            "pass it too.",
            layers=0,
        ),
    ),
    "term importance": (
        extension(
            _OF["virtual heads"],
            paths.term_importance,
            judge_virtual_heads,
            claim="In the linear model of a run, the paths through two or more heads take much less off the loss than "
            "single heads.",
            what="Loss of the single heads of all layers, and of the model, whose paths have every order.",
            test="All orders above 1 together take off less than half of what order 1 does, where either takes off at "
            f"least {format_setting(paths.MATTERS)} nats; below, heads do nothing that could be compared.",
            layers=2,
            explain=explain_virtual_heads,
        ),
        extension(
            _OF["second layer"],
            paths.term_importance,
            judge_later_layers,
            claim="Of the single heads of a deep model, those of the later half of the layers matter most.",
            what="Loss without the single heads of one layer, those of the others present, summed over the layers of "
            "each half.",
            test="The later half's sum is more than twice the earlier half's, where either is at least "
            f"{format_setting(paths.MATTERS)} nats.",
            layers=2,
        ),
    ),
    "composition": (
        extension(
            _OF["K-composition"],
            read_by_induction_heads,
            judge_read_by_keys,
            claim="The keys of induction heads read previous-token heads more than the other heads of the same layers.",
            what="Frobenius ratio of every previous-token head with every later induction head's keys, less the mean "
            f"of the other heads of the earlier layer; both kinds of heads from {format_percent(ROLE, 0)} attention "
            "on.",
            test="The mean over induction heads is above 0, with its interval. Other heads of the same layers are the "
            "control, because in a deep model nearly all pairs compose more than random circuits.",
            layers=2,
        ),
        _rather_than("q", "queries"),
        _rather_than("v", "values"),
    ),
}


def with_extensions(part: Part[Measurements]) -> Part[Measurements]:
    """Return the part with further quantities, which extend its claims to deeper models."""
    return replace(part, quantities=(*part.quantities, *_EXTENSIONS.get(part.name, ())))
