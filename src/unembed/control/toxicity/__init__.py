"""Suppressing toxic text with values that promote other words, compared with known baselines.

Contains the selection of values, the baselines, the scorers and the evaluation. Source: Geva et al. 2022, section 6.1.
"""

from unembed.control.toxicity.comments import read_comments as read_comments
from unembed.control.toxicity.evaluation import Arm as Arm
from unembed.control.toxicity.evaluation import Evaluation as Evaluation
from unembed.control.toxicity.evaluation import evaluate as evaluate
from unembed.control.toxicity.evaluation import plain as plain
from unembed.control.toxicity.evaluation import published_table as published_table
from unembed.control.toxicity.evaluation import with_self_debiasing as with_self_debiasing
from unembed.control.toxicity.evaluation import with_values as with_values
from unembed.control.toxicity.evaluation import with_word_filter as with_word_filter
from unembed.control.toxicity.prompts import Prompt as Prompt
from unembed.control.toxicity.prompts import read_prompts as read_prompts
from unembed.control.toxicity.scorers import Classifier as Classifier
from unembed.control.toxicity.scorers import Lexicon as Lexicon
from unembed.control.toxicity.scorers import Linear as Linear
from unembed.control.toxicity.scorers import Scorer as Scorer
from unembed.control.toxicity.scorers import StoredScores as StoredScores
from unembed.control.toxicity.scorers import open_scorer as open_scorer
from unembed.control.toxicity.selection import PAPER_VALUES as PAPER_VALUES
from unembed.control.toxicity.selection import Selection as Selection
from unembed.control.toxicity.selection import by_scorer as by_scorer
from unembed.control.toxicity.selection import greedy as greedy
from unembed.control.toxicity.selection import manual as manual
from unembed.control.toxicity.selection import paper_values as paper_values
from unembed.control.toxicity.selection import value_scores as value_scores
from unembed.control.toxicity.self_debiasing import SelfDebiasing as SelfDebiasing
from unembed.control.toxicity.word_filter import WordFilter as WordFilter
from unembed.control.toxicity.word_filter import read_words as read_words
