"""See how a transformer language model builds its prediction.

Public names are imported on first use, so that `import unembed` stays light:

    lm = unembed.load()                 the model "wren", which ships with the package; also a Hugging Face id, a
                                        folder, or a model in memory
    trace = lm.trace("The first ...")   how the model processes one prompt, layer by layer
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from unembed.lazy import import_on_first_use
from unembed.version import __version__ as __version__

if TYPE_CHECKING:
    from unembed import annotation as annotation
    from unembed import early_exit as early_exit
    from unembed import steering as steering
    from unembed import toxicity as toxicity
    from unembed.attention.circuits import circuits as circuits
    from unembed.causality.estimated_effects import attribution_patching as attribution_patching
    from unembed.causality.metrics import kl_divergence as kl_divergence
    from unembed.causality.metrics import log_probability as log_probability
    from unembed.causality.metrics import logit_difference as logit_difference
    from unembed.causality.metrics import probability as probability
    from unembed.causality.prompt_pair import GaussianNoise as GaussianNoise
    from unembed.concepts.value_concepts import value_concepts as value_concepts
    from unembed.corpus.corpus import open_corpus as open_corpus
    from unembed.dictionaries.files import open_dictionary as open_dictionary
    from unembed.dictionaries.train_dictionary import train_dictionary as train_dictionary
    from unembed.environment import check_environment as check_environment
    from unembed.errors import UnembedError as UnembedError
    from unembed.gallery.ranking import rank_memories as rank_memories
    from unembed.index.default_index import cached_index as cached_index
    from unembed.index.index import Index as Index
    from unembed.jacobian.lens import open_lens as open_lens
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
else:
    _find, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "attention.circuits": "circuits",
            "causality.estimated_effects": "attribution_patching",
            "causality.metrics": "kl_divergence log_probability logit_difference probability",
            "causality.prompt_pair": "GaussianNoise",
            "concepts.value_concepts": "value_concepts",
            "corpus.corpus": "open_corpus",
            "dictionaries.files": "open_dictionary",
            "dictionaries.train_dictionary": "train_dictionary",
            "environment": "check_environment",
            "errors": "UnembedError",
            "gallery.ranking": "rank_memories",
            "index.default_index": "cached_index",
            "index.index": "Index",
            "jacobian.lens": "open_lens",
            "language_model": "LanguageModel load",
            "logit_attribution": "Attribution",
            "memories.clustering.value_clusters": "cluster cluster_values",
            "memories.effects": "sub_update_effects",
            "memories.event_sample": "event_sample",
            "memories.values": "value_readings",
            "reports.report": "report",
            "results.result_files": "open_result",
            "stream.interventions": "Edit add_to_coefficient add_vector replace_stream scale_attention "
            "scale_coefficient scale_ffn scale_head set_coefficient",
            "sweeps.sweep": "sweep",
            "trace.trace": "Trace",
        },
        modules="annotation early_exit steering toxicity",
        offered="Edit GaussianNoise Index LanguageModel UnembedError add_to_coefficient add_vector annotation "
        "check_environment cluster early_exit kl_divergence load log_probability logit_difference open_corpus "
        "open_dictionary open_lens open_result probability replace_stream scale_attention scale_coefficient scale_ffn "
        "scale_head set_coefficient steering toxicity",
    )
    _RENAMED = {
        "examine": "unembed.environment:check_environment",
        "FeatureEdit": "unembed.dictionaries.attachment:feature_edit",
        "kl": "unembed.causality.metrics:kl_divergence",
        "screen": "unembed.causality.estimated_effects:attribution_patching",
    }
    """Old names, which still work in this release with a warning."""

    def __getattr__(name: str) -> Any:
        """Import a public name on first use; in a notebook, also load the drawings that results are shown as."""
        if name in _RENAMED:
            module, _, new = _RENAMED[name].partition(":")
            warnings.warn(f"unembed.{name} is now {new}", DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module(module), new)
        value = _find(name)
        if "IPython" in sys.modules:
            importlib.import_module("unembed.notebook")
        return value
