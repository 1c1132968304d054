"""The address of the explorer: taken before its link is printed."""

from __future__ import annotations

import socket

import pytest

from unembed.errors import InvalidInput
from unembed.server.running import listening


def test_a_browser_quicker_than_the_server_is_not_refused() -> None:
    with listening("127.0.0.1", 0) as taken:
        address = taken.getsockname()
        with socket.create_connection(address, timeout=5):
            pass
        with pytest.raises(InvalidInput, match="another --port"):
            listening(*address)


def test_an_address_of_no_machine_here_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot listen on 203"):
        listening("203.0.113.7", 0)


def test_no_answer_waits_for_the_one_before_to_be_acknowledged() -> None:
    """TCP_NODELAY is set by asyncio on sockets that say they are TCP; without it each answer takes 40 ms more."""
    with listening("127.0.0.1", 0) as taken:
        assert taken.proto == socket.IPPROTO_TCP
