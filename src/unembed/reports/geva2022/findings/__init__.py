"""The claims of Geva et al. 2022: one row each, with what is measured for it and the test that judges it.

Scores are logit units: a sub-update of score s multiplies the odds of its token by exp(s) (Sec. 3, Eq. 2).
"""

from __future__ import annotations

from unembed.reports.claims import Claim
from unembed.reports.geva2022.findings import appendix, applications, concepts, events, layers
from unembed.reports.geva2022.measurements import Measurements

CLAIMS: tuple[Claim[Measurements], ...] = (
    *concepts.CLAIMS,
    *events.CLAIMS,
    *layers.CLAIMS,
    *applications.CLAIMS,
    *appendix.CLAIMS,
)
"""Every claim of the study, in reading order."""
