"""Direct logit attribution: split a logit into what each component adds to it, and check the sum."""

from unembed.logit_attribution.contributions import attribution as attribution
from unembed.logit_attribution.contributions import kinds_of as kinds_of
from unembed.logit_attribution.contributions import memory_contributions as memory_contributions
from unembed.logit_attribution.contributions import (
    memory_contributions_over_average as memory_contributions_over_average,
)
from unembed.logit_attribution.contributions import memory_contributions_per_unit as memory_contributions_per_unit
from unembed.logit_attribution.contributions import pair as pair
from unembed.logit_attribution.contributions import points_needed as points_needed
from unembed.logit_attribution.contributions import proved_sum as proved_sum
from unembed.logit_attribution.result import Attribution as Attribution
from unembed.logit_attribution.result import Effects as Effects
from unembed.logit_attribution.result import Row as Row
