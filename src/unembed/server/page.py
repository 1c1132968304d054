"""The page: its one script and one style sheet, joined from the folder when the server starts, and the folder."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path
from typing import Any

import rcssmin
import rjsmin
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles

from unembed import __version__
from unembed.views.joining import joined

STATIC = Path(__file__).parent / "static"

_COMMENT = re.compile(r"^ *(?:/\*\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
_WHOLE = (
    r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|/(?![/*\s])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/(?=\w*[.,;)])"""
)
"""A text in quotes, or a pattern."""


def _template(depth: int) -> str:
    """A template literal whose insertions hold templates and braces down to some depth."""
    if not depth:
        return r"`[^`$]*`"
    inner = _template(depth - 1)
    code = rf"(?:{_WHOLE}|[^`{{}}\"']|{inner})*"
    for _ in range(depth):
        code = rf"(?:{_WHOLE}|[^`{{}}\"']|{inner}|\{{{code}\}})*"
    return rf"`(?:[^`\\$]|\\.|\$(?!\{{)|\$\{{{code}\}})*`"


_TEMPLATE = re.compile(rf"{_WHOLE}|({_template(3)})")


def script() -> str:
    """All modules of the page as one, without comments and indents: as people read them they stay in the folder."""
    return light(joined(_text, "js/main.js") + '$load("js/main.js");\n')


def light(text: str) -> str:
    """A script without what only people need. Templates stay as they are: rjsmin takes one in another for code."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        if not found[1]:
            return found[0]
        kept.append(found[1])
        return f'"@{len(kept) - 1}@"'

    bare = _TEMPLATE.sub(keep, _COMMENT.sub("", text))
    assert "`" not in re.sub(_WHOLE, "", bare), "a template nested too deep"
    return re.sub(r'"@(\d+)@"', lambda found: kept[int(found[1])], str(rjsmin.jsmin(bare)))


def style() -> str:
    """Both style sheets as one, lightened likewise."""
    return str(rcssmin.cssmin(_text("islands.css") + _text("app.css")))


def add_page(app: FastAPI) -> None:
    """Serve the page and its files, whose addresses hold the version."""
    root = f"/static/{__version__}"
    page = _text("index.html").replace("{{version}}", __version__)
    files = {f"{root}/js/page.js": (script(), "text/javascript"), f"{root}/page.css": (style(), "text/css")}

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return HTMLResponse(page, headers={"cache-control": "no-store"})

    for address, (text, kind) in files.items():
        app.add_api_route(address, _file(text, kind), include_in_schema=False, response_model=None)
    app.mount(root, _Asked(directory=STATIC), name="static")


def _text(path: str) -> str:
    return (STATIC / path).read_text(encoding="utf-8")


def _file(text: str, kind: str) -> Any:
    """A route that gives one text, compressed once; a browser asks again, and is told that nothing changed."""
    plain = text.encode()
    packed = gzip.compress(plain, 9, mtime=0)
    headers = {"etag": f'"{hashlib.blake2b(plain, digest_size=12).hexdigest()}"', **_ASK, "vary": "accept-encoding"}

    async def answer(request: Request) -> Response:
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed, media_type=kind, headers={**headers, "content-encoding": "gzip"})
        return Response(plain, media_type=kind, headers=headers)

    return answer


_ASK = {"cache-control": "no-cache"}


class _Asked(StaticFiles):
    """Files that a browser keeps and asks about."""

    async def get_response(self, path: str, scope: Any) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_ASK)
        return response
