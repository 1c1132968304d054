"""Serving until interrupted: the address, the link with its token, the browser."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from typing import Any
from urllib.parse import quote

from unembed.errors import InvalidInput
from unembed.server.app import create
from unembed.server.guard import LOOPBACK, new_token
from unembed.server.session import Session


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at the address, so that a browser quicker than the server waits; port 0 takes any free one.

    Raises:
        InvalidInput: the address cannot be used.
    """
    found: socket.socket | None = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Told by name that it is TCP: asyncio turns off Nagle's algorithm for no other, and every answer waits 40 ms.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen()
    except OSError as error:
        if found is not None:
            found.close()
        raise InvalidInput(
            f"cannot listen on {host}:{port}", why=str(error), instead="Choose another --port, or 0 for any free one"
        ) from error
    return found


def serve(
    lm: Any,
    index: Any = None,
    *,
    index_name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 7333,
    browser: bool = True,
    token: str | None = None,
) -> None:
    """Serve the explorer until interrupted; prints the link that opens it."""
    import uvicorn

    sock = listening(host, port)
    port = sock.getsockname()[1]
    token = token or new_token()
    shown = host if host not in ("0.0.0.0", "::") else socket.gethostname()
    hosts = LOOPBACK | {shown.lower(), host.lower()}
    app = create(Session(lm, index, index_name=index_name), token=token, port=port, hosts=hosts)
    link = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?token={quote(token)}"
    if host not in LOOPBACK:
        print(
            f"unembed: {host} can be reached from other machines; whoever has the link can use the model.",
            file=sys.stderr,
        )
    print(f"unembed explorer of {lm.name}: {link}", flush=True)
    if browser:
        threading.Timer(0.4, webbrowser.open, [link]).start()
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, server_header=False
    )
    uvicorn.Server(config).run(sockets=[sock])
