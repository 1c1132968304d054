"""Check the messages of transformers while it loads a model: refuse missing weights, warn about the rest."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

from unembed.errors import ModelUnavailable, UnembedWarning

_SHOWN = 3
"""Largest number of tensor names listed in a message."""
_WRAPPERS = ("_orig_mod.", "module.")
"""Prefixes that `torch.compile` and `DistributedDataParallel` add to the names of the weights that they save."""


class LogMessages(logging.Handler):
    """Collects a logger's messages, without repetitions."""

    def __init__(self, name: str) -> None:
        """Start without messages; `name` is the name of the model or tokenizer that is being loaded."""
        super().__init__(logging.WARNING)
        self.of, self.messages = name, dict[str, None]()

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a message as one line, except for the report on weights, which `check_weights` handles."""
        if record.name != "transformers.utils.loading_report" and "LOAD REPORT" not in record.getMessage():
            self.messages[" ".join(record.getMessage().split())] = None

    def warn(self) -> None:
        """Raise a Python warning for each message, in one line."""
        for message in self.messages:
            warnings.warn(f"transformers says of {self.of}: {message}", UnembedWarning, stacklevel=2)


@contextmanager
def collected_log(name: str) -> Iterator[LogMessages]:
    """A context that hides transformers' progress bars and collects its log messages instead of printing them.

    When loading has succeeded, the caller turns the collected messages into warnings with `LogMessages.warn`.

    Args:
        name: the name of the model or tokenizer, for the messages.
    """
    logger, bars = logging.getLogger("transformers"), transformers_logging.is_progress_bar_enabled()
    placing = logging.getLogger("accelerate.big_modeling")  # its warning about offloaded weights is hidden
    before, placing_level = (logger.handlers, logger.propagate, logger.level), placing.level
    messages = LogMessages(name)
    logger.handlers, logger.propagate = [messages], False
    logger.setLevel(logging.WARNING)
    transformers_logging.disable_progress_bar()
    placing.setLevel(logging.ERROR)
    try:
        yield messages
    finally:
        placing.setLevel(placing_level)
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])
        if bars:
            transformers_logging.enable_progress_bar()


def check_weights(name: str, info: Mapping[str, Any]) -> None:
    """Refuse a model whose files lack some weights, because transformers initialises these at random.

    Args:
        name: the name of the model, for error messages.
        info: the loading info that `from_pretrained(output_loading_info=True)` returns.

    Raises:
        ModelUnavailable: weights are missing, or do not have the shape that the config gives.
    """
    missing, extra = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    mismatched = sorted(entry[0] for entry in info["mismatched_keys"])
    if mismatched:
        raise ModelUnavailable(
            f"model {name}",
            why=f"{_listed(mismatched)} in its files has another shape than its config.json says",
            instead="Give the config.json that was saved with these weights",
        )
    if missing:
        wrapper = next((w for w in _WRAPPERS if any(w in key for key in extra)), None)
        raise ModelUnavailable(
            f"model {name}",
            why=f"its files lack {_listed(missing)}, which transformers would initialise at random"
            + (
                f"; the names in the files begin with {wrapper!r}, as a model saved in a wrapper has them"
                if wrapper
                else ""
            ),
            instead=f"Save the model inside the wrapper, or remove {wrapper!r} from the names"
            if wrapper
            else "Save the whole model again",
        )
    if extra:
        warnings.warn(
            f"the files of {name} hold weights that its architecture does not use: {_listed(extra)}",
            UnembedWarning,
            stacklevel=2,
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
