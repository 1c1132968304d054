"""Check the options of a study, and the model that it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from jaxtyping import Bool
from torch import Tensor

from unembed.annotation.judge import require_judge
from unembed.corpus import Corpus, open_corpus
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder

T = TypeVar("T")
_KINDS: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def options_of(cls: type[T], study: str, given: Mapping[str, Any]) -> T:
    """Return the given options as an instance of the study's dataclass; the others have their defaults.

    Raises:
        InvalidInput: there is no such option, or its value has the wrong type.
    """
    known = {f.name: str(f.type) for f in fields(cls)}  # pyright: ignore[reportArgumentType]
    for name, value in given.items():
        if name not in known:
            raise InvalidInput(f"option {name!r}", why=f"the options of {study} are {', '.join(known)}")
        if name == "judge":
            if value is not None:
                require_judge(value)
            continue
        kind, optional = known[name].removesuffix(" | None"), known[name].endswith(" | None")
        kind = kind if kind in _KINDS else "str"  # the words of a `Literal` are checked later, where the option is used
        fits = isinstance(value, _KINDS[kind]) and (kind == "bool" or not isinstance(value, bool))
        if not fits and not (optional and value is None):
            raise InvalidInput(f"option {name}={value!r}", why=f"it must be of type {kind}")
    return cls(**given)


def require_at_least(options: object, least: int, *names: str) -> None:
    """Raise an error if one of the named options is less than `least`.

    Raises:
        InvalidInput: an option is less than `least`.
    """
    for name in names:
        if getattr(options, name) < least:
            raise InvalidInput(f"option {name}={getattr(options, name)}", why=f"it must be at least {least}")


def require_memories(lm: Decoder, study: str) -> None:
    """Raise an error for a model without memories (FFN neurons), or without a tokenizer.

    Raises:
        Unsupported: the model has no layers, or a layer has no FFN with memories.
        InvalidInput: the model has no tokenizer.
    """
    if not lm.n_layers:
        raise Unsupported(f"{study} on {lm.name}", why="it has no layers")
    for layer in range(lm.n_layers):
        lm.feed_forward(layer)
    _ = lm.vocabulary  # raises InvalidInput if there is no tokenizer


def open_like(source: str, corpus: Corpus) -> Corpus:
    """Open a second text of a study, detokenized or split into words by Moses if the study's own corpus is."""
    return replace(open_corpus(source), detokenize=corpus.detokenize, moses=corpus.moses)


def hidden_tokens(lm: Decoder, include_unlearned: bool) -> Bool[Tensor, " d_vocab"] | None:
    """Return a mask of the tokens to leave out of rankings: tokens that the model never learned; None for no tokens."""
    return None if include_unlearned or not lm.unlearned.any() else lm.unlearned


def facts_of_memories(lm: Decoder) -> dict[str, Any]:
    """Return the first facts at the top of a report on memories, with a note for mixture-of-experts models."""
    facts = {"model": lm.name, "layers": lm.n_layers, "memories (FFN neurons) a layer": lm.memories_a_layer}
    routed = sum(lm.experts_of(layer) is not None for layer in range(lm.n_layers))
    if not routed:
        return facts
    note = (
        f"in {routed} of {lm.n_layers} layers; memories of experts that the router did not choose have the coefficient "
        "0: they count as inactive, and random sub-updates are drawn from the others"
    )
    return {**facts, "experts": note}
