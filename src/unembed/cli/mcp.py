"""`unembed mcp`: the commands as tools of an agent."""

from __future__ import annotations

from typing import Annotated

from unembed.cli.command import command
from unembed.cli.option_groups import Opening
from unembed.cli.serve import Host, Port
from unembed.options import IndexFolder, Option


@command("mcp", "unembed mcp --model wren")
def mcp(
    index: IndexFolder = None,
    http: Annotated[
        bool, Option("Answer over HTTP, at an address with a token, not on standard input and output.")
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = 7333,
    opening: Opening = Opening(),
) -> None:
    """Let an agent ask: every command that answers a question, as a tool of the Model Context Protocol.

    A client starts this command and talks to it on standard input and output; with --http, clients on this machine send
    requests to the address that it prints. Tools have the names of the commands (`circuits head` is `circuits-head`),
    take their options, and answer with what the terminal shows, at most 4,000 characters at a time, and with figures.
    One model is open at a time: --model, or a shipped one that a call names. No tool reads or writes a file that is not
    named here.
    """
    from unembed.cli.agents.calls import Calls
    from unembed.cli.agents.server import serve_http, serve_stdio

    calls = Calls(opening, index)
    calls.open_default()
    if http:
        serve_http(calls, host, port)
    else:
        serve_stdio(calls)
