"""What scale runs: sizes, each size's cluster, each job's share; and what it refuses to run."""

from typing import Any

import pytest

from cluster.spec import ClusterSpec
from jobs.errors import JobSpecError
from jobs.scale.plan import ONE_RANK, ScalePlan, Size, plan_scale
from jobs.spec import JobSpec, load_job
from tests.jobs.conftest import cluster_spec


def job(name: str = "ok", **changes: Any) -> JobSpec:
    return JobSpec.model_validate({"name": name, **changes})


def planned(*jobs: JobSpec, nodes: str = "1 2 4", scaling: str = "weak", ranks: int = 2) -> Any:
    return plan_scale(jobs or (job(),), cluster_spec(2, ranks), nodes, scaling)


def refusal(*jobs: JobSpec, **options: Any) -> JobSpecError:
    with pytest.raises(JobSpecError) as refused:
        planned(*jobs, **options)
    assert refused.value.rule
    assert refused.value.fix
    return refused.value


def test_one_rank_alone_comes_first_and_once() -> None:
    assert planned(nodes="4 1 2").sizes == (ONE_RANK, Size(1, 2), Size(2, 2), Size(4, 2))
    assert planned(nodes="1 2", ranks=1).sizes == (ONE_RANK, Size(2, 1))
    assert planned(nodes="3").sizes == (ONE_RANK, Size(3, 2))
    assert [str(size) for size in planned().sizes] == ["1x1", "1x2", "2x2", "4x2"]


def test_the_cluster_of_a_size_keeps_links_and_the_overrides_of_its_nodes() -> None:
    spec = ClusterSpec.from_dict(
        {
            "name": "mine",
            "nodes": 4,
            "ranks_per_node": 2,
            "links": {"inter_node": {"rate": "50MB/s", "mtu": 9000}},
            "overrides": {
                "node1": {"inter_node": {"rate": "50mbit"}},
                "node3": {"inter_node": {"rate": "10mbit"}},
            },
        }
    )
    plan = plan_scale([job()], spec, "2 4", "weak")
    assert plan.cluster_at(Size(4, 2)).resolved() == spec.resolved()
    two = plan.cluster_at(Size(2, 2))
    assert (two.name, two.nodes, two.ranks_per_node) == ("2x2", 2, 2)
    assert two.links == spec.links
    assert two.overrides == {"node1": spec.overrides["node1"]}
    alone = plan.cluster_at(ONE_RANK)
    assert (alone.nodes, alone.ranks_per_node, alone.overrides) == (1, 1, {})


def test_weak_scaling_leaves_jobs_as_they_are() -> None:
    hier = load_job("hier")
    plan: ScalePlan = planned(hier, job())
    for size in plan.sizes:
        assert plan.jobs_at(size) == [hier, job()]


def test_strong_scaling_shares_batch_and_paced_time() -> None:
    plan: ScalePlan = planned(load_job("hier"), scaling="strong")
    shares = [plan.jobs_at(size)[0] for size in plan.sizes]
    assert [share.data.batch_size for share in shares] == [8, 4, 2, 1]
    assert [share.pace and share.pace.forward_ms for share in shares] == [60, 30, 15, 7.5]
    assert [share.pace and share.pace.backward_ms for share in shares] == [120, 60, 30, 15]
    assert {share.train for share in shares} == {plan.jobs[0].train}


@pytest.mark.parametrize("nodes", ["", " ", "0", "-1", "1,2", "two", "1 257", "2 2", "1.5", "²"])
def test_what_is_no_list_of_sizes_is_refused(nodes: str) -> None:
    error = refusal(nodes=nodes)
    assert f'NODES="{nodes}"' in error.message
    assert error.fix == ('NODES="1 2 4"',)


def test_a_job_twice_is_refused() -> None:
    assert 'JOBS="ok ok"' in refusal(job(), job()).message


def test_an_unknown_scaling_is_refused() -> None:
    error = refusal(scaling="string")
    assert error.fix == ("SCALING=weak", "SCALING=strong")


def test_what_fits_one_size_only_is_refused() -> None:
    assert "placement [0, 1]" in refusal(job(placement=[0, 1])).message
    error = refusal(job(inject={"phase": "forward", "ms": 5.0, "rank": 1}))
    assert "inject.rank 1" in error.message
    planned(job(inject={"phase": "forward", "ms": 5.0, "rank": 0}, placement="interleaved"))


@pytest.mark.parametrize(
    ("batch", "nodes", "fix"),
    [
        (8, "1 3", ("2 nodes instead of 3", "4 nodes instead of 3", 'SET="data.batch_size=12"')),
        (8, "1 8", ("4 nodes instead of 8", 'SET="data.batch_size=16"')),
        (7, "1", ('SET="data.batch_size=8"',)),
        (8, "3 4", ("2 nodes instead of 3", "4 nodes instead of 3", 'SET="data.batch_size=24"')),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_sizes_that_do(
    batch: int, nodes: str, fix: tuple[str, ...]
) -> None:
    error = refusal(job(data={"batch_size": batch}), nodes=nodes, scaling="strong")
    assert f"a batch of {batch} over" in error.message
    assert error.fix == fix
    planned(job(data={"batch_size": batch}), nodes=nodes, scaling="weak")
