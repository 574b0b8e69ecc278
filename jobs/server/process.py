"""Starts and ends the exporter, for the verbs that bring labs up and take them down.

One exporter for each folder of runs: the first lab that is brought up from there starts it, the
last one that is taken down ends it. Imports nothing that only the exporter needs.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from jobs.errors import LaunchError
from jobs.server.registry import FAULTS, Place, Process, changing, exporters_folder

PROJECT = Path(__file__).resolve().parents[2]
MODULE = "jobs.server"
NEEDED = ("jinja2", "prometheus_client", "starlette", "uvicorn")
START_TIMEOUT_S = 10.0
END_TIMEOUT_S = 3.0


@dataclass
class Serving:
    """The exporter of a lab that is being brought up; `fault` tells why there is none."""

    place: Place | None = None
    fault: str | None = None

    def address(self) -> str | None:
        """Where it answers, waiting for it if it has only just been started."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while self.place and not self.fault:
            if address := self.place.address:
                return address
            if not self.place.is_served():
                self.fault = _last_line(self.place.log) or "the exporter ended as it began"
            elif time.monotonic() > deadline_s:
                self.fault = f"the exporter has not started within {START_TIMEOUT_S:g} s"
            time.sleep(0.02)
        return None


@contextmanager
def serving(runs: Path, lab: str) -> Iterator[Serving]:
    """An exporter of `runs` from the beginning of the block on, for as long as the lab is up.

    Starting it takes no time of the block. A fault of it is told, never raised: a lab is worth
    having without.
    """
    it = Serving()
    try:
        it.place = _join(runs.resolve(), lab)
    except FAULTS as exc:
        it.fault = str(exc)
    try:
        yield it
    except BaseException:
        _settle(it, lab, came_up=False)
        raise
    _settle(it, lab, came_up=True)


def end_unwanted() -> None:
    """Ends every exporter that has no lab any more, now that one was taken down."""
    with suppress(*FAULTS), changing() as exporters:
        for place in Place.all(exporters):
            _end_if_unwanted(place)


def address_of(lab: str) -> str | None:
    """Where the runs of a lab that is up are shown; None where they are not."""
    with suppress(*FAULTS):
        for place in Place.all(exporters_folder()):
            if place.has(lab) and place.is_served():
                return place.address
    return None


def _join(runs: Path, lab: str) -> Place:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise LaunchError(
            f"{missing[0]} is not installed", fix="make setup, or: pip install 'ddplab[server]'"
        )
    with changing() as exporters:
        place = Place.of(exporters, runs)
        try:
            place.register(lab)
            with place.claimed() as folder:
                if folder is not None:
                    _start(place, runs, folder)
        except BaseException:
            _leave(place, lab)
            raise
    return place


def _start(place: Place, runs: Path, folder: int) -> None:
    """Starts an exporter, to which the lock on its folder goes over."""
    place.forget_address()
    command = [sys.executable, "-m", MODULE, str(place.path), str(runs), str(folder)]
    with place.log.open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(folder,),
        )
    place.note_process(process.pid)
    process.returncode = 0  # it outlives this process, which does not wait for it


def _settle(it: Serving, lab: str, came_up: bool) -> None:
    if it.place is None:
        return
    with suppress(*FAULTS), changing():
        if came_up:
            it.place.keep(lab)
        else:
            _leave(it.place, lab)


def _leave(place: Place, lab: str) -> None:
    place.withdraw(lab)
    _end_if_unwanted(place)


def _end_if_unwanted(place: Place) -> None:
    """Ends the exporter where no lab is left."""
    if place.labs():
        return
    process = place.process
    if process is not None and place.is_locked():
        _end(process)
    place.remove()  # an exporter that is not known by now finds its folder gone, and ends


def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if process.alive:  # still the same one
                for number in (signal.SIGTERM, signal.SIGKILL):
                    signal.pidfd_send_signal(handle, number)
                    if _ended(handle):
                        return
        finally:
            os.close(handle)


def _ended(handle: int) -> bool:
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    return bool(poller.poll(END_TIMEOUT_S * 1000))


def _last_line(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""
