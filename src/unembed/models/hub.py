"""Find out with one request, and without torch, whether the Hugging Face hub can be reached.

`transformers` repeats each request five times, for half a minute in all, before it reports that there is no network.
"""

from __future__ import annotations

from unembed.errors import ModelUnavailable, first_sentence
from unembed.models.known_names import did_you_mean, known_names

TIMEOUT = 2.0
"""Seconds without a response after which the hub is treated as unreachable."""


def is_local_only(name: str, revision: str | None = None) -> bool:
    """Return True if a hub model must be read from the local cache, because the hub cannot be reached.

    Args:
        name: the model's id.
        revision: its commit, tag or branch.

    Raises:
        ModelUnavailable: the hub cannot be reached and the cache does not hold the model.
    """
    if (why := _unreachable()) is None:
        return False
    if not _is_cached(name, revision):
        raise ModelUnavailable(
            f"model {name}",
            why=f"it is not in the local cache, and the hub cannot be reached ({why})",
            instead=f"{did_you_mean(name)}Check the network, give a folder, or use one of {', '.join(known_names())}",
        )
    return True


def is_path(name: str) -> bool:
    """Tell whether a name must be a path, because no repository on the hub can have such an id."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def _unreachable() -> str | None:
    """Return the reason why the hub cannot be reached; None if it can be."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception as error:  # errors of the HTTP library, which differs between versions of huggingface_hub
        return first_sentence(error)
    return None


def _is_cached(name: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    except ValueError:  # the name cannot be a hub id; the loader will report this
        return True
