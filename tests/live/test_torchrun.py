"""Unmodified torchrun, SLURM's variables and ddp.probe across two nodes of a lab.

The lab limits the links; torchrun knows nothing of it, and the ranks know only what it tells them.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.nodes import Node, NodeProcess, Nodes
from tests.live.lab import TestLab, lab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(240)]

TIMEOUT_S = 100
STEPS = 4
JOB = (
    "pace=null",
    "model.layers=2",
    "model.width=64",
    "data.batch_size=1",
    f"train.steps={STEPS}",
    "train.warmup_steps=1",
)
HEADERS = 1.08  # what the kernel counts beyond payload: Ethernet, IP, TCP, acknowledgements
HOUR_NS = 3_600_000_000_000
ANOTHER_CLOCK = ("unshare", "--time", "--monotonic=3600", "--fork", "--kill-child")
TORCHRUN = ("-m", "torch.distributed.run", "--nnodes=2")
WORKER = ("-m", "jobs.worker", "--job", "hier", *(w for it in JOB for w in ("--set", it)))


@dataclass(frozen=True)
class Scene:
    """A lab, and programs started in its nodes by hand."""

    lab: TestLab
    nodes: Nodes
    started: list[NodeProcess] = field(default_factory=list)

    def start(
        self, node: Node, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> NodeProcess:
        """One program; `python` is the one that the tests run with."""
        words = [sys.executable if word == "python" else word for word in argv]
        one_thread = {"OMP_NUM_THREADS": "1"}
        with (self.lab.home / f"{node.name}.err").open("ab") as errors:
            process = self.nodes.exec(
                node,
                words,
                env={**one_thread, **(env or {})},
                cwd=str(self.lab.home),
                stderr=errors,
            )
        self.started.append(process)
        return process

    def ended(self, processes: Sequence[NodeProcess], ok: bool = True) -> list[str]:
        """What each has printed."""
        said = []
        for process in processes:
            assert process.stdin and process.stdout
            said.append(process.stdout.read().decode())
            status = process.wait(TIMEOUT_S)
            assert (status == 0) == ok, said[-1] + self.errors()
        return said

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in self.lab.home.glob("*.err"))

    def torchrun(self, words: Callable[[Node], Sequence[str]], *before: str) -> list[str]:
        """Static rendezvous at node0's fabric address; `before`: what runs torchrun in node1."""
        first, second = self.nodes.list()
        where = (f"--master-addr={first.address}", "--master-port=29511")
        common = ["python", *TORCHRUN, *where]
        return self.ended(
            [
                self.start(first, [*common, "--node-rank=0", *words(first)]),
                self.start(second, [*before, *common, "--node-rank=1", *words(second)]),
            ]
        )

    def document(self, folder: str, name: str = "summary.json") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.lab.home / folder / name).read_text())
        return found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("torchrun")
    with lab(home, "2x2", "--rate", "200mbit", "--no-probe") as it:
        found = Scene(it, it.nodes())
        try:
            yield found
        finally:  # what is left in the nodes ends with the lab
            for process in found.started:
                process.kill()
                process.wait(TIMEOUT_S)
                for pipe in (process.stdin, process.stdout):
                    if pipe:
                        pipe.close()


@pytest.fixture(scope="module")
def usual(scene: Scene) -> dict[str, Any]:
    """The same job by `ddplab run`."""
    return scene.lab.run("hier", *JOB)


def test_static_rendezvous_and_a_folder_that_all_share(
    scene: Scene, usual: Mapping[str, Any]
) -> None:
    said, other = scene.torchrun(lambda _: [*TWO, *WORKER, "--out", "runs/static"])
    assert f"node1  {scene.nodes.list()[1].address} " in said
    assert "parameters equal on 4 of 4 ranks" in said and not other
    assert_same_training(scene, "runs/static", usual)
    run = scene.document("runs/static", "run.json")
    assert run["node_of"] == [0, 0, 1, 1] and run["job"]["placement"] == "contiguous"
    assert (run["lab"]["backend"], run["lab"]["underlay"]) == ("torchrun", None)
    modes = [link["mode"] for link in run["probe"]["links"]]
    assert modes == ["one_way"] * 2 + ["both_ways"] * 2 + ["intra_node"] * 2
    headers = [lines[0] for lines in scene.lab.records("static")]
    assert {header["clock"]["error_ns"] for header in headers} == {0}, "one machine, one clock"


TWO = ("--nproc-per-node=2",)


def assert_same_training(scene: Scene, folder: str, usual: Mapping[str, Any]) -> None:
    found = scene.document(folder)
    assert found["status"] == "ok" and found["ranks_agree"] is True
    for key in ("params_sha256", "plan_sha256", "loss_first", "loss_last", "gradient_bytes"):
        assert found[key] == usual[key], key
    assert found["steps"] == STEPS and found["link"]["proof"] == "probed"
    assert found["predicted"]["step_seconds"] is not None
    names = {path.name for path in (scene.lab.home / folder).iterdir()}
    kept = {"run.json", "summary.json", "steps.csv", "prediction.json"}
    assert names - {"part0.json", "part1.json"} == kept | {f"rank{k}.jsonl" for k in range(4)}


