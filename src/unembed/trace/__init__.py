"""Analyses of one prompt: logit lens, memories, attention heads, logit attribution, and the main findings in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.trace.build_view import TraceSettings as TraceSettings
    from unembed.trace.build_view import Tracing as Tracing
    from unembed.trace.build_view import explain_view as explain_view
    from unembed.trace.build_view import trace_view as trace_view
    from unembed.trace.explanation import Explanation as Explanation
    from unembed.trace.explanation import compared_with as compared_with
    from unembed.trace.grid import Emergence as Emergence
    from unembed.trace.grid import Part as Part
    from unembed.trace.grid import emergence as emergence
    from unembed.trace.grid import emerging as emerging
    from unembed.trace.grid import spread as spread
    from unembed.trace.grid import trajectories as trajectories
    from unembed.trace.heads_on_prompt import HeadHereView as HeadHereView
    from unembed.trace.heads_on_prompt import HeadSourcesView as HeadSourcesView
    from unembed.trace.heads_on_prompt import PatternsView as PatternsView
    from unembed.trace.heads_on_prompt import PatternView as PatternView
    from unembed.trace.heads_on_prompt import PromptHeadsView as PromptHeadsView
    from unembed.trace.heads_on_prompt import head_here_view as head_here_view
    from unembed.trace.heads_on_prompt import head_sources_view as head_sources_view
    from unembed.trace.heads_on_prompt import pattern_view as pattern_view
    from unembed.trace.heads_on_prompt import patterns_view as patterns_view
    from unembed.trace.heads_on_prompt import prompt_heads_view as prompt_heads_view
    from unembed.trace.lens_table import logit_lens as logit_lens
    from unembed.trace.memory_effects import MemoryEffects as MemoryEffects
    from unembed.trace.memory_effects import MemoryOrder as MemoryOrder
    from unembed.trace.one_memory import MemoryOnPrompt as MemoryOnPrompt
    from unembed.trace.one_memory import memory_on_prompt as memory_on_prompt
    from unembed.trace.question import Question as Question
    from unembed.trace.readings import Readings as Readings
    from unembed.trace.tables import EntropyAndKL as EntropyAndKL
    from unembed.trace.trace import Trace as Trace
    from unembed.trace.two_prompts import ComparisonView as ComparisonView
    from unembed.trace.two_prompts import alignment_of as alignment_of
    from unembed.trace.two_prompts import compared_tokens as compared_tokens
    from unembed.trace.two_prompts import comparison_view as comparison_view
    from unembed.trace.two_prompts import given_coefficients as given_coefficients
    from unembed.trace.view import READERS as READERS
    from unembed.trace.view import SCHEMA_EXPLAIN as SCHEMA_EXPLAIN
    from unembed.trace.view import SCHEMA_TRACE as SCHEMA_TRACE
    from unembed.trace.view import AttributionView as AttributionView
    from unembed.trace.view import EventView as EventView
    from unembed.trace.view import Finding as Finding
    from unembed.trace.view import GridView as GridView
    from unembed.trace.view import HeadEffectsView as HeadEffectsView
    from unembed.trace.view import HeadEffectView as HeadEffectView
    from unembed.trace.view import HeadSource as HeadSource
    from unembed.trace.view import LayerView as LayerView
    from unembed.trace.view import MemoriesView as MemoriesView
    from unembed.trace.view import SubUpdateView as SubUpdateView
    from unembed.trace.view import TraceView as TraceView
    from unembed.trace.view import mixer_of_all as mixer_of_all
    from unembed.trace.view import mixers_in_words as mixers_in_words
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "build_view": "TraceSettings Tracing explain_view trace_view",
            "explanation": "Explanation compared_with",
            "grid": "Emergence Part emergence emerging spread trajectories",
            "heads_on_prompt": "HeadHereView HeadSourcesView PatternsView PatternView PromptHeadsView "
            "head_here_view head_sources_view pattern_view patterns_view prompt_heads_view",
            "lens_table": "logit_lens",
            "memory_effects": "MemoryEffects MemoryOrder",
            "one_memory": "MemoryOnPrompt memory_on_prompt",
            "question": "Question",
            "readings": "Readings",
            "tables": "EntropyAndKL",
            "trace": "Trace",
            "two_prompts": "ComparisonView alignment_of compared_tokens comparison_view given_coefficients",
            "view": "READERS SCHEMA_EXPLAIN SCHEMA_TRACE AttributionView EventView Finding GridView "
            "HeadEffectsView HeadEffectView HeadSource LayerView MemoriesView SubUpdateView TraceView mixer_of_all "
            "mixers_in_words",
        },
    )
