"""A client of the protocol's SDK lists the tools and calls them; nonsense does not end the server."""

import json
import os
import subprocess
import sys

import anyio
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client


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
