"""Open a decoder, find its structure, and give access to its weights and norms.

The structure is found by running the loaded model once. Weight matrices are oriented as in the papers (rows are
vectors, matrices act on the right), and norms are treated as linear maps with a fixed scale. Running a model on text
and recording its activations is the task of `unembed.stream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.models.chat import read_messages as read_messages
    from unembed.models.checkpoints import find_checkpoints as find_checkpoints
    from unembed.models.download import fetch_model as fetch_model
    from unembed.models.fingerprint import weights_checksum as weights_checksum
    from unembed.models.hub import is_local_only as is_local_only
    from unembed.models.model_source import UnopenedModel as UnopenedModel
    from unembed.models.named_tokens import Candidate as Candidate
    from unembed.models.named_tokens import Scored as Scored
    from unembed.models.named_tokens import Token as Token
    from unembed.models.published_models import PUBLISHED as PUBLISHED
    from unembed.models.published_models import is_fetched as is_fetched
    from unembed.models.published_models import published_folder as published_folder
    from unembed.models.shipped_models import DEFAULT_MODEL as DEFAULT_MODEL
    from unembed.models.shipped_models import SHIPPED as SHIPPED
    from unembed.models.shipped_models import shipped_folder as shipped_folder
    from unembed.models.sizes import model_sizes as model_sizes
    from unembed.models.weight_records import KnownWeights as KnownWeights
    from unembed.models.weight_records import known_weights as known_weights
    from unembed.models.weight_records import record_weights as record_weights
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "chat": "read_messages",
            "checkpoints": "find_checkpoints",
            "download": "fetch_model",
            "fingerprint": "weights_checksum",
            "hub": "is_local_only",
            "named_tokens": "Candidate Scored Token",
            "published_models": "PUBLISHED is_fetched published_folder",
            "shipped_models": "DEFAULT_MODEL SHIPPED shipped_folder",
            "sizes": "model_sizes",
            "model_source": "UnopenedModel",
            "weight_records": "KnownWeights known_weights record_weights",
        },
    )
