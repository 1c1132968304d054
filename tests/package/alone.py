"""The wheel in an environment of its own (`make wheel`): built from the sdist, installed from files, run offline.

    python -m tests.package.alone WHEELS      # a folder with a wheel of every requirement, as `pip download` leaves it

Nothing of the environment that runs this is seen by the new one. The network is taken away by a network namespace of
the kernel where that is allowed (`unshare`), else by sockets that refuse; a step checks that it is gone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
TRACE = ("trace", "Once upon a time", "--json")
REFUSING = """
import socket

def refused(self, address, *rest):
    if self.family != socket.AF_UNIX:
        raise OSError("no network here")
    return connect(self, address, *rest)

connect, socket.socket.connect = socket.socket.connect, refused
"""
NETWORK_GONE = """
import socket
try:
    socket.create_connection(("151.101.0.223", 443), timeout=5)
except OSError as error:
    print(error)
else:
    raise SystemExit("there is a network")
"""
EVERY_NAME = "import unembed; print(len([getattr(unembed, name) for name in unembed.__all__]), 'public names')"


def main() -> None:
    """Build, install and run, saying how long each step took; exit status 1 at the first that fails."""
    wheels, folder = Path(sys.argv[1]).resolve(), ROOT / "build" / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "home").mkdir(parents=True)
    wheel = built_from_the_sdist(folder)
    offline, environment = without_network(folder)
    here = folder / "venv" / "bin"

    def step(what: str, *command: str | Path) -> str:
        began = time.monotonic()
        done = subprocess.run(
            [*offline, *map(str, command)], capture_output=True, text=True, check=False, env=environment, cwd=folder
        )
        print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode:
            sys.exit(f"{what}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    step("an environment of its own", sys.executable, "-m", "venv", here.parent)
    pip = (here / "python", "-m", "pip", "install", "--isolated", "--quiet", "--no-index", "--no-compile")
    step("installed from files", *pip, "--find-links", wheels, wheel)
    step("the network is gone", here / "python", "-c", NETWORK_GONE)
    step("every public name", here / "python", "-c", EVERY_NAME)
    found = json.loads(step("unembed doctor", here / "unembed", "doctor", "--json"))["findings"]
    bad = [f["what"] for f in found if f["state"] in ("missing", "too old or new")]
    there = json.loads(step("unembed trace", here / "unembed", *TRACE))
    step("unembed index build", here / "unembed", "index", "build", "--max-documents", "1", "--out", "index")
    step("unembed index verify", here / "unembed", "index", "verify", "index")
    (folder / "tutorial.py").write_text(tutorial(), encoding="utf-8")
    step("the tutorial notebook", here / "python", "tutorial.py")
    traced = [sys.executable, "-m", "unembed", *TRACE]
    ours = json.loads(subprocess.run(traced, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout)
    if bad or [p["token"] for p in there["prediction"]] != [p["token"] for p in ours["prediction"]]:
        sys.exit(f"it differs: {bad or there['prediction']}")
    how = "without a network" if offline else "its sockets refused"
    print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, works by itself, {how}")
    shutil.rmtree(folder)


def tutorial() -> str:
    """The code of the tutorial notebook, without the cell that installs the package."""
    cells = json.loads((ROOT / "examples/tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return "\n".join(["import unembed", *(code for code in codes if "%pip" not in code)])


def built_from_the_sdist(folder: Path) -> Path:
    """The wheel that someone gets who has the sdist alone."""
    sdist = Path(next(SdistBuilder(str(ROOT)).build(directory=str(folder / "dist"))))
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return Path(next(WheelBuilder(str(source)).build(directory=str(folder / "dist"), versions=["standard"])))


def without_network(folder: Path) -> tuple[list[str], dict[str, str]]:
    """What to put before a command, and its environment."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "VIRTUAL_ENV"))
    }
    environment = {**environment, "HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    offline = ["unshare", "--user", "--map-root-user", "--net"]
    if shutil.which("unshare") and subprocess.run([*offline, "true"], capture_output=True, check=False).returncode == 0:
        return offline, environment
    (folder / "refusing").mkdir()
    (folder / "refusing" / "sitecustomize.py").write_text(REFUSING, encoding="utf-8")
    return [], {**environment, "PYTHONPATH": str(folder / "refusing")}


if __name__ == "__main__":
    main()
