"""Makes the image that the nodes' image starts from, on this machine: Debian and its Python.

For where no image registry answers; packages come from Debian's mirror. Standard library only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cluster.packages import as_root, install_commands
from tools.commands import Log, Step
from tools.errors import CommandError, FrontDoorError

SUITE = "bookworm"
"""Its Python is 3.11, as in the image that is taken where a registry answers."""
IMAGE = f"ddplab-base:{SUITE}"
PACKAGES = ("python3", "python3-venv", "iproute2", "ca-certificates")
ASK_TIMEOUT_S = 20


def make_base_image(root: Path) -> int:
    """The image is given its name once it is whole. Raises FrontDoorError."""
    _require("docker", "images are kept by a Docker engine")
    _require("mmdebstrap", f"a small Debian is put together with it: {' '.join(PACKAGES)}")
    _require_engine()
    sys.stderr.write(f"ddplab: making {IMAGE}, once: about a minute or two\n")
    with tempfile.TemporaryDirectory(prefix="ddplab-base-") as folder:
        archive = str(Path(folder) / "base.tar")
        gathering = ["mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        log = Log(Path(folder) / "log")
        try:
            with Step("debian", log) as step:
                step.run([*gathering, SUITE, archive], cwd=root)
                step.done(f"{SUITE}, {Path(archive).stat().st_size / 1e6:.0f} MB")
            with Step("image", log) as step:
                step.run(["docker", "import", archive, IMAGE], cwd=root)
                step.done(IMAGE)
        except CommandError as failure:
            raise FrontDoorError(
                f"{IMAGE} could not be made: {failure.label} failed.",
                seen="\n".join(failure.last_lines),
                rule="mmdebstrap gathers it from Debian's mirror, docker import keeps it",
                fix=f"what it says; or as root: {as_root('make base-image')}",
                note="Nothing half-built was kept.    labs without any image: BACKEND=netns",
            ) from failure
    sys.stderr.write("  next    make cluster-up BACKEND=compose\n")
    return 0


def _require(command: str, rule: str) -> None:
    if shutil.which(command) is None:
        raise FrontDoorError(
            f"{command} is not installed.",
            seen=f"no {command} on the search path",
            rule=rule,
            fix="\n".join(install_commands([command])),
        )


def _require_engine() -> None:
    asked = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False
        )
        seen = done.stderr.strip() if done.returncode else ""
    except subprocess.TimeoutExpired:
        seen = f"no answer within {ASK_TIMEOUT_S} s"
    if seen:
        raise FrontDoorError(
            "the Docker engine does not answer.",
            seen=seen,
            rule="images are kept by a Docker engine",
            fix=as_root("systemctl start docker"),
        )
