"""Serving: the address, taken before its link is printed; the thread of the model; how it ends."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import uvicorn

from unembed.errors import InvalidInput
from unembed.server import serve as running
from unembed.server.serve import listening_socket, serve
from unembed.server.state import ServerState


def test_a_browser_that_connects_before_the_server_is_ready_is_not_refused() -> None:
    with listening_socket("127.0.0.1", 0) as taken:
        address = taken.getsockname()
        with socket.create_connection(address, timeout=5):
            pass
        with pytest.raises(InvalidInput, match=rf"cannot listen on port {address[1]} of 127.0.0.1: .*another --port"):
            listening_socket(*address)


def test_imports_are_frozen_only_while_serving() -> None:
    before = gc.get_freeze_count()
    with running._imports_frozen():
        assert gc.get_freeze_count() > before
    assert not gc.get_freeze_count()


def test_an_address_of_no_machine_here_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot listen on host 203"):
        listening_socket("203.0.113.7", 0)


def test_no_answer_waits_for_the_one_before_to_be_acknowledged() -> None:
    """TCP_NODELAY is set by asyncio on sockets that say they are TCP; without it each answer takes 40 ms more."""
    with listening_socket("127.0.0.1", 0) as taken:
        assert taken.proto == socket.IPPROTO_TCP


@pytest.fixture
def answering(monkeypatch) -> Callable[[Callable[[uvicorn.Server, ServerState], None]], None]:
    """Serve with another server: what it does is given, and when it returns, serving ends."""
    opened: list[ServerState] = []

    def install(run: Callable[[uvicorn.Server, ServerState], None]) -> None:
        monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: run(server, opened[-1]))

    def recorded(*args, **kwargs) -> ServerState:
        opened.append(ServerState(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(running, "ServerState", recorded)
    return install


def test_the_model_runs_on_the_thread_that_serves(answering, wren) -> None:
    """Where its parallel parts have their threads already: a second set makes all of them slower."""
    seen: list[int] = []

    def ask(_server, session) -> None:
        seen.append(asyncio.run(session.queue.run(threading.get_ident, what="", client="", channel="")))
        seen.append(threading.get_ident())

    answering(ask)
    serve(wren, port=0, browser=False)
    assert seen[0] == threading.get_ident() != seen[1]


@pytest.mark.skipif(os.name == "nt", reason="signals are sent otherwise there")
def test_ctrl_c_lets_answers_end_and_a_second_one_does_not(answering, wren) -> None:
    seen: list[tuple[bool, bool]] = []

    def wait(server, _session) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 20
            while len(seen) + 1 != server.should_exit + server.force_exit and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append((server.should_exit, server.force_exit))

    answering(wait)
    # Where tests run in the background of a shell, Ctrl-C is ignored from the start.
    given = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            serve(wren, port=0, browser=False)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, given)
    assert seen == [(True, False), (True, True)]


@pytest.mark.skipif(os.name == "nt", reason="signals are sent otherwise there")
@pytest.mark.parametrize("interrupts", [1, 2])
def test_ctrl_c_during_a_stream_prints_one_line(interrupts: int) -> None:
    command = [sys.executable, "-m", "unembed", "serve", "--no-browser", "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://([^:]+):(\d+)/\?token=(\S+)", process.stdout.readline())
            assert found
            client = http.client.HTTPConnection(found[1], int(found[2]), timeout=60)
            request = json.dumps({"prompt": "Once upon a time", "edits": [], "max_new_tokens": 200})
            client.request("POST", "/api/v1/compare", request, {"authorization": f"Bearer {found[3]}"})
            response = client.getresponse()
            assert response.readline(), "it has begun"
            for _ in range(interrupts):
                process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            _, complaints = process.communicate(timeout=60)
            response.close()
            client.close()
        finally:
            process.kill()
    assert complaints.strip() == "unembed: Interrupted."
    assert process.returncode in (130, -signal.SIGINT)


def test_a_server_that_fails_ends_serving(answering, wren, monkeypatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    failed = []

    def fail(_server, _session) -> None:
        failed.append(True)
        raise OSError

    answering(fail)
    serve(wren, port=0, browser=False)
    assert failed == [True]


def test_a_restart_on_the_same_port_has_the_same_link_and_a_free_port_another(
    answering, wren, monkeypatch, tmp_path, capsys
) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    answering(lambda _server, _session: None)
    with listening_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]

    def link(port: int) -> str:
        serve(wren, port=port, browser=False)
        return capsys.readouterr().out.partition("?token=")[2].strip()

    first = link(port)
    assert first
    assert link(port) == first
    assert link(0) != link(0)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_link_opens_the_view_and_a_view_cannot_change_the_rest_of_the_link(answering, wren, capsys) -> None:
    answering(lambda _server, _session: None)
    for view, after in {
        "memory?memory=L5M278": "#/memory?memory=L5M278",
        "#/trace?prompt=a+b%26c": "#/trace?prompt=a+b%26c",
        "trace\n#x": "#/trace%0A%23x",
    }.items():
        serve(wren, port=0, browser=False, view=view)
        link = capsys.readouterr().out.strip()
        assert "\n" not in link and link.partition("#")[1:] == (after[0], after[1:])
