"""Write what the package's analyses declare, and the page of all commands, which follows from it.

python -m tools.analyses
"""

from tests.package.shown import REFERENCE, command_reference

from unembed.analyses import MANIFEST, manifest

if __name__ == "__main__":
    MANIFEST.write_text(manifest(), encoding="utf-8")
    REFERENCE.write_text(command_reference(), encoding="utf-8")  # by a new process, which reads the manifest
