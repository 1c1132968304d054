"""Serve the page and its files: one HTML document, ES modules and style sheets, without a build step."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from unembed import __version__

STATIC = Path(__file__).parent / "static"
STYLES = ("colours", "grid", "charts", "flow", "page", "parts", "shared", "screens")
"""The style sheets, in the order in which the page loads them. Notebooks and saved files use the first four too."""
_IMPORTED = re.compile(r'from "(\./[^"]+|\.\./[^"]+)";')
_REVALIDATE = {"cache-control": "no-cache"}


def first_modules() -> list[str]:
    """Return the paths of the JavaScript modules that the first screen imports, directly or indirectly.

    The page preloads them; otherwise the browser would discover and request them one after the other.
    """
    found: set[Path] = set()
    waiting = [STATIC / "js/main.js", STATIC / "js/screens/trace.js"]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        named = _IMPORTED.findall(module.read_text(encoding="utf-8"))
        waiting += [Path(os.path.normpath(module.parent / name)) for name in named]
    return sorted(module.relative_to(STATIC).as_posix() for module in found)


def page() -> str:
    """Return the HTML document.

    The icon is inline, because browsers would request an icon file at every change of the URL.
    """
    root = f"static/{__version__}"
    preload = "\n".join(f'<link rel="modulepreload" href="{root}/{name}">' for name in first_modules())
    styles = "\n".join(f'<link rel="stylesheet" href="{root}/css/{name}.css">' for name in STYLES)
    icon = quote((STATIC / "icon.svg").read_text(encoding="utf-8").strip())
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    parts = {"root": root, "styles": styles, "preload": preload, "icon": icon}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], html)


def add_page(app: FastAPI) -> None:
    """Add routes for the page and its files; the package's version is part of each file's URL."""
    html = page()

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return HTMLResponse(html, headers={"cache-control": "no-store"})

    app.mount(f"/static/{__version__}", _RevalidatedFiles(directory=STATIC), name="static")


class _RevalidatedFiles(StaticFiles):
    """Static files that a browser caches and revalidates by ETag at each use."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_REVALIDATE)
        return response
