"""Laboratories: values found by words, what suppression does and costs, where a prompt could leave early."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from unembed.server import requests as a
from unembed.server.responses import encoded, lines, tagged
from unembed.server.state import Session


class WordsAsked(BaseModel):
    """Words to raise and to lower, separated by commas."""

    model_config = ConfigDict(extra="forbid")
    promote: str = Field("", max_length=400)
    suppress: str = Field("", max_length=400)
    values: int = Field(2, ge=1, le=20)
    to: float = Field(3.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    by: float = Field(0.0, ge=-1e6, le=1e6, allow_inf_nan=False)


class SuppressAsked(a.PromptAsked):
    """Prompts to continue with and without edits, and what is measured of both."""

    further: list[Annotated[str, Field(min_length=1, max_length=4000)]] = Field(
        default_factory=list, max_length=7, description="prompts beside the first"
    )
    samples: int = Field(4, ge=1, le=16)
    max_new_tokens: int = Field(20, ge=1, le=60)
    seed: int = Field(0, ge=0, le=a.LARGEST)
    cost_tokens: int = Field(1024, ge=64, le=8192)


class ExitAsked(BaseModel):
    """A prompt, and how careful the exit is."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(min_length=1, max_length=4000)
    method: Literal["margin", "entropy", "agreement"] = "margin"
    threshold: float | None = Field(default=None, allow_inf_nan=False, description="none: never leave")


_LONGEST = 96
"""Positions of a prompt that the early-exit laboratory looks at."""


def router(session: Session) -> APIRouter:
    """The routes, over what is open."""
    routes = APIRouter(tags=["labs"])

    @routes.post("/labs/suppress", response_class=StreamingResponse)
    async def suppress(asked: SuppressAsked, client: a.Client = "") -> StreamingResponse:
        """Sampled continuations with and without the edits, each scored, and what the edits cost in perplexity.

        A line for every prompt as it is done (`kind` pair), then all of it with the price (`kind` suppressed). Whoever
        hangs up ends the work after the prompt under way.
        """
        edits = [e.edit() for e in asked.edits]
        key = f"suppress {asked.model_dump_json()}"

        def work(tell: Callable[[Any], None]) -> None:
            from unembed import steering, toxicity

            scorer = toxicity.open_scorer("linear")

            def scored(texts: Sequence[str]) -> list[dict[str, Any]]:
                scores = scorer.score(list(texts))["toxicity"]
                return [{"text": text, "score": float(x)} for text, x in zip(texts, scores, strict=True)]

            measured = {"scorer": scorer.name, "cost_tokens": asked.cost_tokens}
            pairs: list[dict[str, Any]] = []
            found = None
            for prompt in [asked.prompt, *asked.further]:
                # The price does not depend on the prompt: it is measured once, when all has been sampled.
                is_last = len(pairs) == len(asked.further)
                found = steering.steer(
                    session.lm,
                    prompt,
                    edits,
                    max_new_tokens=asked.max_new_tokens,
                    seed=asked.seed,
                    samples=asked.samples,
                    **({"cost_text": steering.default_text(), "cost_tokens": asked.cost_tokens} if is_last else {}),
                )
                pairs.append({"prompt": found.prompt, "plain": scored(found.plain), "edited": scored(found.edited)})
                tell({"kind": "pair", **measured, **pairs[-1]})
            assert found is not None
            whole = {
                "kind": "suppressed",
                **measured,
                "prompts": pairs,
                "perplexity_plain": found.perplexity_plain,
                "perplexity_edited": found.perplexity_edited,
            }
            session.cache.put(key, body := encoded(whole))
            tell(body)

        async def items() -> AsyncIterator[Any]:
            if (known := session.cache.get(key)) is not None:
                yield known
                return
            async for item in session.telling(work, client=client, channel="suppress"):
                yield item

        return lines(items())

    @routes.post("/labs/early-exit")
    async def early_exit(request: Request, asked: ExitAsked, client: a.Client = "") -> Response:
        """Where each position of a prompt would leave the model, whether it says the same, and the trade-off curve."""

        def work() -> dict[str, Any]:
            import numpy as np

            from unembed import early_exit

            lm = session.lm
            lm.feed_forward(0)
            ids = lm.encode(asked.prompt)[0][:_LONGEST]
            found = early_exit.examples_of_prefixes(lm, [ids[: i + 1] for i in range(len(ids))])
            rule = early_exit.untrained(lm, asked.method)
            if asked.threshold is not None:
                rule = rule.at(asked.threshold)
            exits = rule.exit_layers(found)
            said = found.top[np.arange(len(found)), exits]
            final = found.top[:, -1]
            dial = rule.tradeoff(found, 24).to_dict()
            for row in dial["rows"]:
                row["exits"] = (
                    rule.at(float("inf") if row["threshold"] is None else row["threshold"]).exit_layers(found).tolist()
                )
            return {
                "method": asked.method,
                "threshold": asked.threshold,
                "tokens": lm.token_strings(ids),
                "exits": exits.tolist(),
                "saturation": found.saturation.tolist(),
                "said": lm.token_strings(said),
                "final": lm.token_strings(final),
                "agrees": (said == final).tolist(),
                "n_layers": lm.n_layers,
                "says": [lm.token_strings(found.top[:, n]) for n in range(lm.n_layers)],
                "dial": dial,
                "measured": next(rule.evaluate(found).rows()),
            }

        key = f"early-exit {asked.model_dump_json()}"
        body = await session.body(key, work, what="finding exits", client=client, channel="early-exit")
        return tagged(request, body)

    @routes.post("/labs/promoters")
    async def promoters(request: Request, asked: WordsAsked, client: a.Client = "") -> Response:
        """Values by the words they promote, as `unembed steer --promote` finds them, and the edits they make."""

        def work() -> dict[str, Any]:
            from unembed import steering

            found = [
                steering.promoting(session.lm, steering.words_of(text), asked.values) if text.strip(" ,") else []
                for text in (asked.promote, asked.suppress)
            ]
            edits = steering.chosen_edits(*found, to=asked.to, by=asked.by)
            table = steering.ranked_values_table(session.lm, [*found[0], *found[1]]).to_dict()
            return {**table, "edits": [dataclasses.asdict(edit) for edit in edits]}

        key = f"promoters {asked.model_dump_json()}"
        body = await session.body(key, work, what="finding values", client=client, channel="promoters", on="long")
        return tagged(request, body)

    return routes
