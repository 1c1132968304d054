"""Declare a route by a function that computes the response; its signature describes the request.

The request handler, the validation, the cache key and the OpenAPI description are derived from the function.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable
from functools import partial
from inspect import Parameter
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from unembed.server import requests as r
from unembed.server.responses import json_response
from unembed.server.state import Pool, ServerState

Answer = TypeVar("Answer", bound=Callable[..., object])


class Routes(APIRouter):
    """The routes of one screen."""

    def __init__(self, tag: str) -> None:
        super().__init__(tags=[tag])

    def answer(
        self,
        address: str,
        doing: str,
        *,
        on: Pool = "model",
        channel: str | None = None,
        depends_on: Callable[[ServerState], object] = lambda _: None,
        shape: type | None = None,
    ) -> Callable[[Answer], Answer]:
        """Decorate a function to serve its result as JSON; results are cached by the function's arguments.

        The function takes the state of the server, then the parameters of the request. A prompt in the request is
        stored under an id, by which later requests may refer to it.

        Args:
            address: the method and the path, such as "GET /heads".
            doing: a short description of the work, which the server's status shows while the function runs.
            on: the thread or thread pool on which the function runs.
            channel: a name for requests of one kind: a newer one of the same page cancels an older one. `{name}` in the
                channel stands for an argument of the request. By default, the channel is the address.
            depends_on: a function that returns whatever else the result depends on; this becomes part of the cache key.
            shape: a dataclass that describes the response in OpenAPI; None for the function's return annotation.
        """
        method, path = address.split()

        def add(function: Answer) -> Answer:
            signature = inspect.signature(function, eval_str=True)
            described = shape or signature.return_annotation
            responses: dict[int | str, dict[str, Any]] = {}
            if dataclasses.is_dataclass(described):
                responses[200] = {"model": described}

            async def handle(request: Request, client: str, state: ServerState, **arguments: Any) -> Response:
                for argument in arguments.values():
                    if isinstance(argument, r.PromptRequest):
                        argument.register(state)
                body = await state.body(
                    cache_key(function, arguments, depends_on(state)),
                    partial(function, state, **arguments),
                    what=doing,
                    client=client,
                    channel=address if channel is None else channel.format(**arguments),
                    on=on,
                )
                return json_response(request, body)

            handle.__name__, handle.__doc__ = function.__name__, function.__doc__
            vars(handle)["__signature__"] = inspect.Signature(
                [
                    Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request),
                    *(one.replace(kind=Parameter.KEYWORD_ONLY) for one in signature.parameters.values()),
                    Parameter("client", Parameter.KEYWORD_ONLY, annotation=r.Client, default=""),
                ],
                return_annotation=Response,
            )
            self.api_route(path, methods=[method], responses=responses)(handle)
            return function

        return add


def cache_key(function: Callable[..., object], arguments: dict[str, Any], depends_on: object = None) -> str:
    """Return a hash of a function, its arguments, and anything else that its result depends on."""
    described = json.dumps([function.__module__, function.__name__, arguments, depends_on], default=_plain)
    return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


def _plain(value: object) -> dict[str, Any]:
    """Convert a pydantic model or a dataclass to a dict, for JSON."""
    return value.model_dump() if isinstance(value, BaseModel) else vars(value)
