"""Runs in a node: starts that node's ranks, streams what they say, kills them when told.

`python -m cluster.agent --node node0 --address 198.18.0.10 --preload torch`, one per node. JSON
lines both ways. Standard input: `{"op": "start", "target": "package.module:function", "ranks":
[{"rank", "local_rank", "env", "argument"}]}`; its end kills every rank and what they started.
Standard output: events `ready, preloaded, started, log, message, stopped, continued, exit, done,
error`. On standard error the guard tells `stopped` and `continued` of the agent itself.

Ranks are forked after the preload, so that they share what was imported; nothing here starts a
thread. Standard library only. What happens inside a rank is `cluster.rank_process`'s matter; that
nothing survives an agent that was killed is `cluster.guard`'s.
"""

import argparse
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cluster.descendants import adopt_orphans, kill_descendants
from cluster.guard import guarded
from cluster.input_end import ending_with_input
from cluster.lines import LineReader, Outbox
from cluster.rank_process import RankStart, become_rank

MAX_LOG_LINE_BYTES = 1 << 16
MAX_MESSAGE_BYTES = 1 << 22
MAX_WAITING_BYTES = 1 << 20
"""Ranks are not read while this much waits for the launcher: they are slowed, nothing is lost."""
LAST_WORDS_S = 1.0
"""How long what an ended rank left in its pipes is waited for."""


@dataclass
class Rank:
    """A rank that runs, or has ended but may have left something to read."""

    number: int
    readers: list[LineReader] = field(default_factory=list)
    wait_status: int | None = None
    ended_s: float = 0.0


