"""What ranks that came together must be, and where they are."""

from dataclasses import replace
from typing import Any

import pytest

from jobs.errors import JobSpecError, LaunchError
from jobs.spec import load_job
from jobs.torchrun.facts import RankFacts, layout, placed
from tests.jobs.torchrun.samples import VERSIONS, facts, four


def test_ranks_are_where_whoever_started_them_put_them() -> None:
    found = layout(four())
    assert found.node_of == (0, 0, 1, 1) and found.local_ranks == (0, 1, 0, 1)
    assert [(n.name, n.index, n.address, n.interface) for n in found.nodes] == [
        ("node0", 0, "10.0.0.1", "eth1"),
        ("node1", 1, "10.0.0.2", "eth1"),
    ]
    cyclic = [facts(rank, rank % 2, rank // 2) for rank in range(4)]
    assert layout(cyclic).node_of == (0, 1, 0, 1)
    assert layout(cyclic).local_ranks == (0, 0, 1, 1)
    assert layout(cyclic).ranks_on(1) == [1, 3]


def test_where_nobody_says_the_kernel_and_its_network_do() -> None:
    places = ("b", "a", "b", "c")
    unsaid = dict.fromkeys(("node", "nnodes", "local_rank", "local_world_size"))
    ranks = [replace(facts(rank, 0, 0), place=p, **unsaid) for rank, p in enumerate(places)]
    found = layout(ranks)
    assert found.node_of == (0, 1, 0, 2) and found.local_ranks == (0, 0, 1, 0)
    assert found.nproc_per_node == 2


def changed(rank: int, **changes: Any) -> list[RankFacts]:
    ranks = four()
    ranks[rank] = replace(ranks[rank], **changes)
    return ranks


JOB = four()[0].job


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (changed(3, problem="no such text"), r"rank 3 \(host1\): no such text"),
        (changed(2, node=None), "rank 2 not told which node"),
        (four(nnodes=3), r"nodes \[0, 1\] of 3; every node has a rank"),
        (changed(1, node=1), r"node 0 has rank 0, of \['2'\] announced"),
        (changed(1, local_rank=0), r"node 0 has ranks 0, 1, with local ranks \[0, 0\]"),
        (
            changed(2, job={**JOB, "train": {**JOB["train"], "steps": 7}}),
            r"rank 2 \(host1\) was given another job than rank 0: train\.steps is 7",
        ),
        (
            changed(3, versions={**VERSIONS, "torch": "2.12.0"}),
            r"torch 2\.12\.0 on host1 \(rank 3\), 2\.13\.0 on host0",
        ),
        (
            changed(3, versions={**VERSIONS, "python": "3.11.8"}),
            r"python 3\.11\.8 on host1 \(rank 3\), 3\.11\.7 on host0",
        ),
        (
            changed(2, interface="lo", address="127.0.0.1", loopback=True),
            r"node 1 \(host1\) would use lo 127\.0\.0\.1; .*--fabric with one of eth1 10\.0\.0\.2",
        ),
    ],
)
def test_ranks_that_cannot_train_together_are_refused(ranks: list[RankFacts], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        layout(ranks)


def test_kernels_may_differ_and_one_machine_may_use_loopback() -> None:
    layout(changed(3, versions={**VERSIONS, "kernel": "6.2"}))
    here = four(place="boot=boot-0 network=1", loopback=True, interface="lo", address="127.0.0.1")
    assert layout(here).node_of == (0, 0, 1, 1)


def test_all_ranks_compute_with_the_same_number_of_threads() -> None:
    assert layout(four()).threads == 1
    unsaid = four(threads_asked=None)
    assert layout(unsaid).threads == 4, "8 cores, two ranks"
    small = replace(unsaid[3], machine={**unsaid[3].machine, "cores": 2})
    assert layout([*unsaid[:3], small]).threads == 1
    on_one_machine = [replace(it, machine=unsaid[0].machine) for it in unsaid]
    assert layout(on_one_machine).threads == 2
    assert layout([replace(unsaid[0], threads_asked=3), *unsaid[1:]]).threads == 3


def test_the_job_says_where_ranks_are() -> None:
    job = load_job("hier")
    assert placed(job, (0, 0, 1, 1), 2) is job
    assert placed(job, (0, 1, 0, 1), 2).placement == [0, 1, 0, 1]
    assert placed(job, (0, 0, 1), 2).placement == [0, 0, 1]
    asked = load_job("hier", ["placement=interleaved"])
    assert placed(asked, (0, 1, 0, 1), 2) is asked
    with pytest.raises(JobSpecError, match=r"interleaved, but ranks are on nodes \[0, 0, 1, 1\]"):
        placed(asked, (0, 0, 1, 1), 2)
