"""What happens if: activations replaced or removed in the running model, and what that does to the prediction.

Owns metrics of a prediction, activation patching between two prompts, path patching from a writer to a reader, ablation
of heads and memories, total effects next to direct ones, and attribution patching as a screen. How a tensor is captured
or edited belongs to `stream`.
"""

from unembed.causality.ablation import Ablation as Ablation
from unembed.causality.ablation import ablate as ablate
from unembed.causality.corpus_ablation import CorpusAblation as CorpusAblation
from unembed.causality.corpus_ablation import ablate_over_corpus as ablate_over_corpus
from unembed.causality.metrics import Metric as Metric
from unembed.causality.metrics import kl as kl
from unembed.causality.metrics import log_probability as log_probability
from unembed.causality.metrics import logit_difference as logit_difference
from unembed.causality.metrics import probability as probability
from unembed.causality.pairs import PatchingPairs as PatchingPairs
from unembed.causality.pairs import patch_pairs as patch_pairs
from unembed.causality.patched_continuation import continue_patched as continue_patched
from unembed.causality.patching import GaussianNoise as GaussianNoise
from unembed.causality.patching import Patching as Patching
from unembed.causality.patching import align as align
from unembed.causality.patching import patch as patch
from unembed.causality.paths import Paths as Paths
from unembed.causality.paths import patch_paths as patch_paths
from unembed.causality.prompt_ablations import PromptAblations as PromptAblations
from unembed.causality.prompt_ablations import ablate_prompts as ablate_prompts
from unembed.causality.screening import Screening as Screening
from unembed.causality.screening import screen as screen
