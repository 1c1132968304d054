"""Ablation over a corpus: the rise of the loss, over all tokens and for each, with intervals.

Every ablation is made on the same tokens as the unchanged model, so each prediction is compared with itself. Intervals
are percentile bootstraps over segments (sentences or windows), which are what was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from unembed.causality.ablation_sources import Source, up_to
from unembed.causality.ablation_targets import Group
from unembed.causality.corpus_means import corpus_means, first_batches
from unembed.causality.ranked import ranked
from unembed.causality.replaced_pass import Changes, record_outputs, replaced_pass
from unembed.corpus import Corpus
from unembed.corpus.segments import Batch
from unembed.errors import InvalidInput, NotFinite, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import AblatedTo
from unembed.results import Displayed, Provenance, Table
from unembed.stream.capture_points import ForwardPass
from unembed.stream.hooks import Callback, memory_guard
from unembed.stream.interventions import Edits, as_edits
from unembed.stream.run import forward_arguments
from unembed.sweeps.reducers.reducer import Need
from unembed.validation import positive_int, valid_seed


@dataclass(frozen=True, eq=False, repr=False)
class CorpusAblation(Displayed):
    """The change of the loss by each ablation, for every predicted token.

    Attributes:
        labels: what was ablated, such as "L5H3".
        loss: of the unchanged model, in nats a token.
        changes: by how much each prediction's loss rises, in nats.
        tokens: the token that is predicted.
        segments: the segment of each prediction, counted from 0.
        to: what replaced the activations, in words.
        seed: of the bootstrap and of resampling.
        texts: of the tokens that are predicted, by id.
    """

    labels: tuple[str, ...]
    loss: float
    changes: Float[Tensor, "ablation prediction"]
    tokens: Int[Tensor, " prediction"]
    segments: Int[Tensor, " prediction"]
    to: str
    seed: int
    texts: dict[int, str]
    provenance: Provenance

    @property
    def effects(self) -> Float[Tensor, " ablation"]:
        """By how much the mean loss rises, in nats a token."""
        return self.changes.double().mean(dim=1)

    @property
    def intervals(self) -> Float[Tensor, "ablation 2"]:
        """The 95 % interval of each effect; NaN with fewer than two segments."""
        return _intervals(self.changes, self.segments, self.seed)

    def to_table(self) -> Table:
        """One row for each ablation, the largest change first."""
        low, high = self.intervals.T
        columns = {"ablated": self.labels, "loss_change": self.effects, "low": low, "high": high}
        title = (
            f"Ablation to {self.to}: change of the loss ({self.loss:.4g} nats a token), 95 % intervals over segments"
        )
        return ranked(title, columns, self.effects, self.provenance)

    def by_token(self, ablated: str | int = 0, least: int = 5) -> Table:
        """How an ablation changes the loss of each predicted token, the largest change first.

        Args:
            ablated: a label, or its number.
            least: leave out tokens that are predicted less often.

        Raises:
            InvalidInput: nothing of this label was ablated.
        """
        i = self.labels.index(ablated) if isinstance(ablated, str) and ablated in self.labels else ablated
        if not isinstance(i, int) or not 0 <= i < len(self.labels):
            raise InvalidInput(
                f"ablation {ablated!r}", why="it was not computed", instead=f"Use {self.labels[0]!r}, ..."
            )
        ids, counts = self.tokens.unique(return_counts=True)
        often = counts >= positive_int("least", least)
        ids, counts = ids[often], counts[often]
        at = [self.tokens == token for token in ids]
        changes = torch.stack([self.changes[i, one].double().mean() for one in at]) if at else torch.zeros(0)
        found = [_intervals(self.changes[i : i + 1, one], self.segments[one], self.seed)[0] for one in at]
        columns = {
            "token": [self.texts[token] for token in ids.tolist()],
            "times": counts,
            "loss_change": changes,
            "low": [float(one[0]) for one in found],
            "high": [float(one[1]) for one in found],
        }
        title = f"Ablating {self.labels[i]} to {self.to}: change of the loss by predicted token, nats"
        return ranked(title, columns, changes, self.provenance)


def _intervals(
    changes: Float[Tensor, "ablation prediction"], segments: Int[Tensor, " prediction"], seed: int
) -> Float[Tensor, "ablation 2"]:
    """95 % intervals of the mean over predictions; NaN with fewer than two segments."""
    if len(segments.unique()) < 2:
        return torch.full((len(changes), 2), float("nan"), dtype=torch.float64)
    from unembed.document.intervals import mean_of  # 20 ms: only where it is needed

    found = [mean_of(row, units=segments.numpy(), seed=seed) for row in changes.numpy()]
    return torch.tensor([(one.low, one.high) for one in found], dtype=torch.float64)


@torch.no_grad()
def ablate_corpus(
    lm: Decoder,
    corpus: Corpus,
    groups: Sequence[Group],
    to: AblatedTo | Sequence[str],
    n_tokens: int,
    mean_tokens: int,
    by_position: bool,
    seed: int,
    edits: Edits,
    tokens_per_batch: int,
) -> CorpusAblation:
    """Ablate groups one at a time over a corpus and compare the loss of every predicted token; see `ablate`."""
    if to not in ("zero", "mean", "resample"):
        raise InvalidInput(f"ablation to {to!r:.60}", why='over a corpus it is "zero", "mean" or "resample"')
    seed = valid_seed(seed)
    needs = sorted({(point, layer) for group in groups for point, layer, _ in group.targets})
    words, means = "zero", Source()
    if to == "mean":
        numbers = corpus_means(lm, corpus, needs, max(positive_int("mean_tokens", mean_tokens), n_tokens), by_position)
        means, words = Source(numbers, by_position), "the mean" + (" by position" if by_position else "")
    elif to == "resample":
        words = "activations of other segments"
    generator = torch.Generator().manual_seed(seed)
    pool: list[dict[Need, Tensor]] = []
    losses: list[Tensor] = []
    changes: list[Tensor] = []
    tokens: list[Tensor] = []
    segments: list[Tensor] = []
    for batch in first_batches(
        lm, corpus, positive_int("n_tokens", n_tokens), positive_int("tokens", tokens_per_batch)
    ):
        rerun = _BatchRerun(lm, batch, edits, needs if to == "resample" else ())
        if not rerun.n_predicted:
            continue
        sources: list[Source] | None = None
        if to == "resample":
            pool = [*rerun.rows(), *(pool if len(batch.lengths) == 1 else [])]
            if len(pool) == 1:
                continue  # a first batch of one segment, which the next one can draw from
            sources = _resampled(pool, len(batch.lengths), batch.shape[1], generator)
        elif by_position:
            sources = [_cut(means, batch.shape[1], corpus.name)] * len(batch.lengths)
        losses.append(rerun.loss)
        changes.append(torch.stack([rerun.ablated(g, sources or [means] * len(batch.lengths)) for g in groups]))
        changes[-1] -= rerun.loss
        tokens.append(rerun.predicted)
        segments.append(rerun.segments)
    if not losses:
        if pool:
            raise Unsupported("resampling over this corpus", why="it has one segment", instead="Ablate to the mean")
        raise InvalidInput("the loss over this corpus", why="no segment has a token after another")
    predicted = torch.cat(tokens)
    ids, numbered = predicted.unique().tolist(), torch.cat(segments).unique(return_inverse=True)[1]
    notes = {"ablated_to": words, "predictions": len(predicted), "segments": int(numbered.max()) + 1}
    return CorpusAblation(
        tuple(group.label for group in groups),
        float(torch.cat(losses).double().mean()),
        torch.cat(changes, dim=1),
        predicted,
        numbered,
        words,
        seed,
        dict(zip(ids, lm.token_strings(ids), strict=True)),
        lm.provenance(corpus=corpus.name, seed=seed, notes=notes),
    )


class _BatchRerun:
    """An unchanged run of a padded batch, and reruns of it under ablations that start at the first layer changed."""

    def __init__(self, lm: Decoder, batch: Batch, edits: Edits, needs: Sequence[Need]) -> None:
        """Run the batch once; store the stream entering every block, and the activations of `needs`."""
        self.lm, self.batch, self.edits = lm, batch, as_edits(edits)
        self.tokens = batch.tokens.to(lm.device)
        wanted = batch.counted & (batch.next_tokens >= 0)
        self._wanted = wanted.to(lm.device)
        self.predicted = batch.next_tokens[wanted]
        self.segments = batch.segments[:, None].expand(batch.shape)[wanted]
        self.n_predicted = int(wanted.sum())
        self.captured: dict[Need, Tensor] = {}
        self._skips = True

        def capture_at(need: Need) -> Callback:
            return lambda t: self.captured.__setitem__(need, t.clone())

        entering = [("resid_pre", n) for n in range(lm.n_layers)]
        captures = {need: capture_at(need) for need in dict.fromkeys([*entering, *needs])}
        self._needs = tuple(needs)
        with replaced_pass(lm, (), self.edits, captures) as current, ExitStack() as stack:
            self._outputs = record_outputs(stack, lm)
            self.loss = self._loss(current)
        self._skips = self._can_skip()

    def _can_skip(self) -> bool:
        """Whether starting at the last layer gives the same losses."""
        if self.lm.structure.streams is not None:
            return False  # the captured tensor is the sum of the streams, not what passes from block to block
        if self.lm.n_layers == 1 or not self.n_predicted:
            return True
        found = self._changed(self.lm.n_layers - 1, ())
        return float((found - self.loss).abs().max()) <= 1e-5 * max(1.0, float(self.loss.abs().max()))

    def _changed(self, start: int, changes: Changes) -> Float[Tensor, " prediction"]:
        """The losses of a pass with replacements from one layer on."""
        start = start if self._skips else 0
        entering = (lambda _t: self.captured["resid_pre", start].clone()) if start else None
        passes = replaced_pass(self.lm, changes, self.edits, skipped=self._outputs[:start], entering=entering)
        with passes as current:
            return self._loss(current)

    def _loss(self, current: ForwardPass) -> Float[Tensor, " prediction"]:
        """The loss of every prediction, in float64 on the CPU."""
        mask = self.batch.mask.to(self.tokens)
        with memory_guard(f"a batch of {self.tokens.numel()} tokens"):
            logits = self.lm.hf(self.tokens, **forward_arguments(self.lm, mask), **current.arguments).logits
        targets = self.batch.next_tokens.to(logits.device)
        rows = [
            cross_entropy(one[chosen].double(), target[chosen], reduction="none")
            for one, target, chosen in zip(logits, targets, self._wanted, strict=True)
            if bool(chosen.any())
        ]
        loss = torch.cat(rows).cpu() if rows else torch.zeros(0, dtype=torch.float64)
        if not bool(loss.isfinite().all()):
            raise NotFinite(f"the loss of {self.lm.name}", why="its logits hold NaN or infinity under an ablation")
        return loss

    def ablated(self, group: Group, sources: Sequence[Source]) -> Float[Tensor, " prediction"]:
        """The losses without a group, each row with its own source."""
        changes = [(i, one.replacement(target)) for target in group.targets for i, one in enumerate(sources)]
        return self._changed(group.start, changes)

    def rows(self) -> list[dict[Need, Tensor]]:
        """The captured activations of each segment, without padding."""
        return [
            {need: self.captured[need][i, :length] for need in self._needs}
            for i, length in enumerate(self.batch.lengths.tolist())
        ]


def _resampled(pool: Sequence[dict[Need, Tensor]], n_rows: int, n_pos: int, generator: torch.Generator) -> list[Source]:
    """For each row of a batch, the activations of another segment; positions past its end are resampled from it."""
    sources = []
    for row in range(n_rows):
        other = int(torch.randint(len(pool) - 1, (), generator=generator))
        given = pool[other + (other >= row)]
        length = len(next(iter(given.values())))
        drawn = torch.randint(length, (n_pos,), generator=generator)
        columns = torch.arange(n_pos).where(torch.arange(n_pos) < length, drawn)
        sources.append(Source({need: t[columns.to(t.device)] for need, t in given.items()}, True))
    return sources


def _cut(means: Source, n_pos: int, corpus: str) -> Source:
    assert means.numbers is not None
    return Source({need: up_to(mean, n_pos, corpus) for need, mean in means.numbers.items()}, True)
