"""Turn the results of a trace into tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from unembed.attention.behaviour.head_outputs import HeadUpdate
from unembed.memories.events import Event
from unembed.memories.top_sub_updates import SubUpdate
from unembed.models.decoder import Decoder
from unembed.names import head_name
from unembed.results import Displayed, Provenance, Records, Table
from unembed.trace.described_memories import DescribedMemory


@dataclass(frozen=True, eq=False, repr=False)
class EntropyAndKL(Displayed):
    """The entropy of what a lens reads, and its KL divergence from the final prediction, in nats.

    Unpacks into the two tensors: `entropy, kl = ...`.
    """

    point: str
    entropy: Float[Tensor, "layer pos"]
    kl: Float[Tensor, "layer pos"]
    """sum p log(p / q), where the lens reads p and the model finally predicts q at that position."""
    tokens: tuple[str, ...]
    provenance: Provenance

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the entropy, then the divergence."""
        return iter((self.entropy, self.kl))

    def to_table(self) -> Table:
        """One row for each layer and position."""
        layers, positions = self.entropy.shape
        columns = {
            "layer": [n for n in range(layers) for _ in range(positions)],
            "position": list(range(positions)) * layers,
            "token": list(self.tokens) * layers,
            "entropy": self.entropy.flatten().tolist(),
            "kl": self.kl.flatten().tolist(),
        }
        title = f"Entropy at {self.point} and KL divergence from the final prediction, nats"
        return Table(title, columns, self.provenance)


def event_records(title: str, lm: Decoder, events: Sequence[Event], provenance: Provenance) -> Records[Event]:
    """Return events or rank changes as a table; `token` is the token whose rank changes."""
    columns: dict[str, list[object]] = {
        "event": [e.kind for e in events],
        "layer": [e.layer for e in events],
        "position": [e.position for e in events],
        "token": list(lm.token_strings([e.token for e in events])) if events else [],
        "rank_before": [e.rank_before for e in events],
        "rank_after": [e.rank_after for e in events],
        "cause": [e.cause for e in events],
    }
    return Records.of(title, events, columns, provenance)


def sub_update_records(title: str, updates: Sequence[SubUpdate], provenance: Provenance) -> Records[SubUpdate]:
    """Return what memories add to the stream as a table; without the score column if no memory has a score."""
    columns: dict[str, list[object]] = {
        "memory": [u.name for u in updates],
        "coefficient": [u.coefficient for u in updates],
        "norm": [u.norm for u in updates],
        "contribution": [u.contribution for u in updates],
        "share": [u.share for u in updates],
        "score": [u.score for u in updates],
        "promoted_tokens": [u.promoted[:5] for u in updates],
    }
    if all(u.score is None for u in updates):
        del columns["score"]
    return Records.of(title, updates, columns, provenance)


def head_update_records(title: str, updates: Sequence[HeadUpdate], provenance: Provenance) -> Records[HeadUpdate]:
    """Return what heads add to the stream as a table; without the score column if no head has a score."""
    columns: dict[str, list[object]] = {
        "head": [head_name(u.layer, u.index) for u in updates],
        "norm": [u.norm for u in updates],
        "share": [u.share for u in updates],
        "score": [u.score for u in updates],
        "promoted_tokens": [u.top_tokens[:5] for u in updates],
    }
    if all(u.score is None for u in updates):
        del columns["score"]
    return Records.of(title, updates, columns, provenance)


def described_records(
    title: str, memories: Sequence[DescribedMemory], provenance: Provenance
) -> Records[DescribedMemory]:
    """Return the memories that have a description as a table."""
    names = {"memory": "name", "effect": "effect", "description": "description"}
    columns = {name: [getattr(one, field) for one in memories] for name, field in names.items()}
    return Records.of(title, memories, columns, provenance)
