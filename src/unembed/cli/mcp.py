"""`unembed mcp`: the commands as tools of an agent."""

from __future__ import annotations

from unembed.cli.command import command
from unembed.cli.option_groups import Opening
from unembed.options import IndexFolder


@command("mcp", "unembed mcp --model wren")
def mcp(index: IndexFolder = None, opening: Opening = Opening()) -> None:
    """Let an agent ask: every command that answers a question, as a tool of the Model Context Protocol.

    A client starts this command and talks to it on standard input and output. Tools have the names of the commands
    (`circuits head` is `circuits-head`), take their options, and answer with what the terminal shows, at most 4,000
    characters at a time. One model is open at a time: --model, or a shipped one that a call names. No tool reads or
    writes a file that is not named here.
    """
    from unembed.cli.agents.calls import Calls
    from unembed.cli.agents.server import serve_stdio

    serve_stdio(Calls(opening, index))
