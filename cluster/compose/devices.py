"""A container as a node: which device stands for which side of it, as commands; nothing runs here.

What comes in is led through a device of its own (ifb), because only what leaves a device can be
limited. The commands run inside of the container, as its root, who has NET_ADMIN there and nothing
else.
"""

import json
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network

from cluster.errors import NodeError
from cluster.nodes import Node
from cluster.shaping import Side
from cluster.topology import pin_commands

IFB = "ifb0"
HELD = "/run/ddplab/held"
"""What tc read back when the limits were set; the health check holds against it what tc reads."""
NOTE_HELD = ["sh", "-c", f"tc qdisc show > {HELD}.new && mv {HELD}.new {HELD}"]
ADDRESSES = ["ip", "-j", "-4", "addr", "show"]
OTHER_ROUTES = ["ip", "-j", "route", "show", "default"]


def side_device(node: Node, side: Side) -> tuple[list[str], str]:
    """How tc is called for one side of a node, and the device that stands for the side."""
    return ["tc"], {Side.OUT: node.interface, Side.IN: IFB, Side.INSIDE: "lo"}[side]


def fabric_nic(addresses: str, subnet: IPv4Network) -> tuple[str, str]:
    """Name and address of the one NIC in this subnet, from the answer to ADDRESSES.

    By address, since the order of networks, and so the names of their NICs, is Docker's matter.
    """
    found = [
        (link["ifname"], own["local"])
        for link in json.loads(addresses)
        for own in link.get("addr_info", ())
        if IPv4Address(own["local"]) in subnet
    ]
    if len(found) != 1:
        seen = ", ".join(f"{name} {address}" for name, address in found) or "none"
        raise NodeError(f"not one NIC of the container is in {subnet}", seen=seen)
    return found[0]


def fabric_commands(
    node: Node, mtu: int, subnet: IPv4Network, other_routes: str
) -> Sequence[Sequence[str]]:
    """The commands that make a fresh container a node whose sides can be limited.

    `other_routes` is the answer to OTHER_ROUTES: Docker gives even an internal network a gateway.
    """
    nic, tc = node.interface, "tc"
    everything = ["protocol", "all", "u32", "match", "u32", "0", "0"]
    redirect = ["action", "mirred", "egress", "redirect", "dev", IFB]
    return [
        *(["ip", "route", "del", "default"] for _ in json.loads(other_routes)),
        ["ip", "link", "set", "dev", nic, "mtu", str(mtu)],
        *pin_commands(["ip"], node, subnet, nic),
        ["ip", "link", "add", IFB, "type", "ifb"],
        ["ip", "link", "set", "dev", IFB, "mtu", str(mtu), "up"],
        [tc, "qdisc", "add", "dev", nic, "handle", "ffff:", "ingress"],
        [tc, "filter", "add", "dev", nic, "parent", "ffff:", *everything, *redirect],
    ]
