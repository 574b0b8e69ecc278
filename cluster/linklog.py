"""What was done to a lab's links while it was up: a file of its directory that runs read along.

Owns the lines: one before the first limit is touched, one after all were read back. It is only
appended to, by whoever holds the lab's lock, so that a reader needs none.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

LOG_FILE = "links.jsonl"


@dataclass(frozen=True)
class LinkRate:
    """What one side of a node is limited to; None: it is not. `direction` is a Side's value."""

    node: str
    direction: str
    configured_bits_per_second: int | None


@dataclass(frozen=True)
class LinkChange:
    """One command's change of some links.

    `t_ns` and `settled_ns` are CLOCK_MONOTONIC: before the first limit was touched, and after all
    were read back. Until `settled_ns` is there, `rates` is what was asked; then what stands.
    """

    t_ns: int
    wall_ns: int
    settled_ns: int | None
    rates: tuple[LinkRate, ...]


def log_begun(directory: Path, asked: Sequence[LinkRate]) -> None:
    """Call it before the first limit is touched."""
    begun = {"t_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
    _append(directory, {**begun, "rates": [asdict(rate) for rate in asked]})


def log_settled(directory: Path, stands: Sequence[LinkRate]) -> int:
    """Call it when all were read back; returns what `changes_since` leaves this change out by."""
    settled = {"settled_ns": time.monotonic_ns(), "rates": [asdict(rate) for rate in stands]}
    return _append(directory, settled)


def changes_since(directory: Path, position: int) -> tuple[LinkChange, ...]:
    """The changes logged after `position`, 0 being the beginning; () where there is no log."""
    try:
        with (directory / LOG_FILE).open("rb") as file:
            file.seek(position)
            whole, _, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return ()
    changes: list[LinkChange] = []
    for line in whole.splitlines():
        with suppress(ValueError):  # cut off: what it would have said did not happen, or is unknown
            _take(changes, json.loads(line))
    return tuple(changes)


def _take(changes: list[LinkChange], entry: Mapping[str, Any]) -> None:
    rates = tuple(LinkRate(**rate) for rate in entry["rates"])
    if "t_ns" in entry:
        changes.append(LinkChange(entry["t_ns"], entry["wall_ns"], None, rates))
    elif changes:
        changes[-1] = replace(changes[-1], settled_ns=entry["settled_ns"], rates=rates)


def _append(directory: Path, entry: Mapping[str, Any]) -> int:
    """A line that was cut off, because its writer was killed, is ended before the new one."""
    file = os.open(directory / LOG_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(file).st_size
        cut_off = size and os.pread(file, 1, size - 1) != b"\n"
        os.write(file, b"\n" * bool(cut_off) + json.dumps(entry).encode() + b"\n")
        return os.fstat(file).st_size
    finally:
        os.close(file)
