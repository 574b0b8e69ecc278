"""ClusterSpec: the catalog, files, overrides, and what is refused."""

import os
from pathlib import Path

import pytest

from cluster.errors import ClusterError, SpecError, UnitError
from cluster.spec import ClusterSpec, LinkSpec, catalog_names, load_cluster, payload_ceiling

FULL = """
name: mixed
nodes: 3
ranks_per_node: 2
links:
  inter_node: {rate: 200mbit, mtu: 1500, delay: 10ms, jitter: 1ms, loss: 0.1%}
  intra_node: {rate: 1gbit}
overrides:
  node1: {inter_node: {rate: 50mbit, delay: 20ms}}
  node2: {intra_node: {rate: unlimited}}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "lab.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "nodes", "ranks"),
    [("2x2", 2, 2), ("2x4", 2, 4), ("4x2", 4, 2), ("4x1", 4, 1), ("1x2", 1, 2), ("1x4", 1, 4)],
)
def test_the_catalog_says_what_its_names_say(name: str, nodes: int, ranks: int) -> None:
    spec = load_cluster(name)
    assert (spec.name, spec.nodes, spec.ranks_per_node) == (name, nodes, ranks)
    assert spec.links.inter_node.rate_bits_per_s == 200_000_000
    assert spec.links.inter_node.mtu == 1500
    assert spec.links.intra_node.rate_bits_per_s is None


def test_catalog_is_listed() -> None:
    assert catalog_names() == ("1x2", "1x4", "2x2", "2x4", "4x1", "4x2", "slow-node")


def test_reads_a_full_file_and_applies_overrides(tmp_path: Path) -> None:
    spec = load_cluster(written(tmp_path, FULL))
    general = spec.links_of("node0")
    assert general.inter_node.delay_s == 0.01
    assert general.inter_node.jitter_s == 0.001
    assert general.inter_node.loss_ratio == 0.001
    assert general.intra_node.rate_bits_per_s == 1_000_000_000
    own = spec.links_of("node1")
    assert (own.inter_node.rate_bits_per_s, own.inter_node.delay_s) == (50_000_000, 0.02)
    assert (own.inter_node.jitter_s, own.inter_node.loss_ratio) == (0.001, 0.001)
    assert own.intra_node.rate_bits_per_s == 1_000_000_000
    assert spec.links_of("node2").intra_node.rate_bits_per_s is None


def test_survives_being_kept(tmp_path: Path) -> None:
    spec = load_cluster(written(tmp_path, FULL))
    again = ClusterSpec.from_dict(spec.to_dict())
    assert again.resolved() == spec.resolved()
    assert again.to_dict() == spec.to_dict()
    assert spec.to_dict()["links"]["inter_node"]["rate"] == "200mbit"


def test_rate_replaces_the_general_rate_only(tmp_path: Path) -> None:
    spec = load_cluster(written(tmp_path, FULL), rate_override="400mbit")
    assert spec.links_of("node0").inter_node.rate_bits_per_s == 400_000_000
    assert spec.links_of("node1").inter_node.rate_bits_per_s == 50_000_000
    assert load_cluster("2x2", "unlimited").links.inter_node.rate_bits_per_s is None


@pytest.mark.parametrize("rate", ["1gbps", "200Mb", "100", "0", "-1mbit", "100mibit", "1e9", ""])
def test_refuses_ambiguous_rates_as_option(rate: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_cluster("2x2", rate_override=rate)
    (fault,) = caught.value.faults
    assert fault.where == f"RATE={rate}"
    assert fault.rule and fault.fix


@pytest.mark.parametrize(
    ("old", "new", "line", "key"),
    [
        ("nodes: 3", "nodes: 1e6", 3, "nodes"),
        ("nodes: 3", "nodes: 0", 3, "nodes"),
        ("nodes: 3", "nodes: -1", 3, "nodes"),
        ("nodes: 3", "nodes: 100000", 3, "nodes"),
        ("nodes: 3", "nodes: 12:30", 3, "nodes"),
        ("nodes: 3", "nodes: 010", 3, "nodes"),
        ("ranks_per_node: 2", "ranks_per_node: on", 4, "ranks_per_node"),
        ("name: mixed", "name: 2026-11-30", 2, "name"),
        ("name: mixed", "name: 'a b'", 2, "name"),
        ("rate: 200mbit", "rate: 200", 6, "links.inter_node.rate"),
        ("rate: 200mbit", "rate: 200Mb", 6, "links.inter_node.rate"),
        ("rate: 200mbit", "rate: 1e9", 6, "links.inter_node.rate"),
        ("rate: 200mbit", "rate: null", 6, "links.inter_node.rate"),
        ("mtu: 1500", "mtu: 100", 6, "links.inter_node.mtu"),
        ("mtu: 1500", "mtu: 1.5", 6, "links.inter_node.mtu"),
        ("delay: 10ms", "delay: 10", 6, "links.inter_node.delay"),
        ("loss: 0.1%", "loss: 0.001", 6, "links.inter_node.loss"),
        ("rate: 1gbit", "rate: 1gbps", 7, "links.intra_node.rate"),
        ("rate: 50mbit", "rate: fast", 9, "overrides.node1.inter_node.rate"),
        ("intra_node: {rate: u", "intra_node: {speed: 1, rate: u", 10, ""),
    ],
)
def test_refuses_bad_values_with_line_and_key(
    tmp_path: Path, old: str, new: str, line: int, key: str
) -> None:
    path = written(tmp_path, FULL.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        load_cluster(path)
    (fault,) = caught.value.faults
    assert fault.where == f"{path}:{line}"
    assert fault.key == (key or "overrides.node2.intra_node.speed")
    assert fault.rule or fault.fix


@pytest.mark.parametrize(
    ("extra", "hint"),
    [
        ("rate: 1gbit\n", "links.inter_node.rate or links.intra_node.rate"),
        ("bandwith: 1gbit\n", "known: limits, links, name, nodes, overrides, ranks_per_node"),
        ("ranks-per-node: 2\n", 'did you mean "ranks_per_node"?'),
        ("inter_node: {rate: 1gbit}\n", "links.inter_node"),
    ],
)
def test_unknown_keys_and_right_keys_at_the_wrong_level(
    tmp_path: Path, extra: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_cluster(written(tmp_path, FULL + extra))
    (fault,) = caught.value.faults
    assert fault.message == "unknown key"
    assert fault.fix is not None and hint in fault.fix


def test_an_override_must_name_a_node_exactly(tmp_path: Path) -> None:
    for name in ("node3", "node", "node10", "Node1"):
        with pytest.raises(SpecError, match=f"there is no node '{name}'") as caught:
            load_cluster(written(tmp_path, FULL.replace("node1:", f"{name}:")))
        (fault,) = caught.value.faults
        assert (fault.where[-2:], fault.key) == (":9", f"overrides.{name}")


def test_jitter_needs_a_delay_also_after_overrides(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="jitter 1ms is more than the delay 0us"):
        load_cluster(written(tmp_path, FULL.replace("delay: 10ms, ", "")))
    with pytest.raises(SpecError, match="jitter 1ms is more than the delay 500us"):
        load_cluster(written(tmp_path, FULL.replace("delay: 20ms", "delay: 500us")))


@pytest.mark.parametrize(
    ("name", "hint"), [("2x3", "2x2"), ("ring", "known: 1x2, 1x4, 2x2, 2x4, 4x1, 4x2")]
)
def test_unknown_names_list_the_catalog(name: str, hint: str) -> None:
    with pytest.raises(ClusterError) as caught:
        load_cluster(name)
    assert repr(name) in caught.value.message
    assert hint in caught.value.fix[0]


def test_a_name_of_bad_letters_is_refused_with_a_good_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_cluster(written(tmp_path, FULL.replace("name: ", "name: ../My ", 1)))
    assert "[A-Za-z0-9]" in (caught.value.rule or "")
    assert caught.value.fix[0].startswith("write my-")


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for name, seen in (("pipe.yaml", "no ordinary file"), ("", "a folder")):
        with pytest.raises(SpecError, match=seen) as caught:
            load_cluster(f"{tmp_path}/{name}")
        assert caught.value.rule and caught.value.fix


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SpecError, match=r"nowhere/lab\.yaml: there is no such file"):
        load_cluster("nowhere/lab.yaml")


def test_ceilings() -> None:
    """191.3 Mbit/s of payload at 200 Mbit/s with packets of 1,500 bytes."""
    ceiling = payload_ceiling(200_000_000, 1500)
    assert ceiling is not None and round(ceiling * 8 / 1e6, 1) == 191.3
    assert payload_ceiling(None, 1500) is None


def test_what_needs_netem() -> None:
    assert not LinkSpec.model_validate({"rate": "1gbit"}).needs_netem
    assert LinkSpec.model_validate({"rate": "1gbit", "delay": "1ms"}).needs_netem
    assert LinkSpec.model_validate({"rate": "1gbit", "loss": "1%"}).needs_netem


def test_describes_itself(tmp_path: Path) -> None:
    assert load_cluster("2x2").describe() == "2x2: 2 nodes x 2 ranks, 200mbit"
    text = load_cluster(written(tmp_path, FULL)).describe()
    for part in ("3 nodes x 2 ranks", "delay 10ms", "loss 0.1%", "node1 50mbit", "1gbit"):
        assert part in text
    assert "node2 inside unlimited" in text
    delayed = ClusterSpec.from_dict(
        {**load_cluster("2x2").to_dict(), "overrides": {"node0": {"inter_node": {"mtu": 9000}}}}
    )
    assert delayed.describe() == "2x2: 2 nodes x 2 ranks, 200mbit, node0 differs"


def rates_of(spec: ClusterSpec) -> list[tuple[int | None, int | None]]:
    """Each node's rate and inside, in Mbit/s."""
    links = [spec.links_of(name) for name in spec.node_names]
    rates = [(it.inter_node.rate_bits_per_s, it.intra_node.rate_bits_per_s) for it in links]
    return [
        (rate and rate // 10**6, inside and inside // 10**6)  # None stays None
        for rate, inside in rates
    ]


def test_the_catalog_has_a_cluster_with_a_slow_node() -> None:
    slow = load_cluster("slow-node")
    assert rates_of(slow) == [(200, None), (50, None)]
    assert slow.describe() == "slow-node: 2 nodes x 2 ranks, 200mbit, node1 50mbit"
    assert rates_of(load_cluster("slow-node", "100mbit")) == [(100, None), (50, None)]


BOTH = {"inter_node": "10mbit", "intra_node": "1gbit"}


@pytest.mark.parametrize(
    ("cluster", "node", "rates", "expected"),
    [
        ("2x2", "all", {"inter_node": "50mbit"}, [(50, None), (50, None)]),
        ("2x2", "node1", {"inter_node": "6.25MB/s"}, [(200, None), (50, None)]),
        ("2x2", "node0", {"intra_node": "1gbit"}, [(200, 1000), (200, None)]),
        ("2x2", "all", BOTH, [(10, 1000), (10, 1000)]),
        ("2x2", "node1", {"inter_node": "unlimited"}, [(200, None), (None, None)]),
        ("slow-node", "all", {"inter_node": "30mbit"}, [(30, None), (30, None)]),
        ("slow-node", "all", {"intra_node": "1gbit"}, [(200, 1000), (50, 1000)]),
        ("slow-node", "node1", {"inter_node": "200mbit"}, [(200, None), (200, None)]),
        ("slow-node", "node0", {"inter_node": "50mbit"}, [(50, None), (50, None)]),
        ("4x1", "node2", {"inter_node": "1mbit"}, [(200, None)] * 2 + [(1, None), (200, None)]),
    ],
)
def test_other_rates_for_one_node_or_all(
    cluster: str, node: str, rates: dict[str, str], expected: list[tuple[int | None, int | None]]
) -> None:
    before = load_cluster(cluster)
    plain = before.to_dict()
    after = before.with_rates(node, rates)
    assert rates_of(after) == expected
    assert before.to_dict() == plain
    assert ClusterSpec.from_dict(after.to_dict()) == after
    assert {after.links_of(name).inter_node.mtu for name in after.node_names} == {1500}


def test_a_node_that_is_set_to_the_usual_rate_is_no_exception_any_more() -> None:
    again = load_cluster("slow-node").with_rates("node1", {"inter_node": "0.2gbit"})
    assert again.overrides == {}
    assert again.describe() == "slow-node: 2 nodes x 2 ranks, 200mbit"
    kept = load_cluster("2x2").with_rates("node1", BOTH).with_rates("all", {"inter_node": "5mbit"})
    assert kept.to_dict()["overrides"] == {"node1": {"intra_node": {"rate": "1gbit"}}}


@pytest.mark.parametrize("node", ["node2", "nod1", "", "node01"])
def test_rates_for_a_node_that_is_not_there_are_refused(node: str) -> None:
    with pytest.raises(UnitError, match="there is no node") as caught:
        load_cluster("2x2").with_rates(node, {"inter_node": "50mbit"})
    assert caught.value.rule == "this cluster has node0 to node1"


def test_rates_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(UnitError, match="could be bits or bytes"):
        load_cluster("2x2").with_rates("all", {"inter_node": "50mbps"})
