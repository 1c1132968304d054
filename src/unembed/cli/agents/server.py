"""Serve the tools over the Model Context Protocol with its official SDK: on standard input and output, or over HTTP."""

from __future__ import annotations

import sys
import time
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unembed.cli.agents.calls import Calls, UnderWay, answer
from unembed.errors import ExtraMissing
from unembed.version import __version__

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_INSTRUCTIONS = (
    "unembed shows how a transformer language model builds its prediction. Begin with `trace`: it shows the prediction "
    "after a prompt, where in the model it forms, and which parts decide it. `explain` compares two tokens, `value` "
    "shows one memory (FFN neuron), `ablate` and `patch` measure what parts do by changing the model. Numbers are "
    "measured on the model itself; what a direction 'promotes' is a reading, which an ablation may contradict."
)
_PATH = "/api/mcp"
_MORE = "Read a further page of an answer that was longer than one."
_MORE_SCHEMA = {
    "type": "object",
    "properties": {
        "handle": {"type": "string", "description": "The handle at the end of the answer's first page."},
        "page": {"type": "integer", "minimum": 1, "description": "The page, from 1."},
    },
    "required": ["handle", "page"],
    "additionalProperties": False,
}


def server_of(calls: Calls) -> Server[Any]:
    """Return a Model Context Protocol server whose tools are the commands.

    Raises:
        ExtraMissing: the package `mcp` is not installed.
    """
    try:
        import mcp_types as types
        from mcp.server.lowlevel import Server
    except ImportError:
        raise ExtraMissing(
            "unembed mcp", why="the package mcp is not installed", instead="pip install 'unembed[mcp]'"
        ) from None
    import anyio.from_thread
    import anyio.to_thread

    async def list_tools(context: Any, request: Any) -> types.ListToolsResult:
        made = [
            types.Tool(name=tool.name, description=tool.command.help, input_schema=tool.schema(calls.models))
            for tool in calls.tools.values()
        ]
        return types.ListToolsResult(
            tools=[*made, types.Tool(name="more", description=_MORE, input_schema=_MORE_SCHEMA)]
        )

    async def call_tool(context: Any, request: types.CallToolRequestParams) -> types.CallToolResult:
        # If the client cancels the call, this coroutine ends at once. The thread that runs the tool ends later: it
        # checks for cancellation before each forward pass.
        def send(done: float, total: float | None, stage: str) -> None:
            anyio.from_thread.run(context.session.report_progress, done, total, stage)

        under_way = UnderWay(_throttled(send))
        arguments = request.arguments or {}
        try:
            given = await anyio.to_thread.run_sync(
                answer, calls, request.name, arguments, under_way, abandon_on_cancel=True
            )
        except anyio.get_cancelled_exc_class():
            under_way.cancelled.set()
            raise
        pictures = [
            types.ImageContent(type="image", data=b64encode(one).decode("ascii"), mime_type="image/png")
            for one in given.pictures
        ]
        text = types.TextContent(type="text", text=given.text)
        return types.CallToolResult(content=[text, *pictures], is_error=given.failed)

    return Server(
        "unembed",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _throttled(send: Callable[[float, float | None, str], None]) -> Callable[[str, int, int | None], None]:
    """Wrap a function that sends progress so that it is called at most twice a second."""
    last = 0.0

    def report(stage: str, done: int, total: int | None) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= 0.5:
            last = now
            send(done, total, stage)

    return report


def serve_stdio(calls: Calls) -> None:
    """Serve on standard input and output until the client closes them. Other printed text goes to stderr."""
    server = server_of(calls)
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            sys.stdout = sys.stderr
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


def serve_http(calls: Calls, host: str, port: int) -> None:
    """Serve over HTTP until interrupted. Prints the address, and the token that a client must send.

    Host names, origins, the token and the size of requests are checked in the same way as in the explorer (`Guard`).

    Raises:
        InvalidInput: the address cannot be used.
    """
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    from unembed.server.auth import LOOPBACK, Guard, new_token
    from unembed.server.serve import listening_socket

    # `Guard` already checks host names and origins, so the SDK's own check is turned off.
    open_to_all = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server_of(calls).streamable_http_app(streamable_http_path=_PATH, transport_security=open_to_all)
    listener, token = listening_socket(host, port), new_token()
    port = listener.getsockname()[1]
    guarded = Guard(app, token, port, LOOPBACK | {host.lower()}, needed="Send the token that `unembed mcp` printed")
    if host not in LOOPBACK:
        print(f"unembed: {host} can be reached from other machines; anyone with the token can use it.", file=sys.stderr)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}{_PATH}"
    print(f"unembed tools of {calls.opening.model}: {address}\nAuthorization: Bearer {token}", flush=True)
    config = uvicorn.Config(guarded, log_level="warning", access_log=False, server_header=False)
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
