"""`make check`'s own rules: sizes and the changelog. The other checkers are other people's."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools.check import versions_agree
from tools.sizes import measure, report

ROOT = Path(__file__).parents[2]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def function(num_lines: int, docstring: str = "") -> str:
    return "def long():\n" + docstring + "    x = 1\n" * (num_lines - 1)


def test_a_function_is_measured_without_its_docstring(tmp_path: Path) -> None:
    text = "import os\n\n\n" + function(7, '    """One.\n\n    Two.\n    """\n')
    file, functions = measure(write(tmp_path / "a.py", text), tmp_path, limited=True)
    assert (file.lines, file.where) == (14, "a.py")
    assert [(size.lines, size.where) for size in functions] == [(7, "a.py:4 long")]


@pytest.mark.parametrize(
    ("name", "text", "good"),
    [
        ("ddp/a.py", function(50), True),
        ("ddp/a.py", function(51), False),
        ("ddp/a.py", "x = 1\n" * 300, True),
        ("ddp/deep/a.py", "x = 1\n" * 301, False),
        ("jobs/a.py", f"class A:\n    {function(51).replace(chr(10), chr(10) + '    ')}", False),
        ("tests/test_a.py", "x = 1\n" * 301 + function(51), True),
    ],
)
def test_the_product_is_held_to_its_limits(
    tmp_path: Path, name: str, text: str, good: bool
) -> None:
    write(tmp_path / name, text)
    is_good, words = report(tmp_path)
    assert is_good is good
    assert ("over the limit" in words) is not good
    assert name in words


def test_the_changelog_has_the_version_and_what_is_to_come(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", '[project]\nversion = "0.2.0"\n')
    changelog = write(tmp_path / "CHANGELOG.md", "## [Unreleased]\n\n## [0.2.0] - 2026-01-01\n")
    assert versions_agree(tmp_path) == (True, "0.2.0")
    changelog.write_text("## [Unreleased]\n\n## [0.1.0]\n")
    assert versions_agree(tmp_path) == (False, "CHANGELOG.md has no section ['0.2.0']")


def test_every_package_is_in_the_wheel_and_no_test_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        ".".join(file.relative_to(ROOT).parent.parts)
        for top in ("cluster", "ddp", "jobs")
        for file in (ROOT / top).rglob("__init__.py")
    }
    assert set(project["packages"]) == found
