"""Text to the addresses of a fabric: the only place where `10.99.0.0/24` is read."""

from ipaddress import AddressValueError, IPv4Address, IPv4Network

from cluster.errors import UnitError

WIDEST, NARROWEST = 8, 29
"""Prefix lengths: fewer addresses have no room for two nodes, more are not one network."""
LONGEST_TEXT = 60
_RULE = "a subnet is an IPv4 network with its prefix, for the fabric alone"
_FIX = "SUBNET=10.99.0.0/24"


def parse_subnet(text: str) -> IPv4Network:
    """The network of a text such as `10.99.0.0/24`. Raises UnitError."""
    seen = f"SUBNET={text[:LONGEST_TEXT]}"
    address_text, slash, prefix = text.strip().partition("/")
    try:
        address = IPv4Address(address_text)
    except AddressValueError as exc:
        what = "is no IPv4 network: the fabric speaks IPv4" if ":" in text else "is no IPv4 network"
        raise UnitError(f"{seen} {what}", _RULE, _FIX) from exc
    if not slash:
        near = IPv4Network(f"{address}/24", strict=False)
        raise UnitError(f"{seen} has no prefix", _RULE, f"SUBNET={near}")
    if not prefix.isascii() or not prefix.isdecimal() or not 0 <= int(prefix[:4]) <= 32:
        raise UnitError(f"{seen}: a prefix is a number of bits", _RULE, _FIX)
    network = IPv4Network(f"{address}/{int(prefix[:4])}", strict=False)
    _require_usable(seen, address, network)
    return network


def _require_usable(seen: str, address: IPv4Address, network: IPv4Network) -> None:
    if not WIDEST <= network.prefixlen <= NARROWEST:
        rule = f"the prefix of a fabric is /{WIDEST} to /{NARROWEST}"
        raise UnitError(f"{seen} is {network.num_addresses:,} addresses", rule, _FIX)
    if address != network.network_address:
        raise UnitError(
            f"{seen} names an address in {network}, not the network", _RULE, f"SUBNET={network}"
        )
    never = (network.is_loopback, network.is_multicast, network.is_link_local, network.is_reserved)
    if any(never) or network.overlaps(IPv4Network("0.0.0.0/8")):
        raise UnitError(
            f"{seen} holds addresses that no node can have",
            "loopback, link-local, multicast and reserved addresses are spoken for",
            _FIX,
        )
