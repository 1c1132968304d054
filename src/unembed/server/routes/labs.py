"""Routes for the screens Labs: value vectors by the words they promote, suppression of toxic text, and early exit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi.responses import StreamingResponse

from unembed import early_exit, steering, toxicity
from unembed.results import numbers
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.responses import ndjson_response, to_json
from unembed.server.state import ServerState

MAX_POSITIONS = 96
"""Maximum number of positions of a prompt in the early-exit screen; later ones are ignored."""

routes = Routes("labs")


@routes.post("/labs/suppress", response_class=StreamingResponse)
async def post_suppression(state: r.State, query: r.SuppressRequest, client: r.Client = "") -> StreamingResponse:
    """Sampled continuations with and without the edits, their toxicity scores, and perplexities on other text.

    The response is one line per prompt (`kind` is "pair"), then a line with all results and the perplexities (`kind` is
    "suppressed"). If the client disconnects, the computation ends after the current prompt.
    """
    key = f"suppress {query.model_dump_json()}"
    return ndjson_response(
        state.stream_cached(key, partial(_suppress, state, query), client=client, channel="suppress")
    )


@routes.answer("POST /labs/promoters", "finding values", on="long")
def post_promoters(state: r.State, query: r.WordsRequest) -> dict[str, Any]:
    """Value vectors that promote given words, as `unembed steer --promote` finds them.

    The response also has edits of the memories to which they belong.
    """
    found = [
        steering.promoting(state.lm, steering.words_of(text), query.values) if text.strip(" ,") else []
        for text in (query.promote, query.suppress)
    ]
    edits = steering.chosen_edits(found[0], found[1], to=query.to, by=query.by)
    table = steering.ranked_values_table(state.lm, [*found[0], *found[1]]).to_dict()
    return {**table, "edits": [dataclasses.asdict(edit) for edit in edits]}


def _suppress(state: ServerState, query: r.SuppressRequest, report: Callable[[object], None]) -> None:
    scorer = toxicity.open_scorer("linear")

    def scored(texts: Sequence[str]) -> list[dict[str, Any]]:
        scores = scorer.score(list(texts))["toxicity"]
        return [{"text": text, "score": float(x)} for text, x in zip(texts, scores, strict=True)]

    measured = {"scorer": scorer.name, "cost_tokens": query.cost_tokens}
    edits = query.library_edits()
    prompts = [query.prompt, *query.further]
    pairs: list[dict[str, Any]] = []
    for prompt in prompts:
        # The perplexity is measured on other text and does not depend on the prompt, so it is measured only once, with
        # the last prompt.
        is_last = len(pairs) + 1 == len(prompts)
        found = steering.steer(
            state.lm,
            prompt,
            edits,
            max_new_tokens=query.max_new_tokens,
            seed=query.seed,
            samples=query.samples,
            cost_text=steering.default_text() if is_last else None,
            cost_tokens=query.cost_tokens,
        )
        pairs.append({"prompt": found.prompt, "plain": scored(found.plain), "edited": scored(found.edited)})
        report({"kind": "pair", **measured, **pairs[-1]})
        if is_last:
            perplexities = {
                "perplexity_plain": found.perplexity_plain,
                "perplexity_edited": found.perplexity_edited,
            }
            report(to_json({"kind": "suppressed", **measured, "prompts": pairs, **perplexities}))


@routes.answer("POST /labs/early-exit", "finding exits")
def post_early_exit(state: r.State, query: r.EarlyExitRequest) -> dict[str, Any]:
    """The layer at which each position of a prompt exits, and whether its prediction equals that of the last layer.

    The response also has the trade-off curve: for each threshold, how often the predictions differ from those of the
    last layer, and how many layers are saved.
    """
    lm = state.lm
    lm.feed_forward(0)
    ids = lm.encode(query.prompt)[0][:MAX_POSITIONS]
    examples = early_exit.examples_of_prefixes(lm, [ids[: i + 1] for i in range(len(ids))])
    rule = early_exit.untrained(lm, query.method)
    if query.threshold is not None:
        rule = rule.at(query.threshold)
    exits = rule.exit_layers(examples)
    predicted = examples.top[np.arange(len(examples)), exits]
    final = examples.top[:, -1]
    curve = rule.tradeoff(examples, 24).to_dict()
    for row in curve["rows"]:
        threshold = float("inf") if row["threshold"] is None else row["threshold"]
        row["exits"] = numbers(rule.at(threshold).exit_layers(examples))
    return {
        "method": query.method,
        "threshold": query.threshold,
        "tokens": lm.token_strings(ids),
        "exits": numbers(exits),
        "saturation": numbers(examples.saturation),
        "predicted": lm.token_strings(predicted),
        "final": lm.token_strings(final),
        "agrees": numbers(predicted == final),
        "n_layers": lm.n_layers,
        "predictions": [lm.token_strings(examples.top[:, n]) for n in range(lm.n_layers)],
        "curve": curve,
        "measured": next(rule.evaluate(examples).rows()),
    }
