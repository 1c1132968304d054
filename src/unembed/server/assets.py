"""Serve the page and its files: one HTML document, ES modules and style sheets, as they lie in the folder."""

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
"""The style sheets in their order; the first four are those of notebooks and saved files, too."""
_IMPORTED = re.compile(r'from "(\./[^"]+|\.\./[^"]+)";')
_REVALIDATE = {"cache-control": "no-cache"}


def first_modules() -> list[str]:
    """Return the modules that the first screen imports.

    The page preloads them; a browser would find them one by one.
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
    """Return the HTML document. Its icon is inline, as a browser would request a file at every change of address."""
    root = f"static/{__version__}"
    preload = "\n".join(f'<link rel="modulepreload" href="{root}/{name}">' for name in first_modules())
    styles = "\n".join(f'<link rel="stylesheet" href="{root}/css/{name}.css">' for name in STYLES)
    icon = quote((STATIC / "icon.svg").read_text(encoding="utf-8").strip())
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    parts = {"root": root, "styles": styles, "preload": preload, "icon": icon}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], html)


def add_page(app: FastAPI) -> None:
    """Serve the page and its files. The version is part of each file's address."""
    html = page()

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return HTMLResponse(html, headers={"cache-control": "no-store"})

    app.mount(f"/static/{__version__}", _RevalidatedFiles(directory=STATIC), name="static")


class _RevalidatedFiles(StaticFiles):
    """Files that a browser caches, but checks for changes by their ETag."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_REVALIDATE)
        return response
