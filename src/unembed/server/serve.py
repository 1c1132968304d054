"""Run the explorer's server until it is interrupted.

The model runs on the calling thread, and the web server on another. The reason: OpenMP creates its worker threads for
the thread that loaded the model. If the model ran on another thread, OpenMP would create a second set, find more
threads than processors, and let them sleep between operators; every trace would take 1.5 times as long (decision 0005).
"""

from __future__ import annotations

import errno
import gc
import logging
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import quote

from unembed.errors import InvalidInput
from unembed.index import cache_folder
from unembed.server.app import create
from unembed.server.auth import LOOPBACK, new_token
from unembed.server.session_token import session_token
from unembed.server.state import ServerState

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.language_model import LanguageModel


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. It listens before the server is ready, so that a browser that connects early waits.

    Args:
        port: the port; 0 for any free port.

    Raises:
        InvalidInput: the address cannot be used.
    """
    listener: socket.socket | None = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # IPPROTO_TCP is given explicitly, because asyncio turns off Nagle's algorithm only for sockets with this
        # protocol number. Nagle's algorithm would delay every response by 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        if listener is not None:
            listener.close()
        of_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        raise InvalidInput(
            f"cannot listen on host {host}" if of_host else f"cannot listen on port {port} of {host}",
            why="it is not an address of this machine" if of_host else (error.strerror or str(error)),
            instead="Choose another --host" if of_host else "Choose another --port, or 0 for any free one",
        ) from error
    return listener


def serve(
    lm: LanguageModel,
    index: Index | None = None,
    *,
    index_name: str | None = None,
    source: str | None = None,
    atlas: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 7333,
    browser: bool = True,
    token: str | None = None,
    view: str | None = None,
) -> None:
    """Run the explorer's server until it is interrupted; prints the link that opens the page.

    Args:
        lm: the model.
        index: the model's index.
        index_name: the name that the page shows for the index.
        source: what `unembed.load` takes to open the model again; `lm.name` when None.
        atlas: the folder of the model's atlas; when None, the one in the index's folder, if there is one.
        host: the address to listen on.
        port: the port to listen on; 0 for any free port.
        browser: open the link in the default browser.
        token: the secret that requests must contain; chosen at random when None. If the port is given and only this
            machine can reach it, a restart within a day uses the same random token, so that open tabs still work.
        view: the view that the link opens: the part of the page's URL after `#/`.
    """
    import uvicorn

    # A token is stored only if the user chose the port (the system would choose another one at each start), and only if
    # no other machine can reach the server.
    is_kept = port != 0 and host in LOOPBACK
    sock = listening_socket(host, port)
    port = sock.getsockname()[1]
    token = token or (session_token(port, cache_folder()) if is_kept else new_token())
    shown = host if host not in ("0.0.0.0", "::") else socket.gethostname()
    hosts = LOOPBACK | {shown.lower(), host.lower()}
    state = ServerState(lm, index, index_name=index_name, source=source, atlas_folder=atlas, own_thread=False)
    _ = state.descriptions  # raises an error for an atlas that is not of this model
    app = create(state, token=token, port=port, hosts=hosts)
    link = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?token={quote(token)}"
    if view is not None:
        link += "#/" + quote(view.removeprefix("#/"), safe="/?&=%+:;,@.-_~")
    if host not in LOOPBACK:
        print(
            f"unembed: {host} can be reached from other machines; anyone with the link can use the model.",
            file=sys.stderr,
        )
    print(f"unembed explorer of {lm.name}: {link}", flush=True)
    if browser:
        threading.Timer(0.4, webbrowser.open, [link]).start()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
        server_header=False,
        lifespan="off",  # otherwise a forced stop would cancel the lifespan task and print its traceback
    )
    server = uvicorn.Server(config)

    def run_server() -> None:
        try:
            server.run(sockets=[sock])
        finally:
            state.close()

    server_thread = threading.Thread(target=run_server, name="unembed-server")

    def shut_down() -> None:
        server.force_exit = server.should_exit  # True from the second signal on, which stops the server at once
        server.should_exit = True
        logging.getLogger("uvicorn.error").setLevel(
            logging.CRITICAL
        )  # does not log responses that the shutdown interrupts

    with sock, _imports_frozen(), _on_signal(shut_down):
        server_thread.start()
        state.queue.run_jobs()
        server_thread.join()


@contextmanager
def _imports_frozen() -> Generator[None]:
    """Context manager inside which garbage collection skips all existing objects, which saves 0.5 s per collection."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _on_signal(handle: Callable[[], None]) -> Generator[None]:
    """Context manager inside which SIGINT and SIGTERM call `handle`; at its end, a received signal is raised again."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        handle()

    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals only in the main thread, so no handler can be set here
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received[:1]:
        signal.raise_signal(number)
