"""The set-up with the real venv and the real pip, on wheels of a few hundred bytes made here."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Checkout

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "ddplab"
version = "1.0"
dependencies = ["click>=8.1", "torch>=2.6"]
[project.optional-dependencies]
server = ["uvicorn>=0.34"]
docker = ["docker>=7"]
"""

BACKEND = """\
import zipfile
from pathlib import Path

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "ddplab-1.0-py3-none-any.whl"
    info = "ddplab-1.0.dist-info"
    with zipfile.ZipFile(Path(folder) / name, "w") as wheel:
        wheel.writestr("ddplab.pth", str(Path.cwd()))
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: ddplab\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\\nddplab = program:main\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""


def write_wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_real_pip_installs_what_is_pinned_from_where_it_is_told(checkout: Checkout) -> None:
    wheels = checkout.outside / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "torch", "2.13.0+cpu", "Requires-Dist: sympy\n")
    write_wheel(wheels, "torch", "2.13.0")
    write_wheel(wheels, "sympy", "1.14.0")
    write_wheel(wheels, "sympy", "9.9")
    write_wheel(wheels, "click", "8.5.1")
    write_wheel(wheels, "click", "99.0")
    write_wheel(wheels, "uvicorn", "0.54.0")
    write_wheel(wheels, "docker", "7.2.0")
    (checkout.root / "pyproject.toml").write_text(PYPROJECT)
    (checkout.root / "backend.py").write_text(BACKEND)
    (checkout.root / "program.py").write_text("def main(): print('this is ddplab')\n")
    (checkout.outside / "python3").unlink()  # the real one, then

    done = checkout.make(
        "cluster-status", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PIP_CONFIG_FILE="/dev/null"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "this is ddplab\n"
    names = ("torch", "sympy", "click", "uvicorn", "docker")
    versions = ", ".join(f"{name}.VERSION" for name in names)
    question = f"import {', '.join(names)}; print({versions})"
    python = checkout.root / ".venv" / "bin" / "python"
    answer = subprocess.run([python, "-c", question], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["2.13.0+cpu", "1.14.0", "8.5.1", "0.54.0", "7.2.0"]
    shutil.rmtree(wheels)
    again = checkout.make("cluster-status")
    assert (again.stdout, again.stderr) == ("this is ddplab\n", "")
