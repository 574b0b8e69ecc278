"""Which NIC gradients cross: as asked, or towards rank 0; others are refused with a list."""

import pytest

from jobs.errors import LaunchError
from jobs.torchrun.nic import FabricNic, choose, fabric_nic, listed

NICS = {
    "lo": ("127.0.0.1",),
    "eth0": ("192.168.7.2",),
    "eth1": ("10.0.0.3", "fd00::3"),
    "ib0": ("10.0.1.3",),
    "tun0": (),
}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("eth1", ("eth1", "10.0.0.3")),
        ("10.0.1.0/24", ("ib0", "10.0.1.3")),
        ("fd00::/64", ("eth1", "fd00::3")),
    ],
)
def test_by_name_or_subnet(asked: str, found: tuple[str, str]) -> None:
    nic = choose(asked, "--fabric", NICS)
    assert (nic.interface, nic.address) == found
    assert nic.why == f"--fabric {asked}"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("nope0", "nope0: not on this machine"),
        ("^lo", r"\^lo: not on this machine"),
        ("eth", "eth: not on this machine"),
        ("eth0,eth1", "not on this machine"),
        ("tun0", "tun0: a NIC without an address"),
        ("10.9.0.0/16", "no NIC has an address in it"),
        ("10.0.0.0/16", "2 NICs have an address in it"),
        ("10.0.0/24/3", "10.0.0/24/3"),
    ],
)
def test_what_is_not_there_is_refused(asked: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words) as refused:
        choose(asked, "--fabric", NICS)
    if "/24/3" not in asked:
        assert f"choose one of {listed(NICS)}" in str(refused.value)
    assert "exact name" in str(refused.value)


def test_what_was_typed_comes_before_the_environment_and_that_before_the_route() -> None:
    environment = {"GLOO_SOCKET_IFNAME": "nope0"}
    assert fabric_nic("127.0.0.0/8", environment, "127.0.0.1").why == "--fabric 127.0.0.0/8"
    with pytest.raises(LaunchError, match="GLOO_SOCKET_IFNAME nope0"):
        fabric_nic(None, environment, "127.0.0.1")
    assert fabric_nic(None, {}, "127.0.0.1") == FabricNic("lo", "127.0.0.1", "it leads to rank 0")
    with pytest.raises(LaunchError, match=r"no-such-host\.invalid: no such host"):
        fabric_nic(None, {}, "no-such-host.invalid")
