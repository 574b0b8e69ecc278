"""Where a real Prometheus is: on the path, or in the folder that DDPLAB_PROMETHEUS names."""

import os
import shutil

FOLDER = "DDPLAB_PROMETHEUS"


def find(command: str) -> str | None:
    """The path of `prometheus` or `promtool`; None where it is not here."""
    path = os.pathsep.join([os.environ.get(FOLDER, ""), os.environ.get("PATH", "")])
    return shutil.which(command, path=path)


def reason() -> str | None:
    """Why no test can use it; None where one can."""
    missing = [command for command in ("prometheus", "promtool") if find(command) is None]
    return f"{missing[0]} is neither on the path nor in {FOLDER}" if missing else None
