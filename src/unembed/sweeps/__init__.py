"""Run a model once over a corpus, and compute any number of statistics of its activations in that one pass."""

from unembed.sweeps.checkpoint import CheckpointInterval as CheckpointInterval
from unembed.sweeps.fast_kernels import Fast as Fast
from unembed.sweeps.fast_kernels import fast_difference as fast_difference
from unembed.sweeps.progress import Progress as Progress
from unembed.sweeps.ray.workers import Ray as Ray
from unembed.sweeps.reducers.firing_share import FIRES as FIRES
from unembed.sweeps.reducers.firing_share import FiringCounts as FiringCounts
from unembed.sweeps.reducers.firing_share import FiringShare as FiringShare
from unembed.sweeps.reducers.firing_share import usual_sizes as usual_sizes
from unembed.sweeps.reducers.moments import ActiveFraction as ActiveFraction
from unembed.sweeps.reducers.moments import ActiveShare as ActiveShare
from unembed.sweeps.reducers.moments import MeanVariance as MeanVariance
from unembed.sweeps.reducers.moments import Moments as Moments
from unembed.sweeps.reducers.reducer import LOGITS as LOGITS
from unembed.sweeps.reducers.reducer import Need as Need
from unembed.sweeps.reducers.reducer import Reducer as Reducer
from unembed.sweeps.reducers.router_counts import RoutedShare as RoutedShare
from unembed.sweeps.reducers.router_counts import RoutedTokens as RoutedTokens
from unembed.sweeps.reducers.router_counts import Routing as Routing
from unembed.sweeps.reducers.top_triggers import TopTriggers as TopTriggers
from unembed.sweeps.reducers.triggers import Triggers as Triggers
from unembed.sweeps.sweep import sweep as sweep
