"""A model that is opened only when it is needed, because an index or a saved file may answer a question without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from unembed.models.decoder import Decoder
    from unembed.models.weight_records import KnownWeights


@runtime_checkable
class UnopenedModel(Protocol):
    """A model that the command line or the server knows by name, but has not opened yet."""

    @property
    def name(self) -> str:
        """The name that opens the model: a shipped model's name, a folder, or the id of a hub model."""
        ...

    @property
    def known(self) -> KnownWeights | None:
        """The fingerprints of the model's weights.

        None if they are not known before the model is opened, or if it is opened in another dtype or otherwise changed.
        """
        ...

    @property
    def is_as_saved(self) -> bool:
        """Whether the model is opened as it was saved: with its dtype and tokenizer, and without adapter or lens."""
        ...

    @property
    def lens_identity(self) -> str | None:
        """An identifier of the lens by which tokens are scored if the user chooses no basis; None for the logit lens.

        It is found without opening the model.
        """
        ...

    def open(self) -> Decoder:
        """Return the opened model, the same object at each call.

        Raises:
            ModelUnavailable: the model or its folder is not found, or the hub cannot be reached.
        """
        ...
