"""LinkSpec to tc commands, exactly, and what is accepted when the kernel reads them back."""

from typing import Any

import pytest

from cluster.errors import ShapingError
from cluster.shaping import (
    Side,
    burst_bytes,
    held_rate,
    qdisc_commands,
    queue_bytes,
    read_command,
    require_qdiscs,
    wanted_qdiscs,
)
from cluster.spec import IntraSpec, LinkSpec, LinksSpec

TC = ["tc", "-n", "node0"]


def links(intra: str = "unlimited", **inter: Any) -> LinksSpec:
    return LinksSpec(
        inter_node=LinkSpec.model_validate({"rate": "unlimited", **inter}),
        intra_node=IntraSpec.model_validate({"rate": intra}),
    )


def commands(spec: LinksSpec, side: Side, current: list[dict[str, Any]] | None = None) -> list[str]:
    wanted = wanted_qdiscs(spec)[side]
    return [" ".join(command) for command in qdisc_commands(TC, "fab0", wanted, current or [])]


@pytest.mark.parametrize(
    ("rate", "bits", "burst", "limit"),
    [
        ("1mbit", 1_000_000, 131_072, 143_572),
        ("50mbit", 50_000_000, 131_072, 655_360),
        ("200mbit", 200_000_000, 131_072, 1_381_072),
        ("25MB/s", 200_000_000, 131_072, 1_381_072),
        ("1gbit", 1_000_000_000, 250_000, 6_500_000),
        ("10gbit", 10_000_000_000, 2_500_000, 65_000_000),
    ],
)
@pytest.mark.parametrize("side", [Side.OUT, Side.IN])
def test_a_rate_is_a_token_bucket_in_bits(
    rate: str, bits: int, burst: int, limit: int, side: Side
) -> None:
    assert commands(links(rate=rate), side) == [
        "tc -n node0 qdisc replace dev fab0 root handle 1: "
        f"tbf rate {bits}bit burst {burst} limit {limit}"
    ]


def test_bursts_exceed_the_largest_offloaded_packet_and_grow_with_the_rate() -> None:
    assert burst_bytes(1_000_000) > 65536 + 100
    assert burst_bytes(4_000_000_000) == 1_000_000
    assert queue_bytes(8_000_000) == 100_000


def test_the_inside_is_shaped_only_when_asked() -> None:
    assert commands(links(rate="200mbit"), Side.INSIDE) == []
    assert len(commands(links(intra="1gbit"), Side.INSIDE)) == 1


def test_unlimited_sides_hold_nothing() -> None:
    assert all(not wanted for wanted in wanted_qdiscs(links()).values())


def test_delay_and_loss_are_netem_above_the_token_bucket() -> None:
    spec = links(rate="200mbit", delay="10ms", jitter="500us", loss="0.1%")
    assert commands(spec, Side.OUT) == [
        "tc -n node0 qdisc replace dev fab0 root handle 1: "
        "netem limit 1000 delay 10ms 500us loss 0.1%",
        "tc -n node0 qdisc replace dev fab0 parent 1:1 handle 10: "
        "tbf rate 200000000bit burst 131072 limit 1381072",
    ]
    assert len(commands(spec, Side.IN)) == 1


def test_netem_holds_twice_what_is_under_way() -> None:
    """The default of 1,000 packets drops as soon as delay x rate is more."""
    (netem, _) = commands(links(rate="1gbit", delay="100ms"), Side.OUT)
    assert "limit 16667 " in netem
    (netem,) = commands(links(delay="100ms"), Side.OUT)
    assert "limit 100000 " in netem


TBF = {
    "kind": "tbf",
    "handle": "1:",
    "root": True,
    "options": {"rate": 25_000_000, "burst": 131_050, "lat": 50_000, "limit": 1_381_072},
}
FREE = {"kind": "noqueue", "handle": "0:", "root": True, "options": {}}


def test_a_change_of_rate_is_made_in_place() -> None:
    assert commands(links(rate="50mbit"), Side.OUT, [TBF])[0].startswith(
        "tc -n node0 qdisc replace dev fab0 root handle 1: tbf"
    )


def test_a_change_of_kind_removes_what_was_there() -> None:
    removal = "tc -n node0 qdisc del dev fab0 root"
    assert commands(links(), Side.OUT, [TBF]) == [removal]
    assert commands(links(rate="1gbit", delay="1ms"), Side.OUT, [TBF])[0] == removal
    assert commands(links(), Side.OUT, [FREE]) == []


