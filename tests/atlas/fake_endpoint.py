"""An OpenAI-compatible endpoint on this machine that answers by a function of the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class FakeEndpoint:
    """Serves while it is open. `fail` are (status, headers) of the next replies, `raw` a reply in place of answers."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.fail: list[tuple[int, dict[str, str]]] = []
        self.raw: bytes | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append({**body, "authorization": self.headers["Authorization"]})
                code, headers = outer.fail.pop(0) if outer.fail else (200, {})
                content = answer(body["messages"][0]["content"])
                reply = outer.raw or json.dumps({"choices": [{"message": {"content": content}}]}).encode()
                self.send_response(code)
                for name, value in {**headers, "Content-Length": str(len(reply))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_given: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> FakeEndpoint:
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_fault: object) -> None:
        self._server.shutdown()
        self._server.server_close()
