"""Serving until interrupted: the address, the link with its token, the browser, the two threads.

The model runs on the thread that calls, and answering on another. Where the model was opened, its parallel parts have
their threads already; from any other thread torch would make a second set, and OpenMP, which then counts more threads
than processors, no longer lets them wait ready: a trace took half as long again.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from unembed.errors import InvalidInput
from unembed.server.app import create
from unembed.server.auth import LOOPBACK, new_token
from unembed.server.memory import held
from unembed.server.state import Session


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
    session = Session(lm, index, index_name=index_name, own_thread=False)
    app = create(session, token=token, port=port, hosts=hosts)
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
    server = uvicorn.Server(config)

    def answer() -> None:
        try:
            server.run(sockets=[sock])
        finally:
            session.close()

    answering = threading.Thread(target=answer, name="unembed-answers")

    def leave() -> None:
        server.force_exit = server.should_exit  # asked a second time
        server.should_exit = True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # answers that are cut short are no errors now

    with sock, held(), _asked_to_leave(leave):
        answering.start()
        session.worker.work()
        answering.join()


@contextmanager
def _asked_to_leave(leave: Callable[[], None]) -> Iterator[None]:
    """While inside, Ctrl-C and the signal to end call `leave`; afterwards the signal does what it would have done."""
    came: list[int] = []

    def note(number: int, _frame: Any) -> None:
        came.append(number)
        leave()

    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came[:1]:
        signal.raise_signal(number)
