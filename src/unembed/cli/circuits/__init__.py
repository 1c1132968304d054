"""`unembed circuits ...`: heads by their weights, on a prompt (`on_prompt`) and on text (`on_text`)."""

from unembed.cli.circuits import by_weights, on_prompt, on_text
from unembed.cli.circuits.command import app

__all__ = ["app", "by_weights", "on_prompt", "on_text"]
