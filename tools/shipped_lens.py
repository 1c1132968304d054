"""Fit the Jacobian lens that ships with wren, on the shipped text.

python -m tools.shipped_lens
"""

from __future__ import annotations

import unembed
from unembed.jacobian.fit import fit_to_file
from unembed.models.fingerprint import sampled_fingerprint
from unembed.models.shipped_models import shipped_folder


def main() -> None:
    """Replace the lens in the package."""
    lm = unembed.load("wren")
    folder = shipped_folder("wren")
    for older in folder.glob("lens-*.safetensors"):
        older.unlink()
    path = folder / f"lens-{sampled_fingerprint(lm)}.safetensors"
    print(fit_to_file(lm, path))


if __name__ == "__main__":
    main()
