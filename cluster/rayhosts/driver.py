"""The driver of a Ray cluster as a process of its own: `python -m cluster.rayhosts.driver`.

JSON lines both ways. Standard input: `{"id", "op", ...}` with op `attach`, then `place`, then any
number of `call`; its end ends everything. Standard output: `{"id", "result"}` or `{"id", "error":
{"kind", "words"}}`. It decides nothing: what is asked for comes from `cluster.rayhosts.attach`.
The only module here that imports ray.
"""

import asyncio
import importlib
import inspect
import json
import os
import re
import select
import socket
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cluster.rayhosts import actor, facts

CONNECT_S = 3.0
SETTINGS = {
    "RAY_GCS_SERVER_REQUEST_TIMEOUT_SECONDS": "10",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""How long Ray's own head is waited for."""
WORDS_S = 0.4
"""How long Ray has for saying why an actor's process has ended."""
BEAT_S = 3.0
START_S = 60.0
ORDERLY_S = 8.0
"""How long an orderly end may take once standard input has ended."""
MOST_CALLS = 32
"""At once on one node; each program that runs there takes one."""
LINE_BYTES = 1 << 24
MOST_LETTERS = 600
NUMBERED = re.compile(r"actor [0-9a-f]{32}")


class Refused(Exception):
    """What was asked for cannot be; `kind` says why, in words for programs."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


class Driver:
    """One connection to a Ray cluster, one placement group, one actor per bundle."""

    def __init__(self) -> None:
        self._ray: Any = None
        self._group: Any = None
        self._hosts: list[Any] = []
        self._beating: asyncio.Task[None] | None = None
        self._ends: list[asyncio.Task[None]] = []

    async def attach(self, address: str, node_address: str | None) -> Mapping[str, Any]:
        """Connects; what the cluster's nodes have, and what is free of it."""
        require_answer(address)
        os.environ.update(SETTINGS)
        try:
            ray = importlib.import_module("ray")
        except ImportError as exc:
            raise Refused("no_ray", str(exc)) from exc
        own = {"_node_ip_address": node_address} if node_address else {}
        quiet: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": "CRITICAL",
            "configure_logging": False,
        }
        try:
            await asyncio.to_thread(ray.init, address=address, **quiet, **own)
        except Exception as exc:
            raise Refused("not_attached", said(exc)) from exc
        self._ray = ray
        ray.cloudpickle.register_pickle_by_value(actor)
        return {"nodes": self._nodes(), "here": facts.facts()}

    def _nodes(self) -> list[dict[str, Any]]:
        free: Mapping[str, Any] = {}
        with suppress(Exception):  # Ray's own, not promised to stay
            free = importlib.import_module("ray._private.state").available_resources_per_node()
        return [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "total": _plain(node["Resources"]),
                "free": _plain(free.get(node["NodeID"], node["Resources"])),
            }
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    async def place(
        self, bundles: Sequence[Mapping[str, float]], strategy: str, limit_s: float
    ) -> list[dict[str, Any]]:
        """A placement group and an actor in each bundle; each one's node id and facts."""
        from ray.util.placement_group import placement_group, placement_group_table

        self._group = placement_group([dict(each) for each in bundles], strategy=strategy)
        if not await asyncio.to_thread(self._group.wait, limit_s):
            now = self._nodes()
            self._remove_group()
            raise Refused("not_placed", json.dumps(now))
        self._start_hosts(bundles)
        self._beating = asyncio.create_task(self._beat())
        told = await self._facts()
        where = placement_group_table(self._group)["bundles_to_node_id"]
        addresses = {node["id"]: node["address"] for node in self._nodes()}
        for index, host in enumerate(self._hosts):
            end = _end_of(host, addresses.get(where[index], ""))
            self._ends.append(asyncio.create_task(end))
        return [{"id": where[index], **each} for index, each in enumerate(told)]

    def _start_hosts(self, bundles: Sequence[Mapping[str, float]]) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        host = self._ray.remote(actor.Host)
        for index, bundle in enumerate(bundles):
            options = host.options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                max_concurrency=MOST_CALLS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index),
            )
            self._hosts.append(options.remote())

    async def _beat(self) -> None:
        """Actors end what they run when this stops: Ray's own word may be lost with its head."""
        while True:
            for host in self._hosts:
                host.beat.remote()
            await asyncio.sleep(BEAT_S)

    async def _facts(self) -> list[dict[str, Any]]:
        source = inspect.getsource(facts)
        answers = [host.facts.remote(source) for host in self._hosts]
        done = await asyncio.gather(
            *(asyncio.wait_for(_result(each), START_S) for each in answers), return_exceptions=True
        )
        for index, answer in enumerate(done):
            if isinstance(answer, BaseException):
                words = said(answer) or f"no answer within {START_S:g} s"
                raise Refused("no_actor", json.dumps([index, words]))
        return [json.loads(str(answer)) for answer in done]

    async def call(self, node: int, method: str, args: Sequence[Any]) -> Any:
        """What a method of a node's actor returns. Raises Ray's own error when it has ended."""
        answer = asyncio.create_task(_result(getattr(self._hosts[node], method).remote(*args)))
        await asyncio.wait([answer, self._ends[node]], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await asyncio.wait([answer], timeout=WORDS_S)
        if not answer.done():
            raise Refused("ended", "its process has ended, and Ray has not said yet why")
        return answer.result()

    def end(self) -> None:
        """Ends all programs, actors and the placement group, and leaves the cluster."""
        if self._ray is None:
            return
        with suppress(Exception):
            ends = [host.end.remote() for host in self._hosts]
            self._ray.wait(ends, num_returns=len(ends), timeout=actor.END_S + 1)
        for host in self._hosts:
            with suppress(Exception):
                self._ray.kill(host)
        self._remove_group()
        self._ray.shutdown()

    def _remove_group(self) -> None:
        from ray.util.placement_group import remove_placement_group

        if self._group is not None:
            with suppress(Exception):
                remove_placement_group(self._group)
            self._group = None


async def _end_of(host: Any, address: str) -> None:
    """Returns when an actor's process has ended, seconds before Ray itself says so.

    Never where it cannot be told: a firewall may let pass only what Ray itself needs.
    """
    try:
        port = await _result(host.line.remote(address))
        reader, _ = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
    except Exception:
        await asyncio.Event().wait()
    else:
        with suppress(OSError):
            await reader.read()


async def _result(reference: Any) -> Any:
    return await reference


def _plain(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: resources.get(name, 0.0) for name in ("CPU", "GPU")}


def require_answer(address: str) -> None:
    """Raises Refused unless something listens there: Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as exc:
        raise Refused("unreachable", exc.strerror or str(exc)) from exc


def said(exc: BaseException) -> str:
    """What Ray says, on one line, without its numbers of actors and jobs."""
    seen = [exc, *([exc.__cause__] if exc.__cause__ else [])]
    lines = [line.strip() for each in seen for line in str(each).splitlines()]
    names = ("class_name:", "actor_id:", "pid:", "namespace:", "ip:", "name:")
    words = " ".join(line for line in lines if line and not line.startswith(names))
    for advice in (" Some common causes", " The task may or may not", " Last connection error"):
        words = words.partition(advice)[0]
    return NUMBERED.sub("actor", words)[:MOST_LETTERS]


class Service:
    """Orders in, answers out; orders are done at the same time."""

    def __init__(self, driver: Driver, out: int) -> None:
        self._driver, self._out = driver, out
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            number, op = order.pop("id"), order.pop("op")
            work = getattr(self._driver, {"attach": "attach", "place": "place"}.get(op, "call"))
            task = asyncio.create_task(self._answer(number, work(**order)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, work: Coroutine[Any, Any, Any]) -> None:
        answer: dict[str, Any]
        try:
            answer = {"id": number, "result": await work}
        except Refused as exc:
            answer = {"id": number, "error": {"kind": exc.kind, "words": str(exc)}}
        except Exception as exc:
            words = said(exc) or type(exc).__name__
            answer = {"id": number, "error": {"kind": "failed", "words": words}}
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(self._out, data) :]


def _end_with_input() -> None:
    """A thread: however Ray waits, this process ends soon after its standard input."""
    poller = select.poll()
    poller.register(0, 0)  # hang-up is always reported
    poller.poll()
    threading.Event().wait(ORDERLY_S)
    os._exit(1)


def main() -> None:
    os.environ.pop("RAY_ADDRESS", None)  # an address is always given, and no other one is meant
    out = os.dup(1)
    os.dup2(2, 1)  # what Ray writes does not disturb the answers
    threading.Thread(target=_end_with_input, daemon=True).start()
    driver = Driver()
    with suppress(BrokenPipeError):
        # not asyncio.run: it would wait for what Ray is still asked for
        asyncio.new_event_loop().run_until_complete(Service(driver, out).run())
    driver.end()
    os._exit(0)


if __name__ == "__main__":
    main()
