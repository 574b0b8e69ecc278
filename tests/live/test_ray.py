"""A Ray cluster inside a lab: where nodes are, what is refused, how everything ends."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import FabricRefused, HostError, NodeError, NoRay, NotPlaced
from cluster.nodes import Node, NodeProcess
from cluster.rayhosts import attach
from cluster.site import Attached
from tests.live.lab import SMALL, TestLab
from tests.live.rays import (
    LIMIT_S,
    actor,
    held,
    kill,
    of_ray,
    on,
    ours,
    processes,
    ray_lab,
    raylet,
    require_nothing_left,
    until,
)

pytestmark = [pytest.mark.ray, pytest.mark.netns]
AGENT = ["python", "-m", "cluster.agent"]


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    """One lab, one Ray cluster; each test leaves them whole, but for the last ones."""
    with ray_lab(tmp_path_factory.mktemp("ray")) as made:
        yield made


def agent(site: Attached, node: Node) -> NodeProcess:
    """One that has begun."""
    process = site.nodes.exec(node, [*AGENT, "--node", node.name, "--address", node.address])
    assert process.stdout
    assert json.loads(process.stdout.readline())["event"] == "ready"
    return process


def last_words(process: NodeProcess) -> str:
    """Of a program that has ended though nobody asked it to."""
    assert process.stdin and process.stdout and process.stderr
    with process.stdin, process.stdout, process.stderr:
        assert process.wait(LIMIT_S) == 1
        return process.stderr.read().decode()


def test_the_site(it: TestLab) -> None:
    with on(it) as site:
        nodes = site.nodes.list()
        assert [(node.name, node.index, node.interface) for node in nodes] == [
            ("node0", 0, "fab0"),
            ("node1", 1, "fab0"),
        ]
        assert site.underlay is not None
        assert nodes == site.underlay.nodes.list()
        assert (site.name, site.backend, site.spec) == (it.name, "ray", site.underlay.spec)
        for node in nodes:
            assert site.nodes.facts(node) == site.underlay.nodes.facts(node)
        site.nodes.require_visible(Path(__file__))
        with pytest.raises(HostError, match=r"/nowhere/at-all is not there on node0"):
            site.nodes.require_visible(Path("/nowhere/at-all"))


def test_a_part_of_it_and_an_order_of_its_own(it: TestLab) -> None:
    with on(it, nodes=1, ranks_per_node=1, fabric="198.18.0.0/15") as site:
        assert [node.name for node in site.nodes.list()] == ["node0"]
        assert (site.spec.nodes, site.spec.ranks_per_node) == (1, 1)
    with on(it, strategy="198.18.0.11,198.18.0.10") as site:
        assert [(node.name, node.index) for node in site.nodes.list()] == [
            ("node1", 0),
            ("node0", 1),
        ]


def test_what_can_never_be_placed_is_told_at_once(it: TestLab) -> None:
    with pytest.raises(NotPlaced, match="can never be placed") as caught, on(it, ranks_per_node=99):
        pass
    assert "of 2 CPU free" in (caught.value.seen or "")
    with pytest.raises(NotPlaced, match=r"3 x \(2 CPU\), each on a machine"), on(it, nodes=3):
        pass


def test_what_finds_no_room_in_time_is_told_and_given_up(
    it: TestLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "PLACE_S", 1.0)
    with on(it):
        with pytest.raises(NotPlaced, match="was not placed within 1 s") as caught, on(it):
            pass
        seen = (caught.value.seen or "").splitlines()
        assert seen == ["198.18.0.10  0 of 2 CPU free", "198.18.0.11  0 of 2 CPU free"]
        assert held(it) == [["CREATED"], ["ALIVE", "ALIVE"]]  # only those of the other one
    require_nothing_left(it)


def test_an_address_where_nothing_answers(it: TestLab) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NoRay) as caught, on(it, address=address, ranks_per_node=1):
            pass
    assert caught.value.message == f"no Ray cluster answers at {address}"
    assert caught.value.seen == "Connection refused"
    assert f"ray start --address={address}" in caught.value.fix[1]


def test_an_address_where_something_else_answers(
    it: TestLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "ATTACH_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with (
            pytest.raises(NoRay, match=f"cannot attach to Ray at {address}"),
            on(it, address=address, ranks_per_node=1),
        ):
            pass


def test_a_nic_that_is_not_there(it: TestLab) -> None:
    refused = pytest.raises(FabricRefused, match="fabric nope0 fits no NIC of node0")
    with refused, on(it, fabric="nope0"):
        pass


def test_a_killed_actor(it: TestLab) -> None:
    with on(it) as site:
        here, there = site.nodes.list()
        lost, kept = agent(site, there), agent(site, here)
        kill(it, actor(it, there.address))
        words = last_words(lost)
        assert "the Ray actor on node1 (198.18.0.11) does not answer: The actor died" in words
        assert "its worker process has died" in words  # Ray's own
        assert kept.poll() is None
        with pytest.raises(NodeError, match="the Ray actor on node1"):
            site.nodes.exec(there, ["true"])
        until(lambda: len([each for each in ours(it) if "cluster.agent" in each.words]) == 2)
        assert kept.stdin and kept.stdout and kept.stderr
        kept.stdin.close()
        assert kept.wait(LIMIT_S) == 0
        kept.stdout.close()
        kept.stderr.close()
    require_nothing_left(it)


def test_a_killed_driver(it: TestLab) -> None:
    with on(it) as site:
        lost = [agent(site, node) for node in site.nodes.list()]
        (driver,) = [each for each in ours(it) if "cluster.rayhosts.driver" in each.words]
        kill(it, driver)
        for node, process in zip(site.nodes.list(), lost, strict=True):
            words = last_words(process)
            assert f"the Ray actor on {node.name}" in words
            assert "the driver of Ray was killed by SIGKILL" in words
    require_nothing_left(it)


def test_leaving_ends_what_still_runs(it: TestLab) -> None:
    with on(it) as site:
        left = [agent(site, node) for node in site.nodes.list()]
    for process in left:
        assert process.stdin and process.stdout and process.stderr
        with process.stdin, process.stdout, process.stderr:
            process.wait(LIMIT_S)
    require_nothing_left(it)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_stopped_or_killed(it: TestLab, number: signal.Signals) -> None:
    settings = [word for each in (*SMALL, "train.steps=5000") for word in ("--set", each)]
    process = it.start("run", "hier", "--lab", it.name, "--backend", "ray", *settings)
    try:
        ranks = 4 + 2 * 2  # and two processes of each agent
        until(lambda: len([each for each in ours(it) if "cluster.agent" in each.words]) >= ranks)
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == (130 if number == signal.SIGINT else -number)
    finally:
        process.kill()
        process.communicate()
    require_nothing_left(it)


def test_a_job_comes_to_the_same_as_on_the_lab_itself(it: TestLab) -> None:
    options = [word for setting in (*SMALL, "train.steps=4") for word in ("--set", setting)]
    done = it.command("run", "hier", "--lab", it.name, "--backend", "ray", "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    ray = json.loads(done.stdout)
    own = it.run("hier", *SMALL, "train.steps=4")
    same = ("status", "plan_sha256", "params_sha256", "loss_first", "loss_last", "world_size")
    assert {key: ray[key] for key in same} == {key: own[key] for key in same}
    assert (ray["backend"], own["backend"]) == ("ray", "netns")
    names = [{file.name for file in (it.runs / each["run_id"]).iterdir()} for each in (ray, own)]
    assert names[0] == names[1]
    require_nothing_left(it)


def test_up_again_is_up_already_and_down_leaves_nothing(it: TestLab) -> None:
    again = json.loads(it.command("ray-up", "--lab", it.name, "--json").stdout)
    assert again["already_up"]
    down = it.command("ray-down", "--lab", it.name, "--json")
    assert json.loads(down.stdout)["down"]
    assert not of_ray(it)
    assert it.in_node("node0", "sh", "-c", "ls $TMPDIR") == ""
    refused = it.command("ray-down", "--lab", it.name)
    assert "there is no Ray cluster in lab" in refused.stderr
    with pytest.raises(NoRay, match="there is no Ray cluster in lab"), on(it):
        pass


def test_ray_up_that_is_killed_leaves_nothing(it: TestLab) -> None:
    process = it.start("ray-up", "--lab", it.name)
    try:
        until(lambda: any("gcs_server" in each.words for each in processes(it)))
    finally:
        process.kill()
        process.communicate()
    until(lambda: not of_ray(it))


@pytest.mark.parametrize("name", ["node1", "node0"])
def test_a_killed_raylet_of_a_cluster_that_is_made_whole_first(it: TestLab, name: str) -> None:
    made = json.loads(it.command("ray-up", "--lab", it.name, "--json").stdout)
    assert not made["already_up"]
    with on(it) as site:
        (node,) = [each for each in site.nodes.list() if each.name == name]
        lost = agent(site, node)
        kill(it, raylet(it, node.address))
        assert f"the Ray actor on {name} ({node.address}) does not answer" in last_words(lost)
    until(lambda: not ours(it))
    with pytest.raises(NoRay, match=f"Ray has ended on {name}") as caught, on(it):
        pass
    assert caught.value.fix == (f"make ray-up LAB={it.name}",)
