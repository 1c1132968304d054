"""The feed-forward layer as key-value memory: value vectors, sub-updates, saturation and elimination, clusters.

This package analyses memories (FFN neurons). The texts on which each fires most are stored by `unembed.index`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.memories.confidence import ConfidenceMemories as ConfidenceMemories
    from unembed.memories.confidence import confidence_memories as confidence_memories
    from unembed.memories.standard_scores import distinctive_tokens as distinctive_tokens
    from unembed.memories.truth_of_values import ReadingTruth as ReadingTruth
    from unembed.memories.truth_of_values import reading_truth as reading_truth
    from unembed.memories.usual_coefficients import sized as sized
    from unembed.memories.usual_coefficients import usual_size as usual_size
    from unembed.memories.value_view import MemoryView as MemoryView
    from unembed.memories.value_view import memory_view as memory_view
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "standard_scores": "distinctive_tokens",
            "confidence": "ConfidenceMemories confidence_memories",
            "truth_of_values": "ReadingTruth reading_truth",
            "usual_coefficients": "sized usual_size",
            "value_view": "MemoryView memory_view",
        },
    )
