"""Ablation over a corpus: how much the loss rises, over all tokens and for each token, with confidence intervals.

Every ablation is measured on the same tokens as the unchanged model, so each prediction is compared with itself.
Confidence intervals are percentile bootstrap intervals. They resample segments (sentences or windows) and not tokens,
because the tokens of one segment are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.causality.ablation_sources import Source
from unembed.causality.ablation_targets import Group
from unembed.causality.batch_rerun import BatchRerun
from unembed.causality.corpus_means import corpus_means, first_batches
from unembed.causality.effect_order import ranked
from unembed.corpus import Corpus
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import AblatedTo
from unembed.results import Displayed, Provenance, Table, format_number
from unembed.stream.interventions import Edits
from unembed.sweeps.reducers.reducer import Need
from unembed.validation import positive_int, valid_seed


@dataclass(frozen=True, eq=False, repr=False)
class CorpusAblation(Displayed):
    """How much the loss of every predicted token changes with each ablation.

    Attributes:
        labels: what was ablated, such as "L5H3".
        loss: the loss of the unchanged model, in nats per token.
        changes: by how much each prediction's loss rises, in nats.
        tokens: the id of each predicted token.
        segments: the segment of each prediction, counted from 0.
        to: what replaced the activations, as text.
        seed: the seed of the bootstrap and of resampling.
        texts: the text of each predicted token, by its id.
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
        """How much the mean loss rises, in nats per token."""
        return self.changes.double().mean(dim=1)

    @property
    def intervals(self) -> Float[Tensor, "ablation 2"]:
        """The 95 % confidence interval of each effect (low, high); NaN with fewer than two segments."""
        return _intervals(self.changes, self.segments, self.seed)

    def to_table(self) -> Table:
        """Return a table with one row for each ablation, the largest change first."""
        low, high = self.intervals.T
        columns = {"ablated": self.labels, "loss_change": self.effects, "low": low, "high": high}
        title = (
            f"Ablation to {self.to}: change of the loss ({format_number(self.loss)} nats a token), 95 % intervals over "
            "segments"
        )
        return ranked(title, columns, self.effects, self.provenance)

    def by_token(self, ablated: str | int = 0, least: int = 5) -> Table:
        """Return a table of how one ablation changes the loss of each predicted token, the largest change first.

        Args:
            ablated: the ablation: its label, or its number in `labels`.
            least: leave out tokens that are predicted fewer times than this.

        Raises:
            InvalidInput: there is no such ablation.
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
    """Return the 95 % confidence interval of the mean over predictions; NaN with fewer than two segments."""
    if len(segments.unique()) < 2:
        return torch.full((len(changes), 2), float("nan"), dtype=torch.float64)
    from unembed.document.intervals import mean_of  # imported here because it takes 20 ms

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
    """Ablate groups one at a time over a corpus, and compare the loss of every predicted token; see `ablate`."""
    if to not in ("zero", "mean", "resample"):
        raise InvalidInput(f"to={to!r:.60}", why='over a corpus it must be "zero", "mean" or "resample"')
    seed = valid_seed(seed)
    needs = sorted({(point, layer) for group in groups for point, layer, _ in group.targets})
    words, means = "zero", Source()
    if to == "mean":
        found = corpus_means(lm, corpus, needs, max(positive_int("mean_tokens", mean_tokens), n_tokens), by_position)
        means, words = Source(found.numbers, by_position), found.in_words()
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
        rerun = BatchRerun(lm, batch, edits, needs if to == "resample" else ())
        if not rerun.n_predicted:
            continue
        sources: list[Source] | None = None
        if to == "resample":
            pool = [*rerun.rows(), *(pool if len(batch.lengths) == 1 else [])]
            if len(pool) == 1:
                continue  # no other segment to draw from yet; the next batch can draw from this one
            sources = _resampled(pool, len(batch.lengths), batch.shape[1], generator)
        elif by_position:
            sources = [means.up_to(batch.shape[1], corpus.name)] * len(batch.lengths)
        losses.append(rerun.loss)
        changes.append(torch.stack([rerun.ablated(g, sources or [means] * len(batch.lengths)) for g in groups]))
        changes[-1] -= rerun.loss
        tokens.append(rerun.predicted)
        segments.append(rerun.segments)
    if not losses:
        if pool:
            raise Unsupported(
                "resampling over this corpus",
                why="it has only one segment, and no other to draw from",
                instead="Ablate to the mean",
            )
        raise InvalidInput(
            "the loss over this corpus", why="no segment of it has two tokens or more, so no token is predicted"
        )
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


def _resampled(pool: Sequence[dict[Need, Tensor]], n_rows: int, n_pos: int, generator: torch.Generator) -> list[Source]:
    """Return, for each row of a batch, the activations of another segment, drawn at random.

    At positions past the end of that segment, activations come from random positions in it.
    """
    sources = []
    for row in range(n_rows):
        other = int(torch.randint(len(pool) - 1, (), generator=generator))
        given = pool[other + (other >= row)]
        length = len(next(iter(given.values())))
        drawn = torch.randint(length, (n_pos,), generator=generator)
        columns = torch.arange(n_pos).where(torch.arange(n_pos) < length, drawn)
        sources.append(Source({need: t[columns.to(t.device)] for need, t in given.items()}, True))
    return sources
