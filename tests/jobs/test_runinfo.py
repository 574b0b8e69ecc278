"""What run.json and screens say of the cores that ranks share."""

import pytest

import jobs.runinfo
from cluster.spec import ClusterSpec, load_cluster
from jobs.report.run_header import conditions
from jobs.runinfo import cores_for, shared_cores
from tests.jobs.samples import run_json


@pytest.mark.parametrize(
    ("cores", "cpus", "nodes", "shared"),
    [(8, None, 2, 8), (8, 1.5, 2, 3), (8, 0.5, 4, 2), (2, 4, 2, 2), (8, 0.1, 2, 1)],
)
def test_nodes_that_are_limited_share_no_more(
    cores: int, cpus: float | None, nodes: int, shared: int
) -> None:
    assert shared_cores(cores, cpus, nodes) == shared


def test_the_limits_of_a_lab_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.runinfo, "num_cores", lambda: 8)
    spec = load_cluster("4x2")
    assert cores_for(spec) == 8
    limited = ClusterSpec.from_dict({**spec.to_dict(), "limits": {"cpus": 0.5}})
    assert cores_for(limited) == 2


def test_ranks_that_outnumber_what_nodes_are_limited_to_are_told() -> None:
    assert "outnumber" not in " ".join(conditions(run_json(cores=4)))
    told = " ".join(conditions(run_json(cores=3)))
    assert "Ranks outnumber cores: 4 ranks on 3 cores." in told
