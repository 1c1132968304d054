"""One pass of a model over a corpus that feeds any number of running statistics."""

from unembed.sweeps.crew import Ray as Ray
from unembed.sweeps.distributions import Counts as Counts
from unembed.sweeps.distributions import Histogram as Histogram
from unembed.sweeps.distributions import Quantiles as Quantiles
from unembed.sweeps.distributions import Sketch as Sketch
from unembed.sweeps.fast import Fast as Fast
from unembed.sweeps.fast import fast_difference as fast_difference
from unembed.sweeps.local import Every as Every
from unembed.sweeps.moments import ActiveFraction as ActiveFraction
from unembed.sweeps.moments import ActiveShare as ActiveShare
from unembed.sweeps.moments import MeanVariance as MeanVariance
from unembed.sweeps.moments import Moments as Moments
from unembed.sweeps.next_tokens import NextTokenCounts as NextTokenCounts
from unembed.sweeps.next_tokens import NextTokens as NextTokens
from unembed.sweeps.progress import Progress as Progress
from unembed.sweeps.progress import to_stderr as to_stderr
from unembed.sweeps.reducer import LOGITS as LOGITS
from unembed.sweeps.reducer import Need as Need
from unembed.sweeps.reducer import Reducer as Reducer
from unembed.sweeps.sweep import sweep as sweep
from unembed.sweeps.top_triggers import TopTriggers as TopTriggers
from unembed.sweeps.triggers import Triggers as Triggers
