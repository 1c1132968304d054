"""Load the model that a command names."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unembed import LanguageModel
    from unembed.cli.option_groups import Opening


@contextmanager
def status_line(text: str) -> Generator[None]:
    """Context manager that shows a line on stderr until it exits; nothing if stderr is not a terminal."""
    from unembed.results import visible

    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    print(visible(text, prose=True), end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


@contextmanager
def _without_collection() -> Generator[None]:
    """Context manager for imports: inside it, garbage collection is off; later collections skip the imported objects.

    For torch and transformers, garbage collection takes a fifth of the CPU time of a short command.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def opened(opening: Opening, seed: int | None = None) -> LanguageModel:
    """Load a model, without its lens, and seed torch's random numbers. On a terminal, a line is shown meanwhile.

    Raises:
        ModelUnavailable: the model, the folder or the network cannot be found.
    """
    from unembed.models import PUBLISHED, SHIPPED, is_local_only

    model, offline = opening.model, opening.offline
    with status_line(f"Opening {model} ..."):
        if not offline and model not in SHIPPED and model not in PUBLISHED and not _is_path(model):
            offline = is_local_only(model, opening.revision)  # checked before torch is imported, which takes seconds
        import unembed

        with _without_collection():
            import torch

            from unembed.validation import valid_seed

            load = unembed.load
        if seed is not None:
            torch.manual_seed(valid_seed(seed))  # pyright: ignore[reportUnknownMemberType]
        placed = "auto" if opening.device == "auto" else None
        return load(
            model,
            tokenizer=opening.tokenizer,
            revision=opening.revision,
            offline=offline,
            dtype=opening.dtype,
            device=None if placed else opening.device,
            device_map=placed,
            trust_remote_code=opening.trust_remote_code,
            adapter=opening.adapter,
            special_tokens=opening.special_tokens,
        )


def _is_path(model: str) -> bool:
    """Return True if the text is the path of an existing file or folder, or cannot be a Hugging Face id."""
    try:
        return (
            model.startswith((".", "/", "~")) or model.endswith(".gguf") or model.count("/") > 1 or Path(model).exists()
        )
    except (OSError, ValueError):
        return True


def use_lens(lm: LanguageModel, file: str | None) -> None:
    """Set the model's lens: the one in `file`, else the one stored for this model, if there is one.

    A lens that does not ship with the package prints a line on stderr when it is first used. If lenses are stored for a
    model of this name but cannot be used, a line on stderr gives the reason.

    Raises:
        InvalidInput: the file is not a lens, or belongs to another model.
    """
    from unembed.jacobian import cached_lens, lens_path, open_lens, why_passed_over

    if file is not None:
        lm.use_lens(open_lens(file))
    elif (found := cached_lens(lm)) is not None:
        lm.use_lens(found)
        dtype = found.provenance.dtype
        if (converted := dtype != lm.provenance().dtype) or lens_path(found.fingerprint).exists():
            fitted = f"{found.contexts} contexts" + (f" in {dtype}" if converted else "")
            line = f"reading with the Jacobian lens that was fitted on {fitted} (--lens none: the logit lens)"
            found.on_first_reading = partial(print, line, file=sys.stderr)
    elif (why := why_passed_over(lm)) is not None:
        print(f"unembed: {why}", file=sys.stderr)


def say_unmeasured(name: str) -> None:
    """Print a note on stderr: results use the logit lens, its error on this model is unknown, and how to measure it."""
    model = "" if name == "wren" else f" --model {shlex.quote(name)}"
    print(
        "read by the logit lens, which skips the layers that follow; how far it can be trusted was not measured "
        f"(unembed fit-lens{model} measures it)",
        file=sys.stderr,
    )
