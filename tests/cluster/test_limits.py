"""What a cluster file limits the programs of its nodes to."""

from pathlib import Path

import pytest

from cluster.errors import SpecError
from cluster.spec import ClusterSpec, load_cluster
from tests.cluster.test_spec import FULL, written

LIMITED = FULL + "limits: {cpus: 1.5, memory: 2GB}\n"


def test_limits_are_of_every_node_and_make_another_lab(tmp_path: Path) -> None:
    spec = load_cluster(written(tmp_path, LIMITED))
    assert (spec.limits.cpus, spec.limits.memory_bytes) == (1.5, 2_000_000_000)
    assert spec.to_dict()["limits"] == {"cpus": 1.5, "memory": "2GB"}
    assert ClusterSpec.from_dict(spec.to_dict()).resolved() == spec.resolved()
    free = load_cluster(written(tmp_path, FULL))
    assert "limits" not in free.to_dict() and free.limits.describe() == ""
    assert free.resolved() != spec.resolved()
    assert "1.5 cpus and 2GB a node" in spec.describe()
    assert spec.with_rates("all", {"inter_node": "1gbit"}).limits == spec.limits


def test_one_limit_alone(tmp_path: Path) -> None:
    spec = load_cluster(written(tmp_path, FULL + "limits: {cpus: 2}\n"))
    assert (spec.limits.describe(), spec.limits.memory_bytes) == ("2 cpus", None)
    spec = load_cluster(written(tmp_path, FULL + "limits: {memory: 512MiB}\n"))
    assert (spec.limits.describe(), spec.limits.cpus) == ("512MiB", None)


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ("{cpus: 0}", "limits.cpus"),
        ("{cpus: '2'}", "limits.cpus"),
        ("{memory: 2g}", "limits.memory"),
        ("{memory: 2000000000}", "limits.memory"),
        ("{ram: 2GB}", "limits.ram"),
    ],
)
def test_limits_that_cannot_be_meant(tmp_path: Path, limits: str, key: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_cluster(written(tmp_path, FULL + f"limits: {limits}\n"))
    (fault,) = caught.value.faults
    assert (fault.key, fault.where.rpartition(":")[2]) == (key, "11")
    assert fault.fix


def test_a_node_has_no_limits_of_its_own(tmp_path: Path) -> None:
    text = FULL.replace("rate: 50mbit, delay: 20ms}}", "rate: 50mbit}, limits: {cpus: 1}}")
    with pytest.raises(SpecError) as caught:
        load_cluster(written(tmp_path, text))
    (fault,) = caught.value.faults
    assert fault.key == "overrides.node1.limits"
    assert fault.message == "a node has no limits of its own"
    assert fault.rule is not None and "one service" in fault.rule
