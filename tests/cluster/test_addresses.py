"""A fabric's subnet as people type it: what is right, and what to write instead of what is not."""

from ipaddress import IPv4Network

import pytest

from cluster.addresses import parse_subnet
from cluster.errors import UnitError


@pytest.mark.parametrize("text", ["10.99.0.0/24", "198.18.4.0/22", "10.0.0.0/8", "10.9.0.8/29"])
def test_networks_are_read(text: str) -> None:
    assert parse_subnet(text) == IPv4Network(text)
    assert parse_subnet(f" {text} ") == IPv4Network(text)


@pytest.mark.parametrize(
    ("text", "told", "fix"),
    [
        ("10.99.0.7/24", "names an address in 10.99.0.0/24", "SUBNET=10.99.0.0/24"),
        ("10.99.0.7", "has no prefix", "SUBNET=10.99.0.0/24"),
        ("fd00::/64", "the fabric speaks IPv4", "SUBNET=10.99.0.0/24"),
        ("10.99.0.0/255.255.255.0", "a prefix is a number", "SUBNET=10.99.0.0/24"),
        ("10.99.0.0/33", "a prefix is a number", "SUBNET=10.99.0.0/24"),
        ("10.99.0.0/-1", "a prefix is a number", "SUBNET=10.99.0.0/24"),
        ("10.99.0.0/", "a prefix is a number", "SUBNET=10.99.0.0/24"),
        ("10.99.0.0/" + "9" * 400, "a prefix is a number", "SUBNET=10.99.0.0/24"),
        ("10.99.0.0/\u0662\u0664", "a prefix is a number", "SUBNET=10.99.0.0/24"),
        ("10.99.0/24", "is no IPv4 network", "SUBNET=10.99.0.0/24"),
        ("010.99.0.0/24", "is no IPv4 network", "SUBNET=10.99.0.0/24"),
        ("fabric", "is no IPv4 network", "SUBNET=10.99.0.0/24"),
        ("", "is no IPv4 network", "SUBNET=10.99.0.0/24"),
        ("10.99.0.0/30", "is 4 addresses", "SUBNET=10.99.0.0/24"),
        ("0.0.0.0/0", "addresses", "SUBNET=10.99.0.0/24"),
        ("127.0.0.0/24", "no node can have", "SUBNET=10.99.0.0/24"),
        ("224.0.0.0/24", "no node can have", "SUBNET=10.99.0.0/24"),
        ("169.254.3.0/24", "no node can have", "SUBNET=10.99.0.0/24"),
        ("0.0.0.0/8", "no node can have", "SUBNET=10.99.0.0/24"),
    ],
)
def test_what_is_none_is_refused_with_what_to_write(text: str, told: str, fix: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_subnet(text)
    assert told in caught.value.message
    assert caught.value.message.startswith(f"SUBNET={text[:60]}")
    assert caught.value.rule and caught.value.fix == (fix,)
