"""`torchrun ... -m ddp.probe [--json]`: the links between the nodes, as rank 0 prints them.

Owns the command line and the text of the table. Measures nothing (probe).
"""

import argparse
import json
import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist

from ddp.errors import DdpError, UsageError
from ddp.membership import Membership, fabric_from, node_identity
from ddp.nic import GLOO_NIC, nic_towards
from ddp.probe import ProbedLink, ProbeTable, probe_links
from ddp.probe_rounds import Mode
from ddp.transport.p2p import P2PTransport

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures with all ranks; rank 0 prints. Exits with 1, in one line, where that fails."""
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m ddp.probe",
        description="Measure what the links between nodes carry, through torch, as training does.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--timeout", type=float, default=30.0, help="longest wait in seconds")
    asked = parser.parse_args(arguments)
    try:
        text = _measured(os.environ, as_json=asked.json, timeout_s=asked.timeout)
    except (DdpError, RuntimeError) as exc:
        sys.stderr.write(f"ddp.probe: {exc}\n")
        raise SystemExit(1) from None
    sys.stdout.write(text)
    sys.stdout.flush()


def _measured(environment: Mapping[str, str], *, as_json: bool, timeout_s: float) -> str:
    """What this rank has to print: rank 0 the table, others nothing."""
    missing = [name for name in NEEDED if name not in environment]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not set; start it on every node: torchrun ... -m ddp.probe"
        )
    if GLOO_NIC not in environment:
        os.environ[GLOO_NIC] = gloo_nic(environment["MASTER_ADDR"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    try:
        membership = Membership(None, timeout_s)
        facts = membership.exchange("nodes", {"node": node_identity(environment), "host": _host()})
        fabric = fabric_from([str(each["node"]) for each in facts])
        group = membership.connect()
        table = probe_links(P2PTransport(group), membership.rank, fabric, timeout_s)
        dist.barrier()  # rank 0 keeps the store: nobody may need it when it leaves
        group.close()
    finally:
        dist.destroy_process_group()
    if membership.rank:
        return ""
    if as_json:
        return json.dumps(table.to_json()) + "\n"
    hosts = {node: str(fact["host"]) for node, fact in zip(fabric.node_of, facts, strict=True)}
    return table_text(table, hosts, fabric.num_ranks)


def gloo_nic(master: str) -> str:
    """The interface that leads to rank 0; gloo by itself takes what the host name resolves to."""
    try:
        address = socket.getaddrinfo(master, None, type=socket.SOCK_DGRAM)[0][4][0]
    except OSError as exc:
        raise UsageError(f"MASTER_ADDR={master!r} is no address: {exc}") from exc
    found = nic_towards(str(address))
    if found is None:
        raise UsageError(f"no route to {address}; set {GLOO_NIC} to the NIC that leads to rank 0")
    return found[0]


def _host() -> str:
    return platform.node() or "?"


def table_text(table: ProbeTable, hosts: Mapping[int, str], num_ranks: int) -> str:
    """One line a link, after one that says what was measured."""
    nodes = ", ".join(f"node {node} {host}" for node, host in sorted(hosts.items()))
    rows = [("link", "Mbit/s", "round trip"), *map(_row, table.links)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = (
        f"  {link:<{widths[0]}}  {rate:>{widths[1]}}  {trip:>{widths[2]}}\n"
        for link, rate, trip in rows
    )
    return f"{num_ranks} ranks through torch's gloo: {nodes}\n{''.join(lines)}"


def _row(link: ProbedLink) -> tuple[str, str, str]:
    name = f"node {link.src} -> node {link.dst}"
    if link.mode is Mode.BOTH_WAYS:
        name = f"{name}, both ways"
    if link.mode is Mode.INTRA_NODE:
        name = f"inside node {link.src}"
    rate = link.measured_bytes_per_second * 8 / 1e6
    return name, f"{rate:,.1f}", f"{link.round_trip_s * 1e3:.2f} ms"
