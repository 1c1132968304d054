"""Responses: JSON with an ETag, streamed lines of JSON (NDJSON), and errors in one format (`Problem`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from torch import Tensor

from unembed import errors
from unembed.results import numbers_or_none
from unembed.server.model_queue import Busy, Superseded


class Problem(BaseModel):
    """The body of every error response."""

    code: str = Field(description="a short, stable name")
    message: str = Field(description="what failed, with the offending value")
    why: str = ""
    fix: str = Field(default="", description="what to do instead")
    detail: Any = None


_STATUS: list[tuple[type[Exception], int, str]] = [
    (Superseded, 409, "superseded"),
    (Busy, 503, "busy"),
    (errors.OutOfRange, 404, "out_of_range"),
    (errors.NotOneToken, 422, "not_one_token"),
    (errors.InvalidInput, 422, "invalid"),
    (errors.PointMissing, 409, "unsupported"),
    (errors.Unsupported, 409, "unsupported"),
    (errors.ExtraMissing, 409, "extra_missing"),
    (errors.IndexFault, 409, "index"),
    (errors.SumNotProved, 422, "not_proved"),
    (errors.NotFinite, 422, "not_finite"),
    (errors.OutOfMemory, 507, "out_of_memory"),
    (errors.UnembedError, 422, "failed"),
]


def problem(error: errors.UnembedError) -> tuple[int, Problem]:
    """Return the HTTP status and the response body for one of this package's errors."""
    status, code = next((status, code) for kind, status, code in _STATUS if isinstance(error, kind))
    return status, Problem(code=code, message=error.what, why=error.why, fix=error.instead)


_BODY = "the request's body"
_PLACES = ("body", "query", "path", "header")
_REASONS = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such field",
    "less_than_equal": "it is larger than {le:,}",
    "less_than": "it is not below {lt:,}",
    "greater_than_equal": "it is smaller than {ge:,}",
    "greater_than": "it is not above {gt:,}",
    "string_too_short": "it is empty",
    "string_too_long": "it has more than {max_length:,} characters",
    "too_short": "it has fewer than {min_length:,} items",
    "too_long": "it has more than {max_length:,} items",
    "literal_error": "it is not one of {expected}",
    "finite_number": "it is not a finite number",
    "json_invalid": "it is not JSON",
    "model_attributes_type": "it is not a JSON object",
}


def _reason(error: Any) -> str:
    """Return the reason why a value in a request is invalid."""
    words = _REASONS.get(error["type"])
    if words:
        return words.format(**error.get("ctx", {}))
    return "it is not a number" if error["type"].endswith("_parsing") else error["msg"]


def install_error_handlers(app: FastAPI) -> None:
    """Make every error response a `Problem`."""

    @app.exception_handler(errors.UnembedError)
    async def library_error(_: Request, error: errors.UnembedError) -> JSONResponse:
        status, body = problem(error)
        return JSONResponse(body.model_dump(), status)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place, *names = first["loc"]
        where = ".".join(map(str, names if place in _PLACES else first["loc"]))
        if place == "body" and (not names or first["type"] == "json_invalid"):
            where = _BODY
        detail = [{"where": ".".join(str(p) for p in e["loc"]), "why": e["msg"]} for e in error.errors()[:20]]
        body = Problem(
            code="invalid",
            message=f"{where} is not valid",
            why=_reason(first),
            fix="See /api/v1/openapi.json for what it takes" if where == _BODY else "Choose another value",
            detail=detail,
        )
        return JSONResponse(body.model_dump(), 422)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        fix = "Send less" if error.status_code == 413 else "See /api/v1/openapi.json for all requests"
        body = Problem(code="http", message=str(error.detail), fix=fix)
        return JSONResponse(body.model_dump(), error.status_code, headers=error.headers)

    @app.exception_handler(RuntimeError)
    @app.exception_handler(MemoryError)
    async def out_of_memory(_: Request, error: Exception) -> JSONResponse:
        if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise error
        body = Problem(code="out_of_memory", message="not enough memory", fix="Use a shorter prompt")
        return JSONResponse(body.model_dump(), 507)

    @app.exception_handler(Exception)
    async def defect(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(_defect(error).model_dump(), 500)  # the traceback is not sent: the server logs it


def _defect(error: Exception) -> Problem:
    """Return the response body for an unexpected exception, which is a bug in this package."""
    return Problem(
        code="defect",
        message="the server failed at this request",
        why=f"{type(error).__name__}: {error}"[:300],
        fix="This is a bug: report it with the traceback in the terminal of unembed serve; other requests still work",
    )


def to_json(content: object) -> bytes:
    """Encode an object as JSON. A dataclass becomes a dict of its fields; lone surrogates are escaped."""
    try:
        return json.dumps(content, ensure_ascii=False, default=_fields, **_STRICT).encode()
    except UnicodeEncodeError:
        return json.dumps(content, default=_fields, **_STRICT).encode()


_STRICT: dict[str, Any] = {"allow_nan": False, "separators": (",", ":")}


def _fields(value: object) -> Any:
    """Convert a dataclass to a dict of its fields, and a tensor to nested lists with None for NaN.

    The fields are not copied; `dataclasses.asdict` would copy them, which takes longer than the encoding.
    """
    if isinstance(value, Tensor):
        return numbers_or_none(value)
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")
    return vars(value)


class Cache:
    """A cache of response bodies with a maximum size; the least recently used are dropped first."""

    def __init__(self, limit: int = 16 * 1024 * 1024) -> None:
        """Create a cache of at most `limit` bytes."""
        self._limit, self._size = limit, 0
        self._bodies: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        """Return the size of the cached bodies in bytes."""
        return self._size

    def get(self, key: str) -> bytes | None:
        """Return the cached body of a key; None if there is none."""
        if key in self._bodies:
            self._bodies.move_to_end(key)
        return self._bodies.get(key)

    def put(self, key: str, body: bytes) -> None:
        """Cache a body, unless it is larger than a quarter of the cache."""
        if len(body) > self._limit // 4:
            return
        self._size += len(body) - len(self._bodies.pop(key, b""))
        self._bodies[key] = body
        while self._size > self._limit:
            _, oldest = self._bodies.popitem(last=False)
            self._size -= len(oldest)


def json_response(request: Request, body: bytes) -> Response:
    """Return a JSON response with an ETag, or status 304 without a body if the page already has this body."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def ndjson_response(items: AsyncIterator[Any]) -> StreamingResponse:
    """Return a response that streams one JSON value per line; an error becomes the last line.

    Args:
        items: the values; bytes are sent unchanged, as already encoded JSON.
    """

    async def encoded_lines() -> AsyncIterator[bytes]:
        try:
            async for item in items:
                yield (item if isinstance(item, bytes) else to_json(item)) + b"\n"
            yield b'{"kind":"done"}\n'
        except errors.UnembedError as error:
            yield to_json({"kind": "error", **problem(error)[1].model_dump()}) + b"\n"
        except Exception as error:
            yield to_json({"kind": "error", **_defect(error).model_dump()}) + b"\n"
            raise

    # content-encoding "identity" turns off the compression middleware, which would collect several lines before it
    # sends them.
    headers = {"cache-control": "no-store", "content-encoding": "identity"}
    return StreamingResponse(encoded_lines(), media_type="application/x-ndjson", headers=headers)
