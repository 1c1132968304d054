"""The dtype in which training multiplies matrices on this processor."""

from __future__ import annotations

import torch

from unembed.sweeps.fast_kernels import processor_has_bfloat16

# Without instructions for it, bfloat16 is emulated at a fiftieth of the speed of float32.
PRODUCTS = torch.bfloat16 if processor_has_bfloat16() else torch.float32
