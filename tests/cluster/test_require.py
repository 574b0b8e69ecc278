"""DDPLAB_REQUIRE: a skip of a required kind of test is a failure, and only then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.netns
def test_needs_namespaces():
    pass

@pytest.mark.netns
def test_skips_by_itself():
    pytest.skip("some other reason")

@pytest.mark.ray
def test_of_another_kind():
    pytest.skip("no ray here")

@pytest.mark.netns
@pytest.mark.prometheus
def test_of_two_kinds():
    pass

def test_plain():
    pass
"""


def outcome(tmp_path: Path, require: str, refused: bool) -> tuple[int, str]:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "bin").mkdir()
    for name in ("unshare", "nsenter", "ip", "tc"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho refused >&2\nexit {int(refused)}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    options = [
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-o",
        "markers=netns\nray\nprometheus",
    ]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, *options, str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "DDPLAB_REQUIRE": require,
            "DDPLAB_PROMETHEUS": f"{tmp_path}/none",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("require", "refused", "summary"),
    [
        ("", True, "1 passed, 4 skipped"),
        ("netns", False, "1 failed, 2 passed, 2 skipped"),
        ("netns", True, "1 passed, 1 skipped, 3 errors"),
        ("netns,ray", True, "1 failed, 1 passed, 3 errors"),
        ("netns,prometheus", False, "1 failed, 2 passed, 1 skipped, 1 error"),
    ],
)
def test_a_required_skip_fails(tmp_path: Path, require: str, refused: bool, summary: str) -> None:
    status, text = outcome(tmp_path, require, refused)
    assert summary in text
    assert status == int("failed" in summary or "errors" in summary)


def test_an_unknown_requirement_is_refused(tmp_path: Path) -> None:
    status, text = outcome(tmp_path, "nets", refused=False)
    assert status != 0
    assert "DDPLAB_REQUIRE names nets; known: netns" in text
