"""Which addresses a fabric of containers takes: the first that nobody has, or those asked for."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any

from cluster.errors import HostError
from cluster.holding import search_path
from cluster.topology import BENCHMARK_RANGE

OWN_PREFIX = 24
WIDEST = 8
"""Routes with a shorter prefix lead away, as `default` does; a VPN may write that in two halves."""
ASK_TIMEOUT_S = 10.0
RESERVED = 3
"""Addresses of a subnet that no node gets: its first, its last, and the one Docker keeps."""


def candidates() -> Iterator[IPv4Network]:
    """The subnets that a fabric may get by itself, in order."""
    return BENCHMARK_RANGE.subnets(new_prefix=OWN_PREFIX)


def choose_subnet(
    asked: IPv4Network | None, num_nodes: int, taken: Mapping[IPv4Network, str]
) -> IPv4Network:
    """The subnet asked for, or the first free one. Raises HostError, naming who has it."""
    if asked is None:
        room = [it for it in candidates() if _has_room(it, num_nodes)]
        for subnet in room or BENCHMARK_RANGE.subnets(new_prefix=OWN_PREFIX - 1):
            if holder_of(subnet, taken) is None:
                return subnet
        raise HostError(f"no part of {BENCHMARK_RANGE} is free", fix="SUBNET=10.99.0.0/24")
    if not _has_room(asked, num_nodes):
        raise HostError(
            f"SUBNET={asked} has no room for {num_nodes} nodes",
            f"each node has an address of its own, and {RESERVED} are kept",
            f"SUBNET={asked.network_address}/{32 - (num_nodes + RESERVED - 1).bit_length()}",
        )
    holder = holder_of(asked, taken)
    if holder is not None:
        free = choose_subnet(None, num_nodes, taken)
        raise HostError(
            f"SUBNET={asked} is taken",
            "a fabric's addresses are its own",
            (f"SUBNET={free} is free", "without SUBNET a free one is found"),
            seen=f"held by {holder}",
        )
    return asked


def holder_of(subnet: IPv4Network, taken: Mapping[IPv4Network, str]) -> str | None:
    """Who has addresses of this subnet already; None where nobody does."""
    return next((holder for other, holder in taken.items() if other.overlaps(subnet)), None)


def taken_subnets(
    networks: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]]
) -> dict[IPv4Network, str]:
    """Who has which addresses: Docker's networks, and this machine's own routes.

    `networks` as the engine tells them, `routes` as `ip -j route show table all` does.
    """
    taken: dict[IPv4Network, str] = {}
    for route in routes:
        target = str(route.get("dst", ""))
        if target[:1].isdigit() and ":" not in target and route.get("type") != "broadcast":
            subnet = IPv4Network(target, strict=False)
            if subnet.prefixlen >= WIDEST:
                taken[subnet] = f"this machine's interface {route.get('dev', '?')}"
    for network in networks:
        for config in (network.get("IPAM") or {}).get("Config") or ():
            text = config.get("Subnet", "")
            if text and ":" not in text:
                taken[IPv4Network(text)] = f"Docker's network {network['Name']}"
    return taken


def machine_routes() -> list[dict[str, Any]]:
    """This machine's routes; none where it cannot tell (Docker Desktop)."""
    try:
        done = subprocess.run(
            ["ip", "-j", "-4", "route", "show", "table", "all"],
            capture_output=True,
            text=True,
            env={"PATH": search_path()},
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
        found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []
    return found


def _has_room(subnet: IPv4Network, num_nodes: int) -> bool:
    return subnet.num_addresses - RESERVED >= num_nodes
