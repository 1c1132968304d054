"""See how a transformer language model builds its prediction.

Public names are imported on first use, so that `import unembed` stays light:

    lm = unembed.load()                 the embedded model "wren"; also a hub id, a folder, or a model in memory
    trace = lm.trace("The first ...")   one prompt seen whole
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from unembed.lazy import import_on_first_use
from unembed.version import __version__

_HOMES: dict[str, str] = {
    "load": "unembed.language_model",
    "LanguageModel": "unembed.language_model",
    "Edit": "unembed.stream.interventions",
    "Trace": "unembed.trace.trace",
    "Attribution": "unembed.logit_attribution",
    "set_coefficient": "unembed.stream.interventions",
    "scale_coefficient": "unembed.stream.interventions",
    "add_to_coefficient": "unembed.stream.interventions",
    "scale_head": "unembed.stream.interventions",
    "scale_attention": "unembed.stream.interventions",
    "scale_ffn": "unembed.stream.interventions",
    "add_vector": "unembed.stream.interventions",
    "replace_stream": "unembed.stream.interventions",
    "value_readings": "unembed.memories.values",
    "cluster": "unembed.memories.clustering.value_clusters",
    "cluster_values": "unembed.memories.clustering.value_clusters",
    "report": "unembed.reports.report",
    "steering": "unembed.control",
    "early_exit": "unembed.control",
    "toxicity": "unembed.control",
    "circuits": "unembed.attention.circuits",
    "examine": "unembed.environment",
    "Index": "unembed.index.index",
    "cached_index": "unembed.index.default_index",
    "rank_memories": "unembed.gallery.ranking",
    "event_sample": "unembed.memories.event_sample",
    "sub_update_effects": "unembed.memories.effects",
    "annotation": "unembed.concepts",
    "value_concepts": "unembed.concepts.value_concepts",
    "train": "unembed.training.train_model",
    "train_dictionary": "unembed.dictionaries.train_dictionary",
    "open_dictionary": "unembed.dictionaries.files",
    "FeatureEdit": "unembed.dictionaries.attachment",
    "UnembedError": "unembed.errors",
    "open_corpus": "unembed.corpus.corpus",
    "sweep": "unembed.sweeps.sweep",
    "logit_difference": "unembed.causality.metrics",
    "probability": "unembed.causality.metrics",
    "log_probability": "unembed.causality.metrics",
    "kl": "unembed.causality.metrics",
    "GaussianNoise": "unembed.causality.patching",
    "screen": "unembed.causality.screening",
    "open_result": "unembed.results.result_files",
}
"""Every public name and the module it comes from."""

__all__ = ["__version__", *sorted(_HOMES)]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from unembed.attention.circuits import circuits as circuits
    from unembed.causality.metrics import kl as kl
    from unembed.causality.metrics import log_probability as log_probability
    from unembed.causality.metrics import logit_difference as logit_difference
    from unembed.causality.metrics import probability as probability
    from unembed.causality.patching import GaussianNoise as GaussianNoise
    from unembed.causality.screening import screen as screen
    from unembed.concepts import annotation as annotation
    from unembed.concepts.value_concepts import value_concepts as value_concepts
    from unembed.control import early_exit as early_exit
    from unembed.control import steering as steering
    from unembed.control import toxicity as toxicity
    from unembed.corpus.corpus import open_corpus as open_corpus
    from unembed.dictionaries.attachment import FeatureEdit as FeatureEdit
    from unembed.dictionaries.files import open_dictionary as open_dictionary
    from unembed.dictionaries.train_dictionary import train_dictionary as train_dictionary
    from unembed.environment import examine as examine
    from unembed.errors import UnembedError as UnembedError
    from unembed.gallery.ranking import rank_memories as rank_memories
    from unembed.index.default_index import cached_index as cached_index
    from unembed.index.index import Index as Index
    from unembed.language_model import LanguageModel as LanguageModel
    from unembed.language_model import load as load
    from unembed.logit_attribution import Attribution as Attribution
    from unembed.memories.clustering.value_clusters import cluster as cluster
    from unembed.memories.clustering.value_clusters import cluster_values as cluster_values
    from unembed.memories.effects import sub_update_effects as sub_update_effects
    from unembed.memories.event_sample import event_sample as event_sample
    from unembed.memories.values import value_readings as value_readings
    from unembed.reports.report import report as report
    from unembed.results.result_files import open_result as open_result
    from unembed.stream.interventions import Edit as Edit
    from unembed.stream.interventions import add_to_coefficient as add_to_coefficient
    from unembed.stream.interventions import add_vector as add_vector
    from unembed.stream.interventions import replace_stream as replace_stream
    from unembed.stream.interventions import scale_attention as scale_attention
    from unembed.stream.interventions import scale_coefficient as scale_coefficient
    from unembed.stream.interventions import scale_ffn as scale_ffn
    from unembed.stream.interventions import scale_head as scale_head
    from unembed.stream.interventions import set_coefficient as set_coefficient
    from unembed.sweeps.sweep import sweep as sweep
    from unembed.trace.trace import Trace as Trace
    from unembed.training.train_model import train as train
else:
    _find = import_on_first_use(__name__, _HOMES)

    def __getattr__(name: str) -> Any:
        """Import a public name on first use; in a notebook, register the drawings of results."""
        value = _find(name)
        if "IPython" in sys.modules:
            importlib.import_module("unembed.notebook")
        return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
