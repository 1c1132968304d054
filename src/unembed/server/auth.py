"""Access control: check host name, token and size of requests, and add security headers to responses.

Binding to 127.0.0.1 is not enough, because pages of other sites run in the same browser and can send requests to the
server. An allow-list of host names stops DNS rebinding. A token stops cross-site requests: it is in the link that opens
the page, and then in a cookie that the browser does not send with requests from other sites. No CORS header is sent.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
MAX_BODY = 256 * 1024
MAX_IMPORT = 8 * 1024 * 1024
"""Maximum size in bytes of a request body (`MAX_BODY`), and of an import of annotations (`MAX_IMPORT`)."""
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
_UNCACHED = {"cache-control": "no-store"}
_OPEN_LINK = "Open the link that `unembed serve` printed"


def new_token() -> str:
    """Return a token of 192 random bits."""
    return secrets.token_urlsafe(24)


@dataclass
class Guard:
    """An ASGI application that checks each request, and passes it to `app` or answers it with an error."""

    app: ASGIApp
    token: str
    port: int
    hosts: frozenset[str] = LOOPBACK
    needed: str = _OPEN_LINK
    _in_flight: int = field(default=0, init=False)

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies ignore ports, so two explorers on one machine need two names."""
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

        answer = self._answer(scope, headers)
        if answer is not None:
            await answer(scope, receive, send_with_headers)
            return
        self._in_flight += 1
        try:
            await self.app(scope, _limited(receive, _limit(scope["path"])), send_with_headers)
        finally:
            self._in_flight -= 1

    def _answer(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        """Return the response to a request that is rejected or redirected; None if it is passed to the application."""
        host = _host_of(headers.get("host", ""))
        if host not in self.hosts:
            return _refused(421, "host", f"host {host[:80]!r} is not served here", self.needed)
        origin = headers.get("origin")
        # The port is compared too: another server on the same host has another port, but gets the same cookies.
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return _refused(403, "origin", "the request comes from another site", "Use the explorer's own page")
        path, length = scope["path"], headers.get("content-length", "0")
        if not length.isdigit() or int(length) > _limit(path):
            return _refused(413, "too_large", "the request is too large", f"{_limit(path)} bytes at most")
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        if path == "/" and "token" in query and self._matches(query["token"]):
            return self._without_token(query)
        if path.startswith("/api/") and not self._is_authenticated(headers):
            return _refused(401, "token", "no token", self.needed)
        if self._in_flight >= MAX_IN_FLIGHT and path != "/api/v1/status":
            return _refused(503, "busy", "too many requests at once", "Try again in a moment")
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

    def _without_token(self, query: dict[str, str]) -> Response:
        """Set a cookie with the token, and redirect to the same URL without the token."""
        rest = urlencode([(name, value) for name, value in query.items() if name != "token"])
        answer = Response(None, 303, {**_UNCACHED, "location": f"./?{rest}" if rest else "./"})
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return answer


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


def _refused(status: int, code: str, message: str, fix: str) -> Response:
    content = {"code": code, "message": message, "why": "", "fix": fix, "detail": None}
    return JSONResponse(content, status, _UNCACHED)
