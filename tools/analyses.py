"""Write what the package's analyses declare to `src/unembed/analyses.json`, which the command line reads.

python -m tools.analyses
"""

from unembed.analyses import MANIFEST, manifest

if __name__ == "__main__":
    MANIFEST.write_text(manifest(), encoding="utf-8")
