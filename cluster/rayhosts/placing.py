"""What is asked of Ray for a job: one bundle per node. Pure; Ray decides where bundles go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from cluster.errors import NotPlaced, RayError
from cluster.rayhosts.differences import table

SPREAD, PACK = "spread", "pack"
STRATEGIES = {SPREAD: "STRICT_SPREAD", PACK: "PACK"}
PINNED = 0.001
"""Of a node's own resource, which Ray calls `node:ADDRESS` and counts as 1."""


@dataclass(frozen=True)
class Machine:
    """One machine of the cluster that is alive: what it has, and what of it is free."""

    id: str
    address: str
    total: Mapping[str, float]
    free: Mapping[str, float]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Machine":
        return cls(**data)


@dataclass(frozen=True)
class Placing:
    """Bundles in the order of nodes, and Ray's name for how they are spread."""

    bundles: tuple[Mapping[str, float], ...]
    strategy: str
    addresses: tuple[str, ...] | None
    """Which machines, in the order of nodes; None: Ray chooses."""


def chosen_addresses(strategy: str) -> tuple[str, ...] | None:
    """The machines that a strategy names; None where it is `spread` or `pack`. Raises RayError."""
    if strategy in STRATEGIES:
        return None
    words = [word.strip() for word in strategy.split(",")]
    try:
        addresses = tuple(str(IPv4Address(word)) for word in words)
    except AddressValueError as exc:
        raise RayError(
            f"strategy {strategy!r} is neither {SPREAD}, {PACK} nor a list of addresses",
            "spread: one node per machine; pack: as few machines as hold them; or the machines",
            "--strategy 10.0.0.4,10.0.0.5",
        ) from exc
    if len(set(addresses)) < len(addresses):
        raise RayError(f"strategy {strategy} names a machine twice", "one node per machine")
    return addresses


def working(machines: Sequence[Machine]) -> list[Machine]:
    """Those that take work: a head is often started without any CPU, to keep work off it."""
    return [machine for machine in machines if machine.total["CPU"] > 0]


def gpus_per_node(machines: Sequence[Machine]) -> int | None:
    """Where equal and above 0: a rank for each is what is meant."""
    counts = {int(machine.total["GPU"]) for machine in machines}
    return counts.pop() if len(counts) == 1 and counts != {0} else None


def plan_placing(
    machines: Sequence[Machine],
    nodes: int,
    ranks_per_node: int,
    strategy: str,
    addresses: Sequence[str] | None,
) -> Placing:
    """Raises NotPlaced where it can never be, even with nothing else running."""
    pool = machines
    if addresses is not None:
        known = {machine.address: machine for machine in machines}
        if unknown := [each for each in addresses if each not in known]:
            raise NotPlaced(
                f"{', '.join(unknown)} is no machine of this Ray cluster",
                "machines are named by the addresses Ray knows them by",
                seen=f"alive: {', '.join(sorted(known)) or 'none'}",
            )
        pool = [known[each] for each in addresses]
    wanted = {"CPU": float(ranks_per_node)}
    if all(machine.total["GPU"] >= ranks_per_node for machine in pool) and pool:
        wanted["GPU"] = float(ranks_per_node)
    pinned = addresses or ()
    bundles = [
        {**wanted, **({f"node:{pinned[at]}": PINNED} if pinned else {})} for at in range(nodes)
    ]
    placing = Placing(
        tuple(bundles),
        STRATEGIES.get(strategy, STRATEGIES[SPREAD]),
        None if addresses is None else tuple(addresses),
    )
    room = [_fits(machine, wanted) for machine in pool]
    if (strategy == PACK and sum(room) < nodes) or (
        strategy != PACK and sum(map(bool, room)) < nodes
    ):
        raise not_placed(placing, machines, None)
    return placing


def _fits(machine: Machine, wanted: Mapping[str, float]) -> int:
    """How many bundles a machine could hold."""
    return int(min(machine.total[name] // amount for name, amount in wanted.items()))


def not_placed(placing: Placing, machines: Sequence[Machine], limit_s: float | None) -> NotPlaced:
    """The error, with what was wanted against what there is. `limit_s`: how long was waited."""
    wanted = {name: value for name, value in placing.bundles[0].items() if ":" not in name}
    each = " and ".join(f"{value:g} {name}" for name, value in wanted.items())
    on = ""
    if placing.strategy == STRATEGIES[SPREAD]:
        on = f", each on {'the machine named' if placing.addresses else 'a machine of its own'}"
    rows = [
        [it.address, *(f"{it.free[name]:g} of {it.total[name]:g} {name} free" for name in wanted)]
        for it in sorted(machines, key=lambda it: order_key(it.address))
    ]
    waited = "can never be placed" if limit_s is None else f"was not placed within {limit_s:g} s"
    fixes = ["ask for fewer nodes, or fewer ranks per node"]
    if limit_s is not None:
        fixes.append("wait until other work on the cluster has ended")
    return NotPlaced(
        f"what was asked of Ray {waited}: {len(placing.bundles)} x ({each}){on}",
        "a rank takes one CPU of Ray's count, and one GPU where every machine has enough",
        fixes,
        seen=table(rows) if rows else "no machine is alive",
    )


def order_key(address: str) -> tuple[int, str]:
    """Addresses as numbers; names after them."""
    try:
        return int(IPv4Address(address)), ""
    except AddressValueError:
        return 1 << 32, address
