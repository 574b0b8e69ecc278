"""The exporter's process: listens on 127.0.0.1 and at the gateways of labs that have a Prometheus,
answers, and ends when no lab is left.

Never changes a run; holds nothing of a lab, so that its own end disturbs nobody.
"""

import fcntl
import logging
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import uvicorn

from jobs.errors import LaunchError
from jobs.server.app import build_app
from jobs.server.gateways import Gateways
from jobs.server.ports import ADDRESS, PORTS
from jobs.server.registry import FAULTS, Place, changing
from jobs.server.store import Store
from jobs.server.web import configured

TICK_S = 1.0  # so often what is new is read, so that a scrape finds little left to read
FAULT_S = 30.0

_log = logging.getLogger(__name__)


def serve(path: Path, runs: Path, lock: int) -> int:
    """Answers until it is told to end, or until the last lab is gone. Returns the exit status."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    os.chdir("/")
    _hold_environment()
    place = Place(path)
    try:
        listener = listen(PORTS)
    except LaunchError as exc:
        _log.error("%s", exc)
        return 1
    port = listener.getsockname()[1]
    store = Store(runs)
    server = uvicorn.Server(configured(build_app(store, port)))
    gateways = Gateways(place, store)
    watch = (place, lock, store, server, gateways)
    threading.Thread(target=_watch, args=watch, daemon=True).start()
    place.publish(f"http://{ADDRESS}:{port}/")
    server.run(sockets=[listener])
    return 0


def listen(ports: range) -> socket.socket:
    """A socket that listens on the first port that is free. Raises LaunchError where none is."""
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, port))
            listener.listen()
            return listener
        except OSError:
            listener.close()
    raise LaunchError(
        f"no port of {ADDRESS} is free from {ports.start} to {ports.stop - 1}",
        rule="metrics are served on the first of them that is free",
        fix="end what listens there: ss --listening --tcp --processes",
    )


def _watch(
    place: Place, lock: int, store: Store, server: uvicorn.Server, gateways: Gateways
) -> None:
    while not is_unwanted(place, lock):
        try:
            gateways.keep_up()
            store.keep_up()
        except Exception:  # a fault of ours is no reason never to end
            _log.exception("looking at %s", store.runs)
            time.sleep(FAULT_S)
        time.sleep(TICK_S)
    gateways.close()
    server.should_exit = True


def is_unwanted(place: Place, lock: int) -> bool:
    """Whether no lab is left for which this exporter was started; then its folder is removed."""
    if not place.is_same_folder(lock):
        return True
    with suppress(*FAULTS), changing():
        if place.labs():
            return False
        place.remove()
        return True
    return False


def _hold_environment() -> None:
    """Whoever replaces the environment this runs from keeps it while this lock is there."""
    with suppress(OSError):
        fcntl.flock(os.open(sys.prefix, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)
