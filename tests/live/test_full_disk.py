"""A disk that is full before, or while, a job runs: told in words, kept as far as it went.

The disk is a small tmpfs of this test's own, in a mount namespace of its own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.host import python_environment

pytestmark = pytest.mark.netns

RUN = """
import os, sys
from pathlib import Path
import cluster.lab, jobs.launch, jobs.underlay
from cluster.lab import Lab
from cluster.state import LabDirectory
from jobs.cli import main
from tests.jobs.conftest import STAND_IN, LocalNodes, cluster_spec, probe_report

LabDirectory.of("default").path.mkdir(mode=0o700)
spec = cluster_spec(2, 2)
lab = Lab("default", spec, "netns", LocalNodes(2), probe_report(spec), 1.0)
launch = jobs.launch.launch
cluster.lab.open_lab = lambda name="default": lab
jobs.underlay.how_it_ended = lambda lab: None
jobs.underlay.require_limited = lambda lab: None
jobs.launch.launch = lambda *asked: launch(*asked, program=STAND_IN)
Path("job.yaml").write_text("name: ok\\ntrain: {steps: 5000}\\n")
pid = os.fork()
if pid:
    sys.stdout.write(f"code {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\\n")
    sys.stdout.flush()
    main(["runs-clean", "--keep=0"])
main(["run", "job.yaml"])
"""


@pytest.mark.parametrize(
    ("size", "file", "removed"), [("4k", r"run\.json", 0), ("24k", r"(run|summary)\.json", 1)]
)
def test_a_full_disk_is_told_and_can_be_cleaned(
    tmp_path: Path, size: str, file: str, removed: int
) -> None:
    """The larger one has room for a run's first files, not for what is written as it goes on."""
    for name in ("state", "runs"):
        (tmp_path / name).mkdir(mode=0o700)
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = f'mount -t tmpfs -o size={size} tmpfs runs && exec "$@"'
    done = subprocess.run(
        ["unshare", *user, "--mount", "sh", "-c", script, "sh", sys.executable, "-c", RUN],
        cwd=tmp_path,
        env={**python_environment(), "XDG_RUNTIME_DIR": str(tmp_path / "state")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert re.search(f"{file}: No space left on device", done.stderr), done.stderr
    assert "fix     make room on this disk: make runs-clean KEEP=10" in done.stderr
    assert "Traceback" not in done.stderr
    assert "code 1\n" in done.stdout
    assert f"{removed} removed, 0 kept." in done.stdout
    assert done.returncode == 0
