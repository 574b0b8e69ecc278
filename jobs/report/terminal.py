"""Where screens go: standard output or standard error, as wide as the terminal or 100 columns."""

import os
import sys
from typing import IO

from rich.console import Console

from jobs.report.text import Lines

WIDTH_ELSEWHERE = 100


def output_console() -> Console:
    return _console(sys.stdout)


def error_console() -> Console:
    return _console(sys.stderr)


def show(console: Console, lines: Lines) -> None:
    """Prints lines as they are: neither wrapped nor cropped."""
    for each in lines:
        console.print(each, soft_wrap=True, highlight=False)


def _console(file: IO[str]) -> Console:
    columns = os.environ.get("COLUMNS", "")
    asked = int(columns) if columns.isdecimal() and int(columns) > 0 else None
    return Console(file=file, width=asked if asked or file.isatty() else WIDTH_ELSEWHERE)
