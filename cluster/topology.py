"""Which commands make the nodes of a netns lab and join them: pure, nothing runs here.

Nodes are named network namespaces inside the holder; each has one NIC, joined through the
holder's own namespace by a bridge. Addresses come from the benchmark range 198.18.0.0/15.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from cluster.errors import HostError, ShapingError
from cluster.nodes import Node
from cluster.shaping import Side, qdisc_commands, wanted_qdiscs
from cluster.spec import ClusterSpec

BENCHMARK_RANGE = IPv4Network("198.18.0.0/15")
BRIDGE = "fabric0"
NIC = "fab0"
LEAST_IPV6_MTU = 1280
CONGESTION_CONTROL = "cubic"
"""Pinned, because the default of some kernels (bbr) loses throughput under tbf."""


@dataclass(frozen=True)
class FabricNetwork:
    """The addresses of a fabric: node k has number `first_host + k` in `subnet`."""

    subnet: IPv4Network = BENCHMARK_RANGE
    first_host: int = 10

    def nodes(self, spec: ClusterSpec) -> tuple[Node, ...]:
        """The nodes of a specification, by number. Raises HostError for a too small subnet."""
        if self.first_host + spec.nodes >= self.subnet.num_addresses:
            room = 32 - (self.first_host + spec.nodes).bit_length()
            raise HostError(
                f"SUBNET={self.subnet} has no room for {spec.nodes} nodes",
                f"each node has an address of its own, and {self.first_host} are kept",
                f"SUBNET={self.subnet.supernet(new_prefix=min(room, self.subnet.prefixlen))}",
            )
        return tuple(
            Node(name, index, str(self.subnet[self.first_host + index]), NIC)
            for index, name in enumerate(spec.node_names)
        )


def port_of(node: Node) -> str:
    """The switch side of a node's cable."""
    return f"port{node.index}"


def topology_commands(
    spec: ClusterSpec, network: FabricNetwork, ipv6: bool = True
) -> list[list[str]]:
    """The commands that make bridge, nodes and cables, unlimited, in this order.

    `ipv6`: whether the kernel speaks it, and devices must be told not to take an address of it.
    """
    nodes = network.nodes(spec)
    mtus = {node: spec.links_of(node.name).inter_node.mtu for node in nodes}
    bridge = ["ip", "link", "add", BRIDGE, "type", "bridge"]
    commands = [
        [*bridge, "forward_delay", "0", "stp_state", "0", "mcast_snooping", "0"],
        ["ip", "link", "set", BRIDGE, "addrgenmode", "none"],
    ][: 2 if ipv6 else 1]
    for node in nodes:
        speaks = ipv6 and mtus[node] >= LEAST_IPV6_MTU
        commands += _node_commands(node, mtus[node], network, speaks)
    commands.append(["ip", "link", "set", BRIDGE, "mtu", str(max(mtus.values())), "up"])
    return commands


def _node_commands(node: Node, mtu: int, network: FabricNetwork, ipv6: bool) -> list[list[str]]:
    port, ip = port_of(node), ["ip", "-n", node.name]
    mtu_ = ["mtu", str(mtu)]
    cable = ["type", "veth", "peer", "name", NIC, *mtu_, "netns", node.name]
    address = f"{node.address}/{network.subnet.prefixlen}"
    silent = ["addrgenmode", "none"] if ipv6 else []
    return [
        ["ip", "netns", "add", node.name],
        ["ip", "link", "add", port, *mtu_, *cable],
        ["ip", "link", "set", port, *silent, "master", BRIDGE, "up"],
        [*ip, "link", "set", "lo", "up"],
        [*ip, "link", "set", NIC, *silent, "up"],
        [*ip, "addr", "add", address, "dev", NIC],
        *pin_commands(ip, node, network.subnet, NIC),
    ]


def pin_commands(ip: Sequence[str], node: Node, subnet: IPv4Network, nic: str) -> list[list[str]]:
    """The commands that pin TCP congestion control on the fabric; `ip` is how ip is called."""
    source = ["proto", "kernel", "src", node.address, "congctl", CONGESTION_CONTROL]
    return [
        [*ip, "route", "change", str(subnet), "dev", nic, "scope", "link", *source],
        [*ip, "route", "change", "local", node.address, "dev", nic, "table", "local", *source],
    ]


def route_command(node: Node, network: FabricNetwork) -> list[str]:
    """Reads back the node's route to the fabric."""
    return ["ip", "-n", node.name, "-j", "route", "show", str(network.subnet)]


def pinned_congestion_control(routes: Sequence[Mapping[str, Any]]) -> str | None:
    """What the fabric's route is pinned to, from the answer to `route_command`."""
    for route in routes:
        for metric in route.get("metrics", ()):
            if "congestion" in metric:
                return str(metric["congestion"])
    return None


def require_pinned(node: Node, routes: Sequence[Mapping[str, Any]]) -> None:
    """Raises ShapingError unless the node's fabric route is pinned."""
    held = pinned_congestion_control(routes)
    if held != CONGESTION_CONTROL:
        raise ShapingError(
            f"{node.name}: TCP congestion control on the fabric is not {CONGESTION_CONTROL}",
            "it is pinned by route, because others lose throughput under tbf",
            f"load it on this machine: sudo modprobe tcp_{CONGESTION_CONTROL}",
            seen=f"read back: {held}",
        )


def side_device(node: Node, side: Side) -> tuple[list[str], str]:
    """How tc is called for one side of a node, and the device that stands for the side."""
    inside = ["tc", "-n", node.name]
    devices = {
        Side.OUT: (inside, NIC),
        Side.IN: (["tc"], port_of(node)),
        Side.INSIDE: (inside, "lo"),
    }
    return devices[side]


def limit_commands(spec: ClusterSpec, network: FabricNetwork) -> list[list[str]]:
    """The commands that limit fresh nodes."""
    commands = []
    for node in network.nodes(spec):
        for side, wanted in wanted_qdiscs(spec.links_of(node.name)).items():
            commands += qdisc_commands(*side_device(node, side), wanted)
    return commands
