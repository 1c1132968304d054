"""Make generated text less toxic by turning on memories (FFN neurons) that promote other words, and compare baselines.

To turn on a memory is to set its coefficient to a fixed value. This package selects memories, scores text, and compares
the method with a word filter and self-debiasing. Source: Geva et al. 2022, section 6.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.toxicity.comments import read_comments as read_comments
    from unembed.toxicity.evaluation import Arm as Arm
    from unembed.toxicity.evaluation import Evaluation as Evaluation
    from unembed.toxicity.evaluation import evaluate as evaluate
    from unembed.toxicity.evaluation import plain as plain
    from unembed.toxicity.evaluation import published_table as published_table
    from unembed.toxicity.evaluation import with_self_debiasing as with_self_debiasing
    from unembed.toxicity.evaluation import with_values as with_values
    from unembed.toxicity.evaluation import with_word_filter as with_word_filter
    from unembed.toxicity.prompts import Prompt as Prompt
    from unembed.toxicity.prompts import read_prompts as read_prompts
    from unembed.toxicity.scorers import Classifier as Classifier
    from unembed.toxicity.scorers import Lexicon as Lexicon
    from unembed.toxicity.scorers import Linear as Linear
    from unembed.toxicity.scorers import Scorer as Scorer
    from unembed.toxicity.scorers import StoredScores as StoredScores
    from unembed.toxicity.scorers import open_scorer as open_scorer
    from unembed.toxicity.selection import PAPER_VALUES as PAPER_VALUES
    from unembed.toxicity.selection import Selection as Selection
    from unembed.toxicity.selection import by_scorer as by_scorer
    from unembed.toxicity.selection import greedy as greedy
    from unembed.toxicity.selection import manual as manual
    from unembed.toxicity.selection import paper_values as paper_values
    from unembed.toxicity.selection import value_scores as value_scores
    from unembed.toxicity.self_debiasing import SelfDebiasing as SelfDebiasing
    from unembed.toxicity.word_filter import WordFilter as WordFilter
    from unembed.toxicity.word_filter import read_words as read_words
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "comments": "read_comments",
            "evaluation": "Arm Evaluation evaluate plain "
            "published_table with_self_debiasing with_values with_word_filter",
            "prompts": "Prompt read_prompts",
            "scorers": "Classifier Lexicon Linear Scorer StoredScores open_scorer",
            "selection": "PAPER_VALUES Selection by_scorer greedy manual paper_values value_scores",
            "self_debiasing": "SelfDebiasing",
            "word_filter": "WordFilter read_words",
        },
        offered="Linear SelfDebiasing WordFilter by_scorer evaluate greedy open_scorer plain read_prompts with_values",
    )