def test_c10d_rendezvous_machines_of_their_own_clocks_and_folders_and_collect(
    scene: Scene, usual: Mapping[str, Any]
) -> None:
    first, second = scene.nodes.list()

    def words(node: Node) -> list[str]:
        where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:29512"]
        # node1 resolves to no address of the lab, so that the host is told that it is the host
        host = ["--rdzv-conf=is_host=1"] if node == first else []
        own = [f"--local-addr={node.address}", *host]
        out = ["--out", f"{node.name}/first"]
        return ["python", *TORCHRUN, *where, *own, *TWO, *WORKER, *out]

    said = scene.ended(
        [
            scene.start(first, words(first)),
            scene.start(second, [*ANOTHER_CLOCK, *words(second)]),
        ]
    )
    assert all("ddplab collect DIR DIR ... --out runs/first" in each for each in said)
    done = scene.lab.command("collect", "node0/first", "node1/first", "--out", "runs/first")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_training(scene, "runs/first", usual)
    ahead = clocks_ahead(scene.lab, "first")
    for rank_ahead, real in zip(ahead, (0, 0, HOUR_NS, HOUR_NS), strict=True):
        for offset_ns, error_ns in rank_ahead:
            assert abs(offset_ns + real) <= error_ns < HOUR_NS / 1000
    summary = scene.document("runs/first")
    assert summary["comm_seconds"]["straggler_wait"] < 1, "clocks are an hour apart, ranks are not"


def clocks_ahead(it: TestLab, run_id: str) -> list[list[tuple[int, int]]]:
    """Offset and error of each rank, before and after."""
    return [
        [(line["clock"]["offset_ns"], line["clock"]["error_ns"]) for line in (lines[0], lines[-1])]
        for lines in it.records(run_id)
    ]


def test_slurm_in_cyclic_order_keeps_what_stays_in_a_node_off_its_nic(scene: Scene) -> None:
    first, second = scene.nodes.list()

    def task(node: Node, rank: int) -> NodeProcess:
        env = {
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": "4",
            "SLURM_LOCALID": str(rank // 2),
            "SLURM_NODEID": str(node.index),
            "SLURM_NNODES": "2",
            "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
            "SLURM_JOB_NODELIST": first.address,
            "SLURM_JOB_ID": "7",
        }
        fabric = (f"--fabric={first.address}/24", "--out", "runs/cyclic")
        return scene.start(node, ["python", *WORKER, *fabric], env)

    scene.ended([task(first, 0), task(second, 1), task(first, 2), task(second, 3)])
    run, summary = (scene.document("runs/cyclic", f"{name}.json") for name in ("run", "summary"))
    assert run["node_of"] == run["job"]["placement"] == [0, 1, 0, 1]
    expected = scene.lab.run("hier", *JOB, "placement=interleaved")
    assert summary["params_sha256"] == expected["params_sha256"]
    assert summary["plan_sha256"] == expected["plan_sha256"]
    payload, nic = [0, 0], [0, 0]
    for header, *_, end in scene.lab.records("cyclic"):
        assert end["intra_node_bytes"] > 0.4 * summary["gradient_bytes"] * (STEPS + 1)
        payload[header["node"]] += end["inter_node_bytes"]
        nic[header["node"]] += end["nic_tx_bytes"] or 0
    for sent, counted in zip(payload, nic, strict=True):
        assert sent == pytest.approx(summary["gradient_bytes"] * (STEPS + 1), rel=0.01)
        assert sent <= counted <= HEADERS * sent


def test_a_rank_that_fails_stops_all_of_them_with_its_reason(scene: Scene) -> None:
    first, second = scene.nodes.list()

    def alone(node: Node, rank: int, *more: str) -> NodeProcess:
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": first.address,
            "MASTER_PORT": "29513",
            "GROUP_RANK": str(rank),
        }
        return scene.start(node, ["python", *WORKER, "--out", "runs/failed", *more], env)

    scene.ended([alone(first, 0), alone(second, 1, "--set", "data.path=/absent")], ok=False)
    assert "rank 1 (" in scene.errors(), "rank 0 says whose fault it is"
    assert scene.errors().count("data.path: /absent") == 2
    assert not (scene.lab.home / "runs/failed").exists()


def test_the_probe_under_torchrun(scene: Scene) -> None:
    answer, nothing = scene.torchrun(lambda _: ["--nproc-per-node=1", "-m", "ddp.probe", "--json"])
    assert not nothing
    links = json.loads(answer)["links"]
    assert [(link["src"], link["dst"], link["mode"]) for link in links] == [
        ("0", "1", "one_way"),
        ("1", "0", "one_way"),
        ("0", "1", "both_ways"),
        ("1", "0", "both_ways"),
    ]
    for link in links:  # what the lab limits no probe may exceed by much; a busy machine is slower
        assert 0 < link["measured_bytes_per_second"] * 8 < 1.1 * 200e6
