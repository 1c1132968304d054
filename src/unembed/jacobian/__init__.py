"""The Jacobian lens: project vectors of the residual stream to logits through the mean effect of the later layers.

The logit lens treats the remaining layers as the identity. This lens multiplies a vector by the mean Jacobian of the
last residual stream with respect to the residual stream at the vector's layer; the mean is fitted on text. If a model
has a fitted lens, functions that take a `basis` use "jacobian" by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.jacobian.basis import basis_or_default as basis_or_default
    from unembed.jacobian.basis import lens_identity as lens_identity
    from unembed.jacobian.basis import lens_of as lens_of
    from unembed.jacobian.basis import reading_by as reading_by
    from unembed.jacobian.check import LensCheck as LensCheck
    from unembed.jacobian.fit import fit_lens as fit_lens
    from unembed.jacobian.lens import JacobianLens as JacobianLens
    from unembed.jacobian.lens import open_lens as open_lens
    from unembed.jacobian.lens_cache import cached_lens as cached_lens
    from unembed.jacobian.lens_cache import lens_file as lens_file
    from unembed.jacobian.lens_cache import lens_path as lens_path
    from unembed.jacobian.lens_cache import stored_identity as stored_identity
    from unembed.jacobian.lens_cache import stored_lens as stored_lens
    from unembed.jacobian.lens_cache import why_passed_over as why_passed_over
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "basis": "basis_or_default lens_identity lens_of reading_by",
            "lens_cache": "cached_lens lens_file stored_identity stored_lens lens_path why_passed_over",
            "check": "LensCheck",
            "fit": "fit_lens",
            "lens": "JacobianLens open_lens",
        },
    )
