"""The tools over the Model Context Protocol, by its official SDK: on standard input and output, or over HTTP."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from unembed.cli.agents.calls import Calls, answer
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
    """The protocol's server, whose tools are the commands.

    Raises:
        ExtraMissing: the SDK is not installed.
    """
    try:
        import mcp_types as types
        from mcp.server.lowlevel import Server
    except ImportError:
        raise ExtraMissing(
            "unembed mcp", why="the package mcp is not installed", instead="pip install 'unembed[mcp]'"
        ) from None
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
        # A client that cancels gets its answer at once; the model's work ends on its own, and the next call waits.
        text, failed = await anyio.to_thread.run_sync(
            answer, calls, request.name, request.arguments or {}, abandon_on_cancel=True
        )
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    return Server(
        "unembed",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def serve_stdio(calls: Calls) -> None:
    """Answer on standard input and output until the client closes them. All else that is printed goes to stderr."""
    server = server_of(calls)
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            sys.stdout = sys.stderr
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)
