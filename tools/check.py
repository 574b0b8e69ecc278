"""What `make check` does: every checker, one line each, its words only where it finds something.

Runs in the environment with the checking tools. All checkers run, also after one has failed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.sizes import report

CHECKED = ("cluster", "ddp", "ddplab.py", "jobs", "tools", "tests")


def main() -> int:
    """Run all checks; 0 only when every one found nothing."""
    root = Path.cwd()
    checks: list[tuple[str, Callable[[], tuple[bool, str]]]] = [
        ("format", lambda: _tool("ruff", "format", "--check", *CHECKED)),
        ("lint", lambda: _tool("ruff", "check", *CHECKED)),
        ("types", lambda: _tool("mypy")),
        ("imports", lambda: _tool("lint-imports")),
        ("sizes", lambda: report(root)),
        ("version", lambda: versions_agree(root)),
    ]
    failed = [name for name, check in checks if not _passes(name, check)]
    sys.stdout.write(f"\ncheck: {'failed: ' + ' '.join(failed) if failed else 'all clean'}\n")
    return 1 if failed else 0


def versions_agree(root: Path) -> tuple[bool, str]:
    """Whether CHANGELOG.md has a section for the version in pyproject.toml, and one unreleased."""
    with (root / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)
    missing = [name for name in ("Unreleased", version) if name not in sections]
    return not missing, f"CHANGELOG.md has no section {missing}" if missing else version


def _passes(name: str, check: Callable[[], tuple[bool, str]]) -> bool:
    began_s = time.monotonic()
    good, words = check()
    took_s = time.monotonic() - began_s
    brief = good and "\n" not in words
    sys.stdout.write(f"{name:9} {'ok    ' if good else 'FAILED'} {took_s:6.1f} s")
    sys.stdout.write(f"   {words}\n" if brief else f"\n{words}\n")
    sys.stdout.flush()
    return good


def _tool(name: str, *words: str) -> tuple[bool, str]:
    """Run a tool of this environment; its output only when it found something."""
    command: Sequence[str] = (sys.executable, str(Path(sys.executable).parent / name), *words)
    if name == "ruff":
        command = command[1:]  # a binary, not a script
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.returncode == 0, done.stdout.decode() if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
