"""A client of the protocol's SDK lists the tools and calls them; nonsense does not end the server."""

import json
import os
import subprocess
import sys
import threading
import time

import anyio
import anyio.to_thread
import httpx
import pytest
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_client_server_memory_streams

from unembed.cli.agents.calls import Answer, Calls, Cancelled, UnderWay
from unembed.cli.agents.server import server_of
from unembed.cli.option_groups import Opening


def test_a_client_lists_tools_and_calls_them() -> None:
    async def session() -> None:
        command = StdioServerParameters(command=sys.executable, args=["-m", "unembed", "mcp"], env=dict(os.environ))
        async with stdio_client(command) as (incoming, outgoing), ClientSession(incoming, outgoing) as client:
            greeting = await client.initialize()
            assert greeting.instructions is not None and "Begin with `trace`" in greeting.instructions
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert {"trace", "circuits-head", "more"} <= set(names)
            look = {"head": "L1H0", "prompt": "The war lasted from 1861"}
            for arguments, failed in ((look, False), ({"head": "L99H0"}, True), (look, False)):
                answered = await client.call_tool("circuits-look", arguments)
                assert answered.is_error is failed
            assert "L1H0" in answered.content[0].text

    anyio.run(session)


def test_lines_that_are_no_messages_do_not_end_the_server() -> None:
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
    }  # fmt: skip
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    ask = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    lines = ["not json", json.dumps(hello), "{}", json.dumps(done), '{"jsonrpc": "2.0"}', json.dumps(ask)]
    server = subprocess.Popen(
        [sys.executable, "-m", "unembed", "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert server.stdin is not None and server.stdout is not None
    with server:
        server.stdin.write("\n".join(lines) + "\n")
        server.stdin.flush()
        answers = []
        while not any(one.get("id") == 2 for one in answers):
            answers.append(json.loads(server.stdout.readline()))
        server.stdin.close()
        assert server.wait(60) == 0
    assert any("tools" in one.get("result", {}) for one in answers)


def test_over_http_a_client_with_the_token_gets_answers_pictures_and_progress() -> None:
    command = [sys.executable, "-m", "unembed", "mcp", "--http", "--port", "0", "--model", "attn-2l"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert server.stdout is not None
    address = server.stdout.readline().split(": ", 1)[1].strip()
    name, token = server.stdout.readline().strip().split(": ", 1)
    progress: list[str | None] = []

    async def note(_done: float, _total: float | None, stage: str | None) -> None:
        progress.append(stage)

    async def session() -> None:
        async with (
            httpx.AsyncClient(headers={name: token}, timeout=None) as http,
            streamable_http_client(address, http_client=http) as (incoming, outgoing, *_),
            ClientSession(incoming, outgoing) as client,
        ):
            await client.initialize()
            heads = await client.call_tool("circuits-heads", {}, progress_callback=note)
            assert not heads.is_error and [one.type for one in heads.content[:2]] == ["text", "image"]
            clusters = await client.call_tool("clusters", {"model": "wren"}, progress_callback=note)
            assert not clusters.is_error and "merges" in progress

    with server:
        try:
            assert httpx.post(address, json={}).status_code == 401
            assert httpx.post(address, json={}, headers={name: f"{token}x"}).status_code == 401
            assert httpx.post(address, json={}, headers={name: token, "host": "other.example"}).status_code == 421
            anyio.run(session)
        finally:
            server.terminate()


def test_a_client_that_cancels_a_call_ends_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, ended, under_way_now = Calls(Opening(model="wren")), threading.Event(), threading.Event()

    def endless(_name: str, _arguments: object, under_way: UnderWay) -> Answer:
        try:
            for step in range(100_000):
                under_way.progress("step", step, None)
                under_way_now.set()
                time.sleep(0.01)
        except Cancelled:
            ended.set()
            raise
        return Answer("it was not cancelled")

    async def session() -> None:
        async with (
            create_client_server_memory_streams() as (of_client, of_server),
            anyio.create_task_group() as group,
        ):
            server = server_of(calls)
            group.start_soon(server.run, *of_server, server.create_initialization_options())
            async with ClientSession(*of_client) as client:
                await client.initialize()
                with monkeypatch.context() as patch, anyio.CancelScope() as scope:
                    patch.setattr(calls, "call", endless)

                    async def cancel() -> None:
                        await anyio.to_thread.run_sync(under_way_now.wait)
                        scope.cancel()

                    group.start_soon(cancel)
                    await client.call_tool("trace", {"prompt": "The war"})
                assert await anyio.to_thread.run_sync(ended.wait, 60)
                look = await client.call_tool("circuits-look", {"head": "L1H0", "prompt": "The war"})
                assert not look.is_error
            group.cancel_scope.cancel()

    anyio.run(session)


def test_a_model_that_cannot_be_opened_ends_the_start_in_one_line() -> None:
    command = [sys.executable, "-m", "unembed", "mcp", "--model", "no-such-model", "--offline"]
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert ended.returncode == 1 and ended.stdout == "" and "no-such-model" in ended.stderr
    assert ended.stderr.count("\n") == 1
