"""The NIC that gradients cross on this machine: named, or by its subnet, or that towards rank 0."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from ddp.nic import GLOO_NIC, nic_towards, nics
from jobs.errors import LaunchError

RULE = "gradients cross one NIC of this machine, by its exact name or the subnet of its address"

Nics = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class FabricNic:
    """A NIC, its address on the fabric, and why it is this one."""

    interface: str
    address: str
    why: str

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.address).is_loopback


def fabric_nic(asked: str | None, environment: Mapping[str, str], master_addr: str) -> FabricNic:
    """What --fabric says, else GLOO_SOCKET_IFNAME, else the NIC over which rank 0 is reached.

    Raises LaunchError with the NICs that there are.
    """
    found = nics()
    if asked is not None:
        return choose(asked, "--fabric", found)
    if environment.get(GLOO_NIC):
        return choose(environment[GLOO_NIC], GLOO_NIC, found)
    address = _resolved(master_addr)
    towards = nic_towards(address)
    if towards is None:
        raise _refused(f"no route to {address}, where rank 0 is", found)
    return FabricNic(*towards, "it leads to rank 0")


def choose(asked: str, variable: str, found: Nics) -> FabricNic:
    """The NIC that was asked for, by name or subnet; its first address, or that in the subnet."""
    if "/" in asked:
        try:
            network = ip_network(asked, strict=False)
        except ValueError as exc:
            raise LaunchError(
                f"{variable} {asked}: {exc}", rule=RULE, fix=f"{variable} 10.0.0.0/24, say"
            ) from exc
        fitting = [
            FabricNic(name, address, f"{variable} {asked}")
            for name, addresses in found.items()
            for address in addresses
            if ip_address(address) in network
        ]
        if len(fitting) != 1:
            many = "no NIC has" if not fitting else f"{len(fitting)} NICs have"
            raise _refused(f"{variable} {asked}: {many} an address in it", found)
        return fitting[0]
    if not found.get(asked):
        why = "a NIC without an address" if asked in found else "not on this machine"
        raise _refused(f"{variable} {asked}: {why}", found)
    return FabricNic(asked, found[asked][0], f"{variable} {asked}")


def _resolved(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError as exc:
        raise LaunchError(
            f"{host}: no such host ({exc.strerror})",
            rule="all ranks meet at rank 0's address on the fabric",
            fix="give an address instead of a name: MASTER_ADDR, --master-addr or --local-addr",
        ) from exc


def _refused(message: str, found: Nics) -> LaunchError:
    return LaunchError(message, rule=RULE, fix=f"choose one of {listed(found)}")


def listed(found: Nics) -> str:
    """`eth0 10.0.0.1, lo 127.0.0.1`."""
    with_address = ((name, addresses[0]) for name, addresses in found.items() if addresses)
    return ", ".join(f"{name} {address}" for name, address in with_address) or "none"
