"""One end of the probe, in a node: sends and receives plain TCP, and times what arrives.

`python -m cluster.probe_end --address 198.18.0.10`. JSON lines both ways: `{"op": "ping", "id",
"to": [address, port], "count"}` and `{"op": "flow", "id", "to", "skip_s", "skip_bytes",
"measure_s", "measure_bytes", "pace_bytes_per_s"}`, answered by `{"event": "done", "id", "values"}`:
`[seconds]` of a round trip, or `[payload bytes/s, acknowledgements/s]` as the receiving end saw
them. Ends when standard input does. Standard library only; decides nothing about what is good.
"""

import argparse
import json
import os
import select
import signal
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

BUFFER_BYTES = 1 << 20
SOCKET_TIMEOUT_S = 60.0
PING = b"p"
FLOW_KEYS = ("skip_s", "skip_bytes", "measure_s", "measure_bytes", "pace_bytes_per_s")
SO_MAX_PACING_RATE = 47
_SEGMENTS_OUT = struct.Struct("=136xI")
"""Where Linux keeps tcpi_segs_out in struct tcp_info."""


def receive_flow(connection: socket.socket, order: Mapping[str, float]) -> list[float]:
    """Payload bytes/s, and the packets/s (acknowledgements) that went back for them.

    Leaves out the first `skip_bytes` and `skip_s`, which bursts and slow start fill. Measures for
    at least `measure_s` and `measure_bytes`, from one arrival to another.
    """
    buffer = bytearray(BUFFER_BYTES)
    began = time.monotonic()
    received = 0
    while received < order["skip_bytes"] or time.monotonic() - began < order["skip_s"]:
        received += _arrival(connection, buffer)
    started, measured, elapsed = time.monotonic(), 0, 0.0
    segments = _segments_out(connection)
    while elapsed < order["measure_s"] or measured < order["measure_bytes"]:
        measured += _arrival(connection, buffer)
        elapsed = time.monotonic() - started
    return [measured / elapsed, (_segments_out(connection) - segments) / elapsed]


def _segments_out(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SEGMENTS_OUT.size)
    return int(_SEGMENTS_OUT.unpack(info)[0])


def _arrival(connection: socket.socket, buffer: bytearray) -> int:
    size = connection.recv_into(buffer)
    if not size:
        raise ConnectionError("the sending end closed its connection")
    return size


def send_flow(to: tuple[str, int], order: Mapping[str, float]) -> list[float]:
    """Sends as fast as the link takes it until the receiving end answers what it measured."""
    data = memoryview(bytes(BUFFER_BYTES))
    with socket.create_connection(to, SOCKET_TIMEOUT_S) as connection:
        connection.sendall(json.dumps({"op": "flow", **order}).encode() + b"\n")
        if pace := round(order["pace_bytes_per_s"]):
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, pace)
        connection.setblocking(False)
        while True:
            readable, writable, _ = select.select([connection], [connection], [], SOCKET_TIMEOUT_S)
            if readable:
                break
            if not writable:
                raise TimeoutError(f"nothing was taken for {SOCKET_TIMEOUT_S:g} s")
            connection.send(data)
        connection.settimeout(SOCKET_TIMEOUT_S)
        return [float(value) for value in json.loads(_line(connection))]


def ping(to: tuple[str, int], count: int) -> float:
    """The median round trip of one byte, in seconds."""
    times = []
    with socket.create_connection(to, SOCKET_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(json.dumps({"op": "ping"}).encode() + b"\n")
        for _ in range(count):
            started = time.monotonic()
            connection.sendall(PING)
            connection.recv(1)
            times.append(time.monotonic() - started)
    return statistics.median(times)


def _line(connection: socket.socket) -> bytes:
    """One line, read byte by byte: what follows it is not ours."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := connection.recv(1)):
            raise ConnectionError("the other end closed its connection")
        line += byte
    return line


def serve(connection: socket.socket) -> None:
    """Answers one connection from another end."""
    with connection:
        connection.settimeout(SOCKET_TIMEOUT_S)
        order = json.loads(_line(connection))
        if order["op"] == "ping":
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while byte := connection.recv(1):
                connection.sendall(byte)
            return
        connection.sendall(json.dumps(receive_flow(connection, order)).encode() + b"\n")
        while connection.recv(BUFFER_BYTES):
            pass


def accept_all(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        _in_background(partial(serve, connection))


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def _say(event: str, **fields: Any) -> None:
    os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


def _answer(command: Mapping[str, Any]) -> None:
    to = (str(command["to"][0]), int(command["to"][1]))
    try:
        if command["op"] == "ping":
            values = [ping(to, int(command["count"]))]
        else:
            order = {key: float(command[key]) for key in FLOW_KEYS}
            values = send_flow(to, order)
    except OSError as exc:
        _say("error", id=command["id"], message=f"to {to[0]}: {exc}")
    else:
        _say("done", id=command["id"], values=values)


def main() -> None:
    parser = argparse.ArgumentParser(prog="cluster.probe_end")
    parser.add_argument("--address", required=True)
    address = parser.parse_args().address
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # who ends it wants no traceback
    listener = socket.create_server((address, 0), backlog=64)
    _in_background(partial(accept_all, listener))
    _say("ready", port=listener.getsockname()[1])
    for line in sys.stdin:
        _in_background(partial(_answer, json.loads(line)))
    os._exit(0)


if __name__ == "__main__":
    main()