def test_what_holds_already_is_not_touched() -> None:
    assert commands(links(rate="200mbit"), Side.OUT, [TBF]) == []
    assert commands(links(), Side.OUT, []) == []
    other = {**TBF, "options": {**TBF["options"], "limit": 1000}}  # type: ignore[dict-item]
    assert len(commands(links(rate="200mbit"), Side.OUT, [other])) == 1


NETEM = {"kind": "netem", "handle": "1:", "root": True, "options": {"limit": 1000}}
BELOW = {**TBF, "handle": "10:", "parent": "1:1", "root": False}


def test_a_delay_stays_while_the_rate_below_it_comes_and_goes() -> None:
    """Only the limit is taken away: the packets under way keep their delay."""
    changed = commands(links(rate="50mbit", delay="10ms"), Side.OUT, [NETEM, BELOW])
    assert [command.partition(" handle ")[0] for command in changed] == [
        "tc -n node0 qdisc replace dev fab0 root",
        "tc -n node0 qdisc replace dev fab0 parent 1:1",
    ]
    freed = commands(links(delay="10ms"), Side.OUT, [NETEM, BELOW])
    assert freed[0] == "tc -n node0 qdisc del dev fab0 parent 1:1"
    assert freed[1].startswith("tc -n node0 qdisc replace dev fab0 root handle 1: netem")
    assert len(freed) == 2
    limited = commands(links(rate="50mbit", delay="10ms"), Side.OUT, [NETEM])
    assert not any(" del " in command for command in limited)


@pytest.mark.parametrize(
    ("held", "rate"),
    [([TBF], 200_000_000), ([NETEM, BELOW], 200_000_000), ([FREE], None), ([], None)],
)
def test_the_rate_that_is_held(held: list[dict[str, Any]], rate: int | None) -> None:
    assert held_rate(held) == rate


def test_reads_back_raw() -> None:
    assert read_command(TC, "lo") == ["tc", "-n", "node0", "-j", "-r", "qdisc", "show", "dev", "lo"]


def test_accepts_what_tc_rounds() -> None:
    require_qdiscs("node0 out", wanted_qdiscs(links(rate="200mbit"))[Side.OUT], [TBF])
    require_qdiscs("node0 inside", (), [FREE])


@pytest.mark.parametrize(
    "held",
    [
        [],
        [FREE],
        [{**TBF, "handle": "8001:"}],
        [{**TBF, "kind": "htb"}],
        [{**TBF, "options": {**TBF["options"], "rate": 24_999_999}}],  # type: ignore[dict-item]
        [{**TBF, "options": {**TBF["options"], "burst": 65_536}}],  # type: ignore[dict-item]
        [{**TBF, "options": {**TBF["options"], "limit": 1000}}],  # type: ignore[dict-item]
        [{**TBF, "options": {"rate": 25_000_000, "burst": 131_050}}],
        [{**TBF, "options": {}}],
    ],
)
def test_refuses_anything_else(held: list[dict[str, Any]]) -> None:
    with pytest.raises(ShapingError) as caught:
        require_qdiscs("node0 out", wanted_qdiscs(links(rate="200mbit"))[Side.OUT], held)
    assert "node0 out" in caught.value.message
    assert caught.value.seen is not None and "tbf rate 200000000bit" in caught.value.seen


def test_refuses_a_limit_that_was_not_asked_for() -> None:
    with pytest.raises(ShapingError):
        require_qdiscs("node0 inside", (), [TBF])


def test_netem_is_read_back_too() -> None:
    wanted = wanted_qdiscs(links(delay="10ms", loss="0.1%"))[Side.OUT]
    options = {
        "limit": 100_000,
        "delay": {"delay": 0.01, "jitter": 0, "correlation": 0},
        "loss-random": {"loss": 0.001, "correlation": 0},
    }
    held = {"kind": "netem", "handle": "1:", "root": True, "options": options}
    require_qdiscs("node0 out", wanted, [held])
    for key in options:
        lacking = {name: value for name, value in options.items() if name != key}
        with pytest.raises(ShapingError, match="node0 out"):
            require_qdiscs("node0 out", wanted, [{**held, "options": lacking}])
