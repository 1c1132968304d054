"""One prompt in full: readings, sub-updates, events, logit attribution, and its main findings in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.trace.lens_table import logit_lens as logit_lens
    from unembed.trace.memory_effects import MemoryEffects as MemoryEffects
    from unembed.trace.memory_effects import MemoryOrder as MemoryOrder
    from unembed.trace.question import Question as Question
    from unembed.trace.readings import Readings as Readings
    from unembed.trace.tables import EntropyAndKL as EntropyAndKL
    from unembed.trace.trace import Trace as Trace
else:
    __getattr__ = import_on_first_use(__name__)
