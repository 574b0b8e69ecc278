"""What each rank is told, from the cluster and the job alone."""

from typing import Any

from cluster.nodes import Node
from jobs.rankplan import (
    TRAINING,
    RankPlan,
    Threads,
    choose_threads,
    measured_links,
    preloads,
)
from jobs.spec import DdpSpec, JobSpec


def test_threads_share_the_cores_unless_the_user_says() -> None:
    assert choose_threads({}, 8, 4) == Threads(2, set_by_user=False)
    assert choose_threads({}, 2, 4) == Threads(1, set_by_user=False)
    assert choose_threads({"OMP_NUM_THREADS": "3"}, 2, 4) == Threads(3, set_by_user=True)


def test_links_are_the_best_pair_of_each_node_both_ways() -> None:
    def link(src: str, dst: str, mode: str, rate: float) -> dict[str, Any]:
        return {"src": src, "dst": dst, "mode": mode, "measured_bytes_per_second": rate}

    names = [f"node{k}" for k in range(3)]
    probe = {
        "links": [
            link("node0", "node1", "one_way", 24.0),
            link("node0", "node1", "both_ways", 23.0),
            link("node1", "node0", "both_ways", 22.0),
            link("node2", "node0", "one_way", 6.0),
            link("node0", "node0", "intra_node", 700.0),
        ]
    }
    assert measured_links(None, names) is None
    # a lab lets 2 ms through at once, at least 128 KiB; of others nobody knows
    limits = {"node0": 200_000_000, "node1": 1_000_000_000, "node2": None}
    assert [tuple(node.values()) for node in measured_links(probe, names, limits) or ()] == [
        (23.0, 22.0, 700.0, 131_072),
        (22.0, 23.0, None, 250_000),
        (6.0, None, None, None),
    ]
    assert [node["burst_bytes"] for node in measured_links(probe, names) or ()] == [None] * 3


def test_the_rendezvous_is_where_rank_0_is() -> None:
    nodes = (Node("node0", 0, "198.18.0.10", "e"), Node("node1", 1, "198.18.0.11", "e"))
    plan = RankPlan(JobSpec(name="ok"), (1, 0), nodes, 1, Threads(1, False), None)
    ready = {0: {"port": 5000, "listen_fd": 3}, 1: {"port": 6000, "listen_fd": 4}}
    orders = plan.start_orders("m:f", "/runs/x", "x", ready)
    (first,), (second,) = orders[1]["ranks"], orders[0]["ranks"]
    assert (first["rank"], first["argument"]["listen_fd"]) == (0, 4)
    assert (second["rank"], second["argument"]["listen_fd"]) == (1, None)
    assert first["env"]["MASTER_ADDR"] == second["env"]["MASTER_ADDR"] == "198.18.0.11"
    assert first["env"]["MASTER_PORT"] == second["env"]["MASTER_PORT"] == "6000"


def test_torchs_compiler_is_loaded_for_torchs_class_alone() -> None:
    ours, stock = JobSpec(name="a"), JobSpec(name="b", ddp=DdpSpec(wrapper="torch"))
    assert preloads(TRAINING, [ours]) == ("torch", "jobs.worker")
    assert preloads(TRAINING, [ours, stock]) == ("torch", "jobs.worker", "torch._dynamo")
