"""Trace several prompts; the result prints as a table with a row for each prompt."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.results import Records
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens
from unembed.trace.trace import Trace


def trace_prompts(
    lm: Decoder, prompts: Sequence[Tokens], edits: Edits = (), *, show_unlearned: bool = False
) -> Records[Trace]:
    """Trace each prompt, one by one; see `Trace`.

    Returns:
        The traces; their table has the columns prompt (its number, from 0), text, tokens (how many), prediction,
        probability, runner_up, runner_up_probability. Without a tokenizer text is None.

    Raises:
        InvalidInput: there are no prompts, or one is empty or too long.
    """
    if not len(prompts):
        raise InvalidInput("an empty list of prompts", instead="Give at least one")
    traces = [Trace(lm, prompt, edits, show_unlearned=show_unlearned) for prompt in prompts]
    best = [_two_likeliest(trace) for trace in traces]
    columns: dict[str, list[object]] = {
        "prompt": list(range(len(traces))),
        "text": [None if lm.tokenizer is None else lm.decode(trace.tokens) for trace in traces],
        "tokens": [len(trace) for trace in traces],
    }
    for place, name in enumerate(("prediction", "runner_up")):
        columns[name] = list(lm.token_strings([int(ids[place]) for _, ids in best]))
        probability = "probability" if name == "prediction" else f"{name}_probability"
        columns[probability] = [float(probabilities[place]) for probabilities, _ in best]
    return Records.of(f"Traces of {len(traces)} prompts on {lm.name}", traces, columns, traces[0].provenance)


def _two_likeliest(trace: Trace) -> tuple[Tensor, Tensor]:
    """Return probabilities and ids of the two most probable next tokens among those that the trace lists."""
    probabilities = trace.logits(-1).float().softmax(-1)
    if trace.hidden is not None:
        probabilities = probabilities.masked_fill(trace.hidden.to(probabilities.device), -1)
    found = probabilities.topk(2)
    return found.values, found.indices
