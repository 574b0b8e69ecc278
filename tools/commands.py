"""Runs the commands of a set-up, one after another: output into a log, a line a step for people.

Owns what is shown while pip works (sizes, seconds) and that no command outlives the set-up.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tools.errors import CommandError

_DOWNLOAD = re.compile(r"\s*Downloading (\S+) \(([\d.]+ [kM]B)\)")
_CACHED = re.compile(r"\s*Using cached (\S+) \(([\d.]+ [kM]B)\)")
_LOCAL = re.compile(r"\s*Processing (/.+\.whl)$")
_LARGE_MB = 5.0
_PR_SET_PDEATHSIG = 1
_NOT_OURS = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_DRY_RUN", "PIP_REPORT")


class Attempt(NamedTuple):
    """One way to get a package: from an index given by address, or from pip's own sources ("")."""

    requirement: str
    index_url: str

    def options(self) -> list[str]:
        return [f"--index-url={self.index_url}"] if self.index_url else []


class Log:
    """The file that everything goes into; begun anew by each set-up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("", "utf-8")

    def write(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(without_password(line) + "\n")


class Step:
    """One line on the screen: what is being done, with a running clock on a terminal."""

    def __init__(self, label: str, log: Log) -> None:
        self.label = label
        self.log = log
        self.what = ""
        self.num_installed = 0
        self._began_s = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def __enter__(self) -> Step:
        self._tick("")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._on_terminal:
            sys.stderr.write("\n")

    def done(self, text: str) -> None:
        """Finish the line."""
        took_s = time.monotonic() - self._began_s
        self._clear()
        sys.stderr.write(f"  {self.label:9} {text:62} {took_s:7.1f} s\n")

    def first_that_works(self, commands: Sequence[list[str]], cwd: Path) -> None:
        """Try one after another; the last one's failure carries the others' words."""
        earlier: list[str] = []
        for number, command in enumerate(commands):
            try:
                self.run(command, cwd)
                return
            except CommandError as failure:
                failure.last_lines[:0] = earlier
                if number == len(commands) - 1:
                    raise
                earlier = failure.last_lines
                self._say("not among pip's own sources: asking for it at the next place")

    def run(self, command: list[str], cwd: Path) -> list[str]:
        """Run to the end and return the output's lines; CommandError on a bad end."""
        self.log.write(f"$ {shlex.join(command)}")
        lines: list[str] = []
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
        )
        try:
            self._follow(process, lines)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
        if status != 0:
            raise CommandError(self.label, _telling(lines) or [f"exit status {status}"])
        return lines

    def _follow(self, process: subprocess.Popen[bytes], lines: list[str]) -> None:
        assert process.stdout is not None
        rest = b""
        while True:
            readable, _, _ = select.select([process.stdout], [], [], 1.0)
            self._tick(self.what)
            if not readable:
                continue
            piece = os.read(process.stdout.fileno(), 65536)
            *whole, rest = (rest + piece).split(b"\n")
            if not piece and rest:
                whole, rest = [rest], b""
            for raw in whole:
                self._take(raw.decode("utf-8", "replace").rstrip("\r"), lines)
            if not piece:
                return

    def _take(self, line: str, lines: list[str]) -> None:
        lines.append(line)
        self.log.write(line)
        if line.startswith("Successfully installed"):
            self.num_installed = len(line.split()) - 2
        for pattern, words in ((_DOWNLOAD, "downloading {}"), (_CACHED, "{} from pip's cache")):
            match = pattern.match(line)
            if match and _megabytes(match[2]) >= _LARGE_MB and ".metadata" not in match[1]:
                self._say(f"{words.format(_short(match[1]))}, {match[2]}")
        match = _LOCAL.match(line)
        if match:
            size_mb = Path(match[1]).stat().st_size / 1e6
            if size_mb >= _LARGE_MB:
                self._say(f"{_short(match[1])} from this machine, {size_mb:.0f} MB")

    def _say(self, what: str) -> None:
        self.what = what
        self._clear()
        sys.stderr.write(f"  {self.label:9} {what}\n")
        self._tick(what)

    def _tick(self, what: str) -> None:
        if self._on_terminal:
            took_s = time.monotonic() - self._began_s
            sys.stderr.write(f"\r  {self.label:9} {what[:62]:62} {took_s:7.0f} s")
            sys.stderr.flush()

    def _clear(self) -> None:
        if self._on_terminal:
            sys.stderr.write("\r\x1b[K")


def clean_environment() -> dict[str, str]:
    """The caller's environment, pip's sources included, less what would install elsewhere."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    for name in list(kept):
        if name.startswith(("PYTHON", "MAKE", "MFLAGS", "VIRTUAL_ENV")):
            del kept[name]
    return kept


def _telling(lines: list[str]) -> list[str]:
    """The few lines of pip's that say why: its errors, the last lost connection, else its end."""
    lost = [line.partition("broken by ")[2] for line in lines if "Retrying (" in line]
    errors = [line for line in lines if line.startswith("ERROR:") and "help visit" not in line]
    said = [line for line in lines if line.strip()]
    telling = [*lost[-1:], *errors[-2:]] if errors else said[-5:]
    return [without_password(line.strip())[:300] for line in telling]


def without_password(text: str) -> str:
    """The same text with the secret part of every address taken out."""
    return re.sub(r"(https?://)[^/@\s]+@", r"\1***@", text)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _short(address: str) -> str:
    return "-".join(address.rsplit("/", 1)[-1].replace("%2B", "+").split("-")[:2])


def _megabytes(text: str) -> float:
    number, unit = text.split()
    return float(number) / (1 if unit == "MB" else 1000)