class Agent:
    """The event loop of one node."""

    def __init__(self, node: str, address: str) -> None:
        self._node = node
        self._listener: socket.socket | None = socket.create_server((address, 0))
        self._ranks: dict[int, Rank] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (0, 1, self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._commands = LineReader(0, sys.maxsize, self._command)
        self._outbox = Outbox(1)
        self._serving = True
        self._started = False

    def run(self, preload: list[str]) -> None:
        """Serves until standard input ends, then kills all ranks and passes on their last words."""
        adopt_orphans()
        signal.signal(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            self._announce()
            with ending_with_input():
                self._preload(preload)
            self._selector.register(0, selectors.EVENT_READ, self._read_commands)
            self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
            while self._serving:
                self._turn()
            kill_descendants(os.getpid())
            self._selector.unregister(0)
            deadline = time.monotonic() + LAST_WORDS_S
            while (self._ranks or self._outbox) and time.monotonic() < deadline:
                self._reap()
                self._turn(LAST_WORDS_S / 10)
        except BrokenPipeError:
            pass
        finally:
            kill_descendants(os.getpid())

    def _announce(self) -> None:
        assert self._listener is not None
        self._say(
            "ready",
            node=self._node,
            pid=os.getpid(),
            port=self._listener.getsockname()[1],
            listen_fd=self._listener.fileno(),
            cores=len(os.sched_getaffinity(0)),
        )

    def _preload(self, modules: list[str]) -> None:
        started = time.monotonic()
        gc.disable()  # what is imported stays: to look for garbage in it is a fifth of the work
        try:
            for module in modules:
                importlib.import_module(module)
        except Exception as exc:
            self._say("error", message=f"cannot import {module}: {type(exc).__name__}: {exc}")
            return
        finally:
            gc.freeze()
            gc.enable()
        self._say("preloaded", seconds=round(time.monotonic() - started, 3))

    def _turn(self, timeout_s: float | None = None) -> None:
        """Waits until something happens, handles it, and reports ranks that have ended."""
        events = selectors.EVENT_WRITE if self._outbox else 0
        if events and 1 not in self._selector.get_map():
            self._selector.register(1, events, self._outbox.send)
        elif not events and 1 in self._selector.get_map():
            self._selector.unregister(1)
        if any(rank.wait_status is not None for rank in self._ranks.values()):
            timeout_s = LAST_WORDS_S / 10
        for key, _ in self._selector.select(timeout_s):
            if key.fd in self._selector.get_map():
                key.data()
        self._report_ended()
        self._wait_for_room()

    def _wait_for_room(self) -> None:
        """While the launcher does not read, nothing is read from ranks; only its end is seen."""
        while self._serving and len(self._outbox) > MAX_WAITING_BYTES:
            readable, _, _ = select.select([0], [1], [])
            self._outbox.send()
            if readable:
                self._read_commands()

    def _read_commands(self) -> None:
        self._serving = self._commands.read()

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        self._reap()

    def _command(self, line: bytes) -> None:
        try:
            command = json.loads(line)
            if command["op"] != "start":
                raise ValueError(f"unknown op {command['op']!r}; known: start")
            if self._started:
                raise ValueError("ranks were started already; an agent starts them once")
            target = str(command["target"])
            starts = [RankStart.from_json(rank) for rank in command["ranks"]]
        except (ValueError, KeyError, TypeError) as exc:
            self._say("error", message=f"bad command: {type(exc).__name__}: {exc}")
            return
        self._started = True
        for start in starts:
            self._fork(start, target)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _fork(self, start: RankStart, target: str) -> None:
        log_read, log_write = os.pipe()
        events_read, events_write = os.pipe()
        os.set_inheritable(events_write, True)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            foreign = [*self._own_files(start.local_rank), log_read, events_read]
            become_rank(start, target, parent, log_write, events_write, foreign)
        with suppress(OSError):
            os.setpgid(pid, pid)
        os.close(log_write)
        os.close(events_write)
        rank = Rank(start.rank)
        self._ranks[pid] = rank
        for fd, limit, take in (
            (log_read, MAX_LOG_LINE_BYTES, partial(self._log, rank.number)),
            (events_read, MAX_MESSAGE_BYTES, partial(self._message, rank.number)),
        ):
            os.set_blocking(fd, False)
            reader = LineReader(fd, limit, take)
            rank.readers.append(reader)
            self._selector.register(fd, selectors.EVENT_READ, partial(self._read, rank, reader))
        self._say("started", rank=rank.number, pid=pid)

    def _own_files(self, local_rank: int) -> list[int]:
        """What a rank must not keep open. The listening socket stays with local rank 0."""
        files = [reader.fd for rank in self._ranks.values() for reader in rank.readers]
        files += [self._wake_read, self._wake_write]
        if isinstance(self._selector, selectors.EpollSelector):
            files.append(self._selector.fileno())
        if self._listener is not None and local_rank != 0:
            files.append(self._listener.fileno())
        return files

    def _read(self, rank: Rank, reader: LineReader) -> None:
        if not reader.read():
            self._close(rank, reader)

    def _close(self, rank: Rank, reader: LineReader) -> None:
        self._selector.unregister(reader.fd)
        os.close(reader.fd)
        rank.readers.remove(reader)

    def _log(self, rank: int, line: bytes) -> None:
        self._say("log", rank=rank, line=line.decode(errors="replace"))

    def _message(self, rank: int, line: bytes) -> None:
        try:
            data = json.loads(line)
        except ValueError:
            self._log(rank, line)
        else:
            self._say("message", rank=rank, data=data)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (seen := os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)) != (0, 0):
                pid, status = seen
                rank = self._ranks.get(pid)
                if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                    if rank is not None:
                        event = "stopped" if os.WIFSTOPPED(status) else "continued"
                        self._say(event, rank=rank.number)
                elif rank is not None:
                    rank.wait_status, rank.ended_s = status, time.monotonic()
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)

    def _report_ended(self) -> None:
        now = time.monotonic()
        for pid, rank in list(self._ranks.items()):
            if rank.wait_status is None:
                continue
            if rank.readers and now - rank.ended_s < LAST_WORDS_S:
                continue
            for reader in list(rank.readers):
                self._close(rank, reader)
            del self._ranks[pid]
            code = os.waitstatus_to_exitcode(rank.wait_status)
            ending: Mapping[str, Any] = {
                "status": code if code >= 0 else None,
                "signal": signal.Signals(-code).name if code < 0 else None,
            }
            self._say("exit", rank=rank.number, **ending)
            if not self._ranks:
                self._say("done")

    def _say(self, event: str, **fields: Any) -> None:
        self._outbox.put(json.dumps({"event": event, **fields}).encode() + b"\n")


def _wake_up(signum: int, frame: object) -> None:
    """The wake-up pipe does the work; a handler must only exist."""
    del signum, frame


def main() -> None:
    parser = argparse.ArgumentParser(prog="cluster.agent")
    parser.add_argument("--node", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--preload", action="append", default=[])
    options = parser.parse_args()
    guarded(lambda: Agent(options.node, options.address).run(options.preload))


if __name__ == "__main__":
    main()
