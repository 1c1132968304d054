"""The Jacobian lens: what a stream vector, or a part of it, does to the prediction through the layers that follow.

The logit lens reads a vector as if the remaining layers were the identity. This lens carries it to the end of the model
by the mean Jacobian of the last stream with respect to the stream at its layer, fitted on text.
"""

from unembed.jacobian.check import LensCheck as LensCheck
from unembed.jacobian.fit import fit_lens as fit_lens
from unembed.jacobian.lens import JacobianLens as JacobianLens
from unembed.jacobian.lens import open_lens as open_lens
