"""The network interfaces of this machine, and which of them leads to another one.

Asks the kernel alone: no name is looked up, no packet is sent.
"""

import fcntl
import socket
import struct
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from pathlib import Path

SIOCGIFADDR = 0x8915
GLOO_NIC = "GLOO_SOCKET_IFNAME"
INET6 = Path("/proc/net/if_inet6")


def nics() -> dict[str, tuple[str, ...]]:
    """The addresses of each interface, by name; IPv4 before IPv6, link-local ones left out."""
    found = {name: _ipv4(name) for _, name in socket.if_nameindex()}
    for line in INET6.read_text().splitlines() if INET6.exists() else ():
        digits, *_, name = line.split()
        address = IPv6Address(bytes.fromhex(digits))
        if name in found and not address.is_link_local:
            found[name] = (*found[name], str(address))
    return found


def nic_towards(address: str) -> tuple[str, str] | None:
    """The interface over which this machine reaches a literal address, and its own address there.

    To an address of its own: the interface that has it. None where there is no route.
    """
    version = ip_address(address).version
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # of a datagram socket: only looks up the route
        except OSError:
            return None
        own = str(probe.getsockname()[0])
    if ip_address(own).is_loopback:
        return "lo", own
    return next(((name, own) for name, owned in nics().items() if own in owned), None)


def own_address(environment: Mapping[str, str], host: str | None) -> str:
    """The literal address at which peers reach this process: of the interface that gloo is told to
    take, else of the one that leads to `host`, where rank 0 is, else what this host's name means.
    """
    owned = nics()
    for name in environment.get(GLOO_NIC, "").split(","):
        if owned.get(name):
            return owned[name][0]
    for each in (host, socket.gethostname()):
        try:
            literal = (
                socket.getaddrinfo(each, None, type=socket.SOCK_DGRAM)[0][4][0] if each else ""
            )
        except OSError:
            continue
        if literal and (found := nic_towards(str(literal))) is not None:
            return found[1]
    return "127.0.0.1"


def _ipv4(name: str) -> tuple[str, ...]:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            answer = fcntl.ioctl(asker.fileno(), SIOCGIFADDR, request)
        except OSError:  # it has none
            return ()
    return (socket.inet_ntoa(answer[20:24]),)
