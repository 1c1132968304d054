"""`unembed circuits ...`: heads by their weights (`command`), on a prompt (`on_prompt`) and on text (`on_text`)."""

from unembed.cli.circuits import on_prompt, on_text
from unembed.cli.circuits.command import app

__all__ = ["app", "on_prompt", "on_text"]
