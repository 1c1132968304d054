"""Metrics of a prediction, which reduce the logits after the last token to one number for each row.

A metric is a function that takes logits (row, d_vocab) and returns one number for each row. Any such function can be
used. A `Metric` of this file is a description, which can name tokens by their texts; `Metric.bind` makes it a function
for one model, whose tokenizer gives the ids of these tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.results import quoted

MetricFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Metric:
    """A named metric; see `logit_difference`, `probability`, `log_probability` and `kl_divergence`."""

    kind: str
    token: str | int | None = None
    against: str | int | None = None

    def bind(self, lm: Decoder, reference: Float[Tensor, " d_vocab"]) -> MetricFunction:
        """Return the metric as a function of logits (row, d_vocab).

        Args:
            lm: the model, which gives the ids of the tokens.
            reference: logits of the unchanged run; only `kl_divergence` uses them.

        Raises:
            InvalidInput: a text that names a token is not a single token, or both tokens are the same.
        """
        if self.kind == "kl_divergence":
            expected = reference.detach().double().log_softmax(-1)
            # This is the Kullback-Leibler divergence, the sum of p log(p / q), where p is the distribution of the
            # reference run and q that of the changed run.
            return lambda logits: (expected.exp() * (expected - logits.double().log_softmax(-1))).sum(-1)
        if self.token is None:
            raise InvalidInput(f"metric {self.kind!r}", why="it needs a token", instead="Give a token")
        token = lm.single_token(self.token)
        if self.kind == "logit_difference":
            if self.against is None:
                return lambda logits: logits[:, token].double()
            against = lm.single_token(self.against)
            if against == token:
                raise InvalidInput(
                    f"a logit difference of {self.token!r} and itself", why="it is always 0", instead="Name another"
                )
            return lambda logits: logits[:, token].double() - logits[:, against].double()
        log_p: MetricFunction = lambda logits: logits.double().log_softmax(-1)[:, token]  # noqa: E731
        return log_p if self.kind == "log_probability" else lambda logits: log_p(logits).exp()

    def label(self, lm: Decoder) -> str:
        """Describe the metric as text, such as `logit of "·girl" − "·boy"`."""
        if self.kind == "kl_divergence":
            return "KL divergence from the reference run (nats)"
        names = [lm.token_strings([lm.single_token(t)])[0] for t in (self.token, self.against) if t is not None]
        if self.kind == "logit_difference":
            return "logit of " + " − ".join(map(quoted, names))
        return f"{self.kind.replace('_', ' ')} of {quoted(names[0])}"


def logit_difference(token: str | int, against: str | int | None = None) -> Metric:
    """Return the metric "logit of a token minus logit of another"; with one token, its logit."""
    return Metric("logit_difference", token, against)


def probability(token: str | int) -> Metric:
    """Return the metric "probability of a token"."""
    return Metric("probability", token)


def log_probability(token: str | int) -> Metric:
    """Return the metric "log-probability of a token", in nats."""
    return Metric("log_probability", token)


def kl_divergence() -> Metric:
    """Return the metric "sum of p log(p / q)", in nats, for predictions p of the unchanged and q of the changed run."""
    return Metric("kl_divergence")


def bound(
    lm: Decoder,
    metric: Metric | MetricFunction | None,
    reference: Float[Tensor, " d_vocab"],
    corrupted: Float[Tensor, " d_vocab"] | None = None,
) -> tuple[MetricFunction, str]:
    """Return a metric as a function of logits, and its description.

    If `metric` is None, the metric is the logit of the reference run's prediction minus the logit of the corrupted
    run's prediction. If both runs predict the same token, or there is no corrupted run, the logit of the reference
    run's second most probable token is subtracted instead.

    Raises:
        InvalidInput: the metric is not callable, or does not return one number for each row.
    """
    if metric is None:
        first, second = reference.topk(2).indices.tolist()
        other = first if corrupted is None else int(corrupted.argmax())
        metric = Metric("logit_difference", first, second if other == first else other)
    if isinstance(metric, Metric):
        return metric.bind(lm, reference), metric.label(lm)
    if not callable(metric):
        raise InvalidInput(
            f"metric {metric!r:.60}", why="it is not a function of logits", instead="Use unembed.logit_difference(a, b)"
        )
    found = metric(reference[None])
    if not isinstance(found, Tensor) or found.shape != (1,):
        raise InvalidInput(
            f"metric {getattr(metric, '__name__', 'given')!r}",
            why="for logits of shape (batch, d_vocab) it must return a tensor of shape (batch,)",
        )
    return metric, getattr(metric, "__name__", "metric")


def metric_of_each(
    metric: Metric | MetricFunction | Sequence[Metric | MetricFunction | None] | None, n: int, what: str
) -> list[Metric | MetricFunction | None]:
    """Return a list of `n` metrics, given one for all prompts or pairs, or a list of one for each.

    Raises:
        InvalidInput: the list does not have `n` metrics.
    """
    metrics = list(metric) if isinstance(metric, Sequence) else [metric] * n
    if len(metrics) != n:
        raise InvalidInput(
            f"{len(metrics)} metrics",
            why=f"there are {n} {what}",
            instead=f"Give one metric for all {what}, or one for each",
        )
    return metrics
