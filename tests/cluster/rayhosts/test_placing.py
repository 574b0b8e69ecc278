"""What is asked of Ray, what can never be, and how it is told."""

import pytest

from cluster.errors import NotPlaced, RayError
from cluster.rayhosts.placing import (
    Machine,
    chosen_addresses,
    gpus_per_node,
    not_placed,
    order_key,
    plan_placing,
    working,
)


def machine(last: int, cpus: float, gpus: float = 0, free: float | None = None) -> Machine:
    total = {"CPU": cpus, "GPU": gpus}
    left = {"CPU": cpus if free is None else free, "GPU": gpus}
    return Machine(f"id{last}", f"10.0.0.{last}", total, left)


TWO = [machine(4, 8), machine(5, 8)]


def test_spread_asks_for_a_cpu_for_each_rank_on_machines_of_their_own() -> None:
    placing = plan_placing(TWO, 2, 3, "spread", None)
    assert placing.bundles == ({"CPU": 3.0}, {"CPU": 3.0})
    assert placing.strategy == "STRICT_SPREAD"


def test_gpus_are_asked_for_where_every_machine_has_one_for_each_rank() -> None:
    machines = [machine(4, 8, 4), machine(5, 8, 2)]
    assert plan_placing(machines, 2, 2, "spread", None).bundles[0] == {"CPU": 2.0, "GPU": 2.0}
    assert plan_placing(machines, 2, 3, "spread", None).bundles[0] == {"CPU": 3.0}


def test_named_machines_are_pinned_in_their_order() -> None:
    placing = plan_placing(TWO, 2, 1, "10.0.0.5,10.0.0.4", ("10.0.0.5", "10.0.0.4"))
    assert [list(bundle)[-1] for bundle in placing.bundles] == ["node:10.0.0.5", "node:10.0.0.4"]
    assert placing.strategy == "STRICT_SPREAD"


def test_pack_may_put_several_nodes_on_one_machine() -> None:
    assert len(plan_placing([machine(4, 8)], 4, 2, "pack", None).bundles) == 4
    with pytest.raises(NotPlaced, match=r"can never be placed: 5 x \(2 CPU\)"):
        plan_placing([machine(4, 8)], 5, 2, "pack", None)


@pytest.mark.parametrize(("nodes", "ranks"), [(3, 1), (2, 9), (1, 9)])
def test_what_can_never_be_is_told_at_once(nodes: int, ranks: int) -> None:
    with pytest.raises(NotPlaced) as caught:
        plan_placing(TWO, nodes, ranks, "spread", None)
    error = caught.value
    assert f"{nodes} x ({ranks} CPU), each on a machine of its own" in error.message
    assert error.seen == "10.0.0.4  8 of 8 CPU free\n10.0.0.5  8 of 8 CPU free"


def test_what_found_no_room_is_told_with_what_is_free() -> None:
    machines = [machine(10, 8, 2, free=1), machine(9, 8, 2)]
    placing = plan_placing(machines, 2, 2, "spread", None)
    error = not_placed(placing, machines, 20)
    assert "was not placed within 20 s: 2 x (2 CPU and 2 GPU)" in error.message
    assert error.seen == (
        "10.0.0.9   8 of 8 CPU free  2 of 2 GPU free\n10.0.0.10  1 of 8 CPU free  2 of 2 GPU free"
    )
    assert error.fix[-1] == "wait until other work on the cluster has ended"


def test_no_machine_at_all() -> None:
    with pytest.raises(NotPlaced) as caught:
        plan_placing([], 1, 1, "spread", None)
    assert caught.value.seen == "no machine is alive"


def test_a_machine_that_is_not_there() -> None:
    with pytest.raises(NotPlaced) as caught:
        plan_placing(TWO, 1, 1, "10.0.0.6", ("10.0.0.6",))
    assert caught.value.message == "10.0.0.6 is no machine of this Ray cluster"
    assert caught.value.seen == "alive: 10.0.0.4, 10.0.0.5"


def test_strategies_are_read() -> None:
    assert chosen_addresses("spread") is None
    assert chosen_addresses("pack") is None
    assert chosen_addresses("10.0.0.5, 10.0.0.4") == ("10.0.0.5", "10.0.0.4")
    with pytest.raises(RayError, match="names a machine twice"):
        chosen_addresses("10.0.0.5,10.0.0.5")
    for wrong in ("sprea", "10.0.0.5,", "10.0.0.5 10.0.0.4", ""):
        with pytest.raises(RayError, match="neither spread, pack nor a list"):
            chosen_addresses(wrong)


def test_a_head_without_cpus_takes_no_work() -> None:
    assert working([machine(1, 0), *TWO]) == TWO


def test_gpus_say_how_many_ranks_where_all_have_equally_many() -> None:
    assert gpus_per_node([machine(4, 8, 4), machine(5, 16, 4)]) == 4
    assert gpus_per_node([machine(4, 8, 4), machine(5, 8, 2)]) is None
    assert gpus_per_node(TWO) is None


def test_addresses_are_ordered_as_numbers_and_names_come_last() -> None:
    shown = sorted(["10.0.0.10", "host-b", "10.0.0.9", "host-a"], key=order_key)
    assert shown == ["10.0.0.9", "10.0.0.10", "host-a", "host-b"]
