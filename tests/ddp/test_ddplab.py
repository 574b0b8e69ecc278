"""The module `ddplab`: the names of ddp, or an error that says which file was found instead."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ddp
import ddplab

ROOT = Path(__file__).parents[2]


def run(folder: Path, script: str, name: str = "script.py") -> "subprocess.CompletedProcess[str]":
    (folder / name).write_text(script)
    return subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_has_the_public_names_of_ddp() -> None:
    assert ddplab.__all__ == ddp.__all__ == dir(ddplab)
    assert all(getattr(ddplab, name) is getattr(ddp, name) for name in ddp.__all__)
    with pytest.raises(AttributeError, match="module 'ddplab' has no attribute 'Distributed'"):
        ddplab.Distributed  # noqa: B018


def test_names_are_imported_when_they_are_asked_for(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "import sys, ddplab\nassert not {'torch', 'ddp'} & set(sys.modules)\n"
        "from ddplab import DistributedDataParallel as DDP\nassert 'torch' in sys.modules\n"
        "print(DDP.__module__)\n",
    )
    assert (done.stdout, done.stderr) == ("ddp.parallel\n", "")


@pytest.mark.parametrize(
    ("shadow", "script"),
    [
        ("ddp.py", "from ddplab import DistributedDataParallel"),
        ("ddp.py", "import ddp\nfrom ddplab import DistributedDataParallel"),
        ("ddp/__init__.py", "from ddplab import DistributedDataParallel"),
    ],
)
def test_another_ddp_is_named_with_the_fix(tmp_path: Path, shadow: str, script: str) -> None:
    path = tmp_path / shadow
    path.parent.mkdir(exist_ok=True)
    path.write_text("MINE = 1\n")
    told = run(tmp_path, script).stderr.strip().splitlines()[-1]
    assert told.startswith(f"ImportError: import ddp finds {path}, which is not the ddp that bel")
    assert str(ROOT / "ddp") in told and f"rename {path}" in told


def test_a_script_that_is_called_ddp_is_named(tmp_path: Path) -> None:
    told = run(tmp_path, "from ddplab import Fabric\n", "ddp.py").stderr.strip().splitlines()[-1]
    assert f"rename {tmp_path / 'ddp.py'}" in told


def test_it_is_packaged() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert document["tool"]["setuptools"]["py-modules"] == ["ddplab"]
