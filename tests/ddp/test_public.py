"""The names that `ddp` offers: all there, none of them costly before it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import ddp
from ddp.algorithms import ALGORITHMS
from ddp.parallel import DistributedDataParallel

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import jobs  # the one beside this script
import ddp
assert jobs.MINE and "torch" not in sys.modules
from ddp import ALGORITHMS, Fabric, ReductionPlan
assert "torch" not in sys.modules
from ddp import DistributedDataParallel
assert "torch" in sys.modules and "cluster" not in sys.modules
"""


def test_every_public_name_is_there() -> None:
    assert dir(ddp) == ddp.__all__
    found = {name: getattr(ddp, name) for name in ddp.__all__}
    assert found.pop("ALGORITHMS") is ALGORITHMS
    assert found["DistributedDataParallel"] is DistributedDataParallel
    assert all(thing.__name__ == name for name, thing in found.items())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'DistributedDataParalel'"):
        ddp.DistributedDataParalel  # noqa: B018


def test_it_is_usable_alone_from_a_folder_with_a_jobs_of_its_own(tmp_path: Path) -> None:
    """And imports torch only where a name needs it."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
