"""A model that is opened when it is needed: an index or a saved file may answer a question without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from unembed.models.decoder import Decoder
    from unembed.models.weight_records import KnownWeights


@runtime_checkable
class UnopenedModel(Protocol):
    """A model that a surface names, before it is opened."""

    @property
    def name(self) -> str:
        """What opens it: an embedded name, a folder, or the id of a hub model."""
        ...

    @property
    def known(self) -> KnownWeights | None:
        """Its weights; None where only opening it can tell them, or it is opened otherwise than it was saved."""
        ...

    @property
    def is_as_saved(self) -> bool:
        """Tell whether it is opened as it was saved: its own dtype and tokenizer, no adapter, no lens."""
        ...

    @property
    def lens_identity(self) -> str | None:
        """What tells the lens from others by which values are read where no basis is named; opens no model.

        None: values are read by the logit lens.
        """
        ...

    def open(self) -> Decoder:
        """Return the opened model, the same at each call.

        Raises:
            ModelUnavailable: no such model, folder or network.
        """
        ...
