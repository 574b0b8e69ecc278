"""Schedules stream: who reads one has a stage or two in memory, however many ranks there are."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddp.algorithms import ALGORITHMS
from ddp.cost import price, traffic
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.program import merge, project
from ddp.schedule import Schedule, Stage

LINK = Link(1e-4, 1e8)
SCHEDULED = [name for name, algorithm in ALGORITHMS.items() if algorithm.build]
READERS = {
    "price": lambda schedule, fabric: price(schedule, fabric, 10**6, 4),
    "traffic": lambda schedule, fabric: traffic(schedule, fabric, 10**6, 4, 4),
    "project": lambda schedule, _fabric: project(schedule, 3),
}
LARGE = """
import sys
from pathlib import Path
from ddp.algorithms import ring_schedule
from ddp.cost import price
from ddp.fabric import Fabric, Link, NodeLinks
from ddp.program import project
link = Link(1e-4, 1e8)
fabric = Fabric.uniform(128, 8, [NodeLinks(link, link, link)] * 128)
ring = ring_schedule(range(1024))
own = project(ring, 1023)
sent = price(ring, fabric, 1024 * 1000).traffic[127].out_bytes
peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]  # kB
print(len(own), sent, peak, "torch" in sys.modules)
"""


def fabric_of(num_nodes: int, ranks_per_node: int) -> Fabric:
    return Fabric.uniform(num_nodes, ranks_per_node, [NodeLinks(LINK, LINK, LINK)] * num_nodes)


class Counted(tuple):
    """A stage that tells how many of its kind are in memory."""

    alive = most = 0

    def __init__(self, _transfers: Stage) -> None:
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        Counted.alive -= 1


def counted(schedule: Schedule) -> Schedule:
    def stages() -> Iterator[Stage]:
        for stage in schedule.stages():
            yield Counted(stage)

    return replace(schedule, stages=stages)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", SCHEDULED)
def test_few_stages_are_in_memory_at_a_time(name: str, reader: str) -> None:
    fabric = fabric_of(4, 4)
    schedule = ALGORITHMS[name].build(fabric, "contiguous", 0)
    Counted.alive = Counted.most = 0

    found = READERS[reader](counted(schedule), fabric)

    assert found == READERS[reader](schedule, fabric)
    most = 3 if reader == "project" else 2  # a rank looks one stage ahead
    assert (Counted.alive, Counted.most) == (0, most)


def test_a_flat_ring_of_1_024_ranks_is_small() -> None:
    command = [sys.executable, "-c", LARGE]
    out = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    ).stdout.split()

    num_stages, sent, peak_kb, torch_too = out
    assert (int(num_stages), int(sent)) == (2 * 1023, 2 * 1023 * 1000)
    assert int(peak_kb) < 50_000
    assert torch_too == "False"


@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize("node_of", [(0, 0, 1, 1), (1, 0, 1, 2, 0, 0, 2, 0), (0,)])
def test_a_program_is_its_rank_s_part_of_the_whole(name: str, node_of: tuple[int, ...]) -> None:
    schedule = ALGORITHMS[name].build(Fabric(node_of), "contiguous", 0)
    whole = [merge(stage) for stage in schedule]
    for rank in range(schedule.num_ranks):
        for action, messages in zip(project(schedule, rank), whole, strict=True):
            assert list(action.sends) == [m for m in messages if m.src == rank]
            assert list(action.receives) == [m for m in messages if m.dst == rank]
