"""Access control: host names, the token and request sizes; and the security headers of every response.

Pages of other sites run in the same browser, so binding to 127.0.0.1 is not enough: an allow-list of host names stops
DNS rebinding, a token (in the link once, then in a cookie that other sites' requests do not carry) stops cross-site
requests, and there is no CORS header at all.
"""

from __future__ import annotations

import hmac
import json
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
MAX_BODY = 256 * 1024
MAX_IMPORT = 8 * 1024 * 1024
"""The largest request in bytes, and the largest import of annotations."""
MAX_IN_FLIGHT = 96

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]


def new_token() -> str:
    """A token of 192 random bits."""
    return secrets.token_urlsafe(24)


@dataclass
class Guard:
    """Passes a request on, or answers it with an error."""

    app: ASGIApp
    token: str
    port: int
    hosts: frozenset[str] = LOOPBACK
    _in_flight: int = field(default=0, init=False)

    @property
    def cookie(self) -> str:
        """The cookie's name. Cookies ignore ports, so two explorers on one machine need two names."""
        return f"unembed_{self.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(h for h in HEADERS if h[0] not in present)]
            await send(message)

        rejection = self._rejection(scope, headers)
        if rejection is not None:
            await _respond(send_with_headers, *rejection)
            return
        path, query = scope["path"], dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        if path == "/" and "token" in query and self._matches(query["token"]):
            await _respond(
                send_with_headers, 303, None, [(b"location", self._without_token(query)), self._set_cookie()]
            )
            return
        if path.startswith("/api/") and not self._is_authenticated(headers):
            await _respond(
                send_with_headers, 401, _error("token", "no token", "Open the link that `unembed serve` printed")
            )
            return
        if self._in_flight >= MAX_IN_FLIGHT and path != "/api/v1/status":
            await _respond(send_with_headers, 503, _error("busy", "too many requests at once", "Try again in a moment"))
            return
        self._in_flight += 1
        try:
            await self.app(scope, _limited(receive, _limit(path)), send_with_headers)
        finally:
            self._in_flight -= 1

    def _rejection(self, scope: Scope, headers: dict[str, str]) -> tuple[int, dict[str, Any]] | None:
        host = _host_of(headers.get("host", ""))
        if host not in self.hosts:
            return 421, _error(
                "host", f"host {host[:80]!r} is not served here", "Open the link that `unembed serve` printed"
            )
        origin = headers.get("origin")
        # The port as well: to a cookie, all ports of a host are one site.
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return 403, _error("origin", "the request comes from another site", "Use the explorer's own page")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > _limit(scope["path"]):
            return 413, _error("too_large", "the request is too large", f"{_limit(scope['path'])} bytes at most")
        return None

    def _matches(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def _is_authenticated(self, headers: dict[str, str]) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._matches(token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return cookie is not None and self._matches(cookie.value)

    def _set_cookie(self) -> tuple[bytes, bytes]:
        return b"set-cookie", f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict".encode()

    @staticmethod
    def _without_token(query: dict[str, str]) -> bytes:
        rest = urlencode([(name, value) for name, value in query.items() if name != "token"])
        return f"./?{rest}".encode() if rest else b"./"


def _limit(path: str) -> int:
    return MAX_IMPORT if path.endswith("/annotations/import") else MAX_BODY


def _limited(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, f"the request is too large: {limit} bytes at most")
        return message

    return counted


def _host_of(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def _error(code: str, message: str, fix: str) -> dict[str, Any]:
    return {"code": code, "message": message, "why": "", "fix": fix, "detail": None}


async def _respond(
    send: Send, status: int, content: dict[str, Any] | None, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = b"" if content is None else json.dumps(content).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
                *(headers or []),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})
