"""The page: its one script and one style sheet, joined from the folder when the server starts, and the folder."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import rcssmin
import rjsmin
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles

from unembed import __version__
from unembed.server.bundle import joined

STATIC = Path(__file__).parent / "static"


_MODULE = re.compile(r'(\$load\(|\$modules\[)"([^"]+)"')


def script() -> str:
    """All modules of the page as one, without comments and indents: as people read them they stay in the folder.

    rjsmin takes a template within a template for code, so no module may have one; a test says so.
    """
    numbers: dict[str, int] = {}
    text = joined(_text, "js/main.js") + '$load("js/main.js");\n'
    # By number, since names compress badly: each stands in a few places, and is like no other text.
    text = _MODULE.sub(lambda found: f"{found[1]}{numbers.setdefault(found[2], len(numbers))}", text)
    return str(rjsmin.jsmin(text))


def style() -> str:
    """Both style sheets as one, lightened likewise."""
    return str(rcssmin.cssmin(_text("islands.css") + _text("app.css")))


def add_page(app: FastAPI) -> None:
    """Serve the page and its files, whose addresses hold the version."""
    root = f"/static/{__version__}"
    # In the page itself: a browser asks for the icon anew at every change of the address, while the model works.
    page = _text("index.html").replace("{{version}}", __version__).replace("{{icon}}", quote(_text("icon.svg").strip()))
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
