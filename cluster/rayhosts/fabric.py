"""Which NIC of each node is the fabric: a name or a subnet, resolved on what every node told."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError

from cluster.errors import FabricRefused

RULE = "the fabric is the one NIC of each node that gradients travel through"


@dataclass(frozen=True)
class Nics:
    """A node as people call it, the address Ray knows it by, and its (interface, address) pairs."""

    name: str
    ray_address: str
    pairs: tuple[tuple[str, str], ...]


def resolve_fabric(fabric: str | None, nodes: Sequence[Nics]) -> list[tuple[str, str]]:
    """Interface and address of every node; by default those that Ray itself uses.

    Raises FabricRefused, with the NICs of the node where the name or subnet fits none, or several.
    """
    found = [_one(fabric, node) for node in nodes]
    for node, (interface, address) in zip(nodes, found, strict=True):
        if IPv4Address(address).is_loopback and (fabric is not None or len(nodes) > 1):
            raise _refused(f"{interface} ({address}) of {node.name} is loopback", node)
    return found


def _one(fabric: str | None, node: Nics) -> tuple[str, str]:
    if fabric is None:
        fitting = [pair for pair in node.pairs if pair[1] == node.ray_address]
        asked = f"Ray's address of {node.name}, {node.ray_address},"
    else:
        _require_one_word(fabric, node)
        subnet = _subnet(fabric)
        asked = f"fabric {fabric}"
        fitting = [
            pair
            for pair in node.pairs
            if (pair[0] == fabric if subnet is None else IPv4Address(pair[1]) in subnet)
        ]
    if len(fitting) == 1:
        return fitting[0]
    what = "fits no NIC" if not fitting else "fits several addresses"
    raise _refused(f"{asked} {what} of {node.name}", node)


def _require_one_word(fabric: str, node: Nics) -> None:
    if fabric.startswith(("^", "=")) or "," in fabric or not fabric.strip():
        raise _refused(
            f"fabric {fabric!r} is no name of a NIC: NCCL reads such lists, gloo does not", node
        )


def _subnet(text: str) -> IPv4Network | None:
    try:
        return IPv4Network(text, strict=False) if "/" in text else None
    except (AddressValueError, NetmaskValueError, ValueError) as exc:
        raise FabricRefused(
            f"fabric {text!r} is no IPv4 subnet", RULE, "FABRIC=10.0.0.0/24 or FABRIC=eth1"
        ) from exc


def _refused(message: str, node: Nics) -> FabricRefused:
    listed = ", ".join(f"{interface} {address}" for interface, address in node.pairs) or "none"
    usable = [pair for pair in node.pairs if not IPv4Address(pair[1]).is_loopback]
    fixes = [f"FABRIC={interface}" for interface in dict.fromkeys(pair[0] for pair in usable)]
    return FabricRefused(message, RULE, fixes, seen=f"NICs of {node.name}: {listed}")
