"""Run the model, record its activations, and change them, with hooks on its modules.

Other packages, which import this one, interpret the recorded tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.stream.generation_steps import generate_steps as generate_steps
    from unembed.stream.interventions import Edit as Edit
    from unembed.stream.windows import last_tokens as last_tokens
    from unembed.stream.windows import prompt_windows as prompt_windows
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "generation_steps": "generate_steps",
            "interventions": "Edit",
            "windows": "last_tokens prompt_windows",
        },
    )
