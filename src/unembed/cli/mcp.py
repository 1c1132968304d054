"""`unembed mcp`: offer the commands as tools to an agent, over the Model Context Protocol."""

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
        bool, Option("Serve over HTTP, at an address with a secret token, instead of standard input and output.")
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = 7333,
    opening: Opening = Opening(),
) -> None:
    """Offer the analysis commands to an agent, as tools of the Model Context Protocol.

    A client starts this command and talks to it on standard input and output; with --http, clients on this machine send
    requests to the address that it prints. A tool has the name of its command (`circuits head` is `circuits-head`),
    takes the same options, and returns what the terminal shows, at most 4,000 characters at a time, and figures.
    One model is open at a time: --model, or a shipped model that a call names. Tools read and write no files except
    those in the options of this command.
    """
    from unembed.cli.agents.calls import Calls
    from unembed.cli.agents.server import serve_http, serve_stdio

    calls = Calls(opening, index)
    calls.open_default()
    if http:
        serve_http(calls, host, port)
    else:
        serve_stdio(calls)
