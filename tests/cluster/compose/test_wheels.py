"""The wheels of the nodes' image come from this machine's own pip, for the image's own Python."""

import sys
import zipfile
from pathlib import Path

import pytest

from cluster.compose import wheels
from cluster.compose.wheels import Target, collect, telling
from cluster.errors import HostError

TARGET = Target((3, 11), "aarch64", (2, 36))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with wheels, the only place that pip knows."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


def write_wheel(folder: Path, name: str, version: str, tags: str = "py3-none-any") -> str:
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-{tags}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tags}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path.name


def test_each_pin_comes_as_the_wheel_for_the_nodes_python(shelf: Path, tmp_path: Path) -> None:
    wanted = {
        write_wheel(shelf, "torch", "2.13.0+cpu", "cp311-cp311-manylinux_2_28_aarch64"),
        write_wheel(shelf, "click", "8.5.1"),
        write_wheel(shelf, "pyyaml", "6.0.4", "cp311-cp311-manylinux2014_aarch64"),
    }
    for tags in ("cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_28_aarch64"):
        write_wheel(shelf, "torch", "2.13.0+cpu", tags)
    write_wheel(shelf, "torch", "2.14.0", "cp311-cp311-manylinux_2_28_aarch64")
    write_wheel(shelf, "torch", "2.13.0+cpu", "cp311-cp311-manylinux_2_39_aarch64")  # newer glibc
    write_wheel(shelf, "click", "9.0")
    collect(["torch==2.13.0+cpu", "click==8.5.1", "pyyaml==6.0.4"], TARGET, tmp_path / "got")
    assert {path.name for path in (tmp_path / "got").iterdir()} == wanted


def test_a_pip_that_does_not_end_is_told(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(shelf, "torch", "2.13.0+cpu")
    monkeypatch.setattr(wheels, "TIMEOUT_S", 0.001)
    with pytest.raises(HostError, match="could not be downloaded") as caught:
        collect(["torch==2.13.0+cpu"], TARGET, tmp_path / "got")
    assert "pip did not end within" in str(caught.value.seen)


def test_what_pip_cannot_get_is_said_with_its_own_words(shelf: Path, tmp_path: Path) -> None:
    write_wheel(shelf, "torch", "2.13.0+cpu")
    with pytest.raises(HostError) as caught:
        collect(["torch==2.13.0+cpu", "click==8.5.1"], TARGET, tmp_path / "got")
    assert "No matching distribution found for click==8.5.1" in str(caught.value.seen)
    assert any("BACKEND=netns" in fix for fix in caught.value.fix)


def test_torch_alone_is_asked_for_at_a_second_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[bool, list[str]]] = []

    def download(options: list[str], pins: list[str]) -> str | None:
        second = f"--index-url={wheels.TORCH_INDEX_URL}" in options
        calls.append((second, pins))
        return "not here" if "torch==2.13.0+cpu" in pins and not second else None

    monkeypatch.setattr(wheels, "_download", download)
    collect(["torch==2.13.0+cpu", "click==8.5.1"], TARGET, tmp_path)
    assert calls == [
        (False, ["torch==2.13.0+cpu"]),
        (True, ["torch==2.13.0+cpu"]),
        (False, ["click==8.5.1"]),
    ]


def test_a_python_without_pip_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "find_spec", lambda _: None)
    with pytest.raises(HostError, match="no pip") as caught:
        collect(["torch==2.13.0+cpu"], TARGET, tmp_path)
    assert caught.value.fix == (f"{sys.executable} -m ensurepip",)


def test_no_password_of_an_index_is_shown() -> None:
    text = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'timed out': /simple/\n"
        "ERROR: Could not fetch https://mei:secret@mirror.example/simple/click/\n"
        "ERROR: No matching distribution found for click\n"
    )
    told = telling(text)
    assert "secret" not in told
    assert told.startswith("'timed out': /simple/; ERROR: Could not fetch https://***@mirror")
