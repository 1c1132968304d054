"""One pass of a model over a corpus that feeds any number of running statistics."""

from unembed.sweeps.reducer import Reducer as Reducer
from unembed.sweeps.sweep import sweep as sweep
from unembed.sweeps.top_triggers import TopTriggers as TopTriggers
from unembed.sweeps.triggers import Triggers as Triggers
