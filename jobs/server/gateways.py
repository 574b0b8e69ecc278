"""The exporter's further listeners: /metrics alone, at the gateway of each lab with a Prometheus.

Follows what the exporter's folder says: a listener comes with a lab and goes with it. One that
cannot listen is tried again; why, is said once.
"""

import logging
import socket
import threading
from ipaddress import IPv4Interface

import uvicorn

from jobs.server.app import build_metrics_app
from jobs.server.ports import GATEWAY_PORT
from jobs.server.registry import Place
from jobs.server.store import Store
from jobs.server.web import configured

END_TIMEOUT_S = 3.0

_log = logging.getLogger(__name__)


class Listener:
    """Answers at one gateway, in a thread of its own, until it is closed."""

    def __init__(self, store: Store, gateway: IPv4Interface, port: int) -> None:
        """Raises OSError where it cannot listen there."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((str(gateway.ip), port))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self._server = uvicorn.Server(configured(build_metrics_app(store, port, gateway)))
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(END_TIMEOUT_S)
        self._socket.close()


class Gateways:
    """The listeners of one exporter. Not safe for threads."""

    def __init__(self, place: Place, store: Store, port: int = GATEWAY_PORT) -> None:
        self._place, self._store, self._port = place, store, port
        self._listeners: dict[IPv4Interface, Listener] = {}
        self._said: set[str] = set()

    def keep_up(self) -> None:
        """Listens at the gateways that there are now, and at no others."""
        wanted = set(self._place.gateways().values())
        for gateway, listener in list(self._listeners.items()):
            if gateway not in wanted or not listener.alive:
                self._listeners.pop(gateway).close()
        for gateway in wanted - self._listeners.keys():
            self._listen(gateway)

    def close(self) -> None:
        while self._listeners:
            self._listeners.popitem()[1].close()

    def _listen(self, gateway: IPv4Interface) -> None:
        try:
            self._listeners[gateway] = Listener(self._store, gateway, self._port)
        except OSError as exc:
            words = f"no metrics at {gateway.ip}:{self._port}: {exc.strerror or exc}"
            if words not in self._said:
                self._said.add(words)
                _log.warning("%s", words)
