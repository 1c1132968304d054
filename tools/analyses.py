"""Write what the package's analyses declare, and what follows from it: the page of all commands, the files for agents.

python -m tools.analyses
"""

import subprocess
import sys

from tests.package.shown import REFERENCE, command_reference

from unembed.analyses import MANIFEST, manifest

if __name__ == "__main__":
    MANIFEST.write_text(manifest(), encoding="utf-8")
    REFERENCE.write_text(command_reference(), encoding="utf-8")  # by a new process, which reads the manifest
    subprocess.run([sys.executable, "-m", "tools.agent_files"], check=True)  # likewise
