"""Replace or remove activations during a forward pass, and measure what that does to the prediction.

This package contains metrics of a prediction, activation patching between two prompts, path patching from one component
to another, ablation, total effects next to direct ones, and attribution patching, which estimates all of these effects.
The package `unembed.stream` captures and replaces the tensors.
"""

from unembed.causality.ablation import Ablation as Ablation
from unembed.causality.ablation import PromptAblations as PromptAblations
from unembed.causality.ablation import ablate as ablate
from unembed.causality.corpus_ablation import CorpusAblation as CorpusAblation
from unembed.causality.estimated_effects import EstimatedEffects as EstimatedEffects
from unembed.causality.estimated_effects import attribution_patching as attribution_patching
from unembed.causality.metrics import Metric as Metric
from unembed.causality.metrics import kl_divergence as kl_divergence
from unembed.causality.metrics import log_probability as log_probability
from unembed.causality.metrics import logit_difference as logit_difference
from unembed.causality.metrics import probability as probability
from unembed.causality.patched_continuation import continue_patched as continue_patched
from unembed.causality.patching import Patching as Patching
from unembed.causality.patching import PatchingPairs as PatchingPairs
from unembed.causality.patching import patch as patch
from unembed.causality.paths import Paths as Paths
from unembed.causality.prompt_pair import GaussianNoise as GaussianNoise
from unembed.causality.prompt_pair import align as align
