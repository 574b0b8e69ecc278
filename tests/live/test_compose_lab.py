"""Labs of containers: what is in a node, what is not, and what is left after any end."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from cluster.compose.engine import HOME_LABEL, PROJECT_LABEL, Engine
from cluster.compose.file import BY_HAND
from cluster.compose.image import image_name
from cluster.compose.nodes import ComposeNodes
from cluster.errors import HostError, LabExists, NodeError, NoLab
from cluster.lab import bring_up, open_lab, take_down
from cluster.nodes import Making, Node
from cluster.spec import load_cluster
from tests.live.containers import containers, named_lab, parts, project
from tests.live.host import eventually
from tests.live.lab import TestLab

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]
ONE = load_cluster("2x2")
TAKEN = f"198.19.{100 + os.getpid() % 100}.0/24"
SETS = ("model.layers=2", "model.width=64", "pace=null", "train.steps=4", f"data.path={__file__}")
HEALTH = "tc qdisc show | cmp -s - /run/ddplab/held"


@pytest.fixture
def it(tmp_path: Path, engine: Engine) -> Iterator[TestLab]:
    with named_lab(tmp_path, engine) as lab:
        yield lab


@dataclass(frozen=True)
class Shared:
    """A lab that is up, for tests that leave it as it was."""

    it: TestLab
    nodes: ComposeNodes


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Shared]:
    with named_lab(tmp_path_factory.mktemp("shared"), engine) as lab:
        yield Shared(lab, up(lab))


@pytest.fixture(scope="module")
def trained(shared: Shared) -> dict[str, Any]:
    """The summary of a small job."""
    return shared.it.run("hier", *SETS)


def making(it: TestLab, subnet: str | None = None) -> Making:
    return Making("compose", subnet=IPv4Network(subnet) if subnet else None, runs=it.runs)


def up(it: TestLab, subnet: str | None = None) -> ComposeNodes:
    lab = bring_up(ONE, it.name, making(it, subnet), probe=False)
    assert isinstance(lab.nodes, ComposeNodes)
    return lab.nodes


def said(nodes: ComposeNodes, node: Node, script: str) -> str:
    process = nodes.exec(node, ["sh", "-c", script])
    out, err = process.communicate(timeout=20)  # type: ignore[attr-defined]
    assert process.wait(1) == 0, err
    return str(out.decode().strip())


def inside(engine: Engine, identity: str, *argv: str) -> tuple[int, str]:
    """What the container's root is told by a command, and its exit status."""
    order = engine.api.exec_create(identity, list(argv), user="0:0")["Id"]
    text = engine.api.exec_start(order).decode()
    return engine.api.exec_inspect(order)["ExitCode"], text


def test_a_node_has_one_way_out_and_one_right(shared: Shared, engine: Engine) -> None:
    it, nodes = shared.it, shared.nodes
    (network,) = engine.networks(project(it))
    subnet = network["IPAM"]["Config"][0]["Subnet"]
    for node in nodes.list():
        routes = json.loads(said(nodes, node, "ip -j route show"))
        assert [route["dst"] for route in routes] == [subnet]
        status = said(nodes, node, "grep -E 'Cap(Prm|Eff|Amb)|NoNewPrivs' /proc/self/status")
        assert status.split()[1::2] == ["0" * 16, "0" * 16, "0" * 16, "1"]
        assert said(nodes, node, "id -u") != "0"
    for identity in containers(engine, it):
        _, first = inside(engine, identity, "cat", "/proc/1/status")
        held = dict(line.split(":\t") for line in first.splitlines() if line.startswith("Cap"))
        net_admin = f"{1 << 12:016x}"
        assert (held["CapEff"], held["CapBnd"]) == (net_admin, net_admin)
        found = engine.container(identity)
        assert found is not None and not found["HostConfig"]["Privileged"]
        assert not any("docker.sock" in mount["Source"] for mount in found["Mounts"])
        assert found["HostConfig"]["ReadonlyRootfs"]
        assert inside(engine, identity, "touch", "/etc/more")[0] != 0
        read_only = {m["Destination"]: not m["RW"] for m in found["Mounts"] if m["Type"] == "bind"}
        assert read_only.pop(str(it.runs)) is False
        assert set(read_only.values()) == {True}


def test_this_machine_cannot_be_reached_from_a_node(shared: Shared) -> None:
    nodes = shared.nodes
    here = said(nodes, nodes.list()[0], "ip -j -4 addr show dev eth0")
    gateway = IPv4Network(f"{json.loads(here)[0]['addr_info'][0]['local']}/24", strict=False)[1]
    script = f"import socket; print(socket.socket().connect_ex(('{gateway}', 22)))"
    told = said(nodes, nodes.list()[0], f'timeout 5 {nodes.python} -c "{script}" || echo no answer')
    assert told in ("113", "no answer")  # EHOSTUNREACH; "refused" would be an answer


def test_its_health_is_the_limit_read_back(shared: Shared, engine: Engine) -> None:
    nodes = shared.nodes
    (first, second), (node, other) = containers(engine, shared.it), nodes.list()
    nodes.shape(node, ONE.with_rates("all", {"inter_node": "50mbit"}).links_of("node0"))
    assert [inside(engine, each, "sh", "-c", HEALTH)[0] for each in (first, second)] == [0, 0]
    assert inside(engine, second, "tc", "qdisc", "del", "dev", other.interface, "root")[0] == 0
    assert [inside(engine, each, "sh", "-c", HEALTH)[0] for each in (first, second)] == [0, 1]
    for each in nodes.list():
        nodes.shape(each, ONE.links_of(each.name))


def test_a_node_that_was_killed_ends_the_lab_and_all_of_it(it: TestLab, engine: Engine) -> None:
    nodes = up(it)
    engine.api.kill(containers(engine, it)[1])
    with pytest.raises(NodeError, match="the container of node1 has ended"):
        nodes.exec(nodes.list()[1], ["true"])
    with pytest.raises(NoLab, match="not up") as caught:
        open_lab(it.name)
    assert caught.value.seen == "the container of node1 has ended"
    assert parts(engine, project(it)) == []


def test_a_node_that_was_started_again_is_another_one(it: TestLab, engine: Engine) -> None:
    up(it)
    engine.api.restart(containers(engine, it)[0], timeout=0)
    with pytest.raises(NoLab) as caught:
        open_lab(it.name)
    assert caught.value.seen == "the container of node0 was started again"


def test_two_labs_have_addresses_of_their_own(it: TestLab, engine: Engine) -> None:
    second = TestLab(f"{it.name}-b", it.home)
    try:
        one, other = up(it), up(second)
        addresses = [node.address for nodes in (one, other) for node in nodes.list()]
        assert len({address.rsplit(".", 1)[0] for address in addresses}) == 2
        take_down(it.name)
        assert parts(engine, project(it)) == []
        assert said(other, other.list()[0], "echo on") == "on"
    finally:
        engine.remove(project(second))


def test_a_taken_subnet_is_refused_with_its_holder(it: TestLab, engine: Engine) -> None:
    pools = {"Driver": "default", "Config": [{"Subnet": TAKEN}]}
    network = engine.api.create_network(f"{it.name}-mine", ipam=pools)
    try:
        with pytest.raises(HostError, match=f"SUBNET={TAKEN} is taken") as caught:
            up(it, TAKEN)
        assert f"{it.name}-mine" in str(caught.value.seen)
        assert parts(engine, project(it)) == []
    finally:
        engine.api.remove_network(network["Id"])


def test_what_others_made_under_its_name_is_left_alone(it: TestLab, engine: Engine) -> None:
    labels = {PROJECT_LABEL: project(it)}
    made = engine.api.create_container(image_name(engine), ["sleep", "600"], labels=labels)["Id"]
    with pytest.raises(LabExists, match="has a Compose project"):
        up(it)
    assert parts(engine, project(it)) == [made]


def test_a_volume_that_others_keep_under_its_name_is_left_alone(
    it: TestLab, engine: Engine
) -> None:
    """As `docker compose down` leaves those of a person's own Prometheus."""
    name = f"{project(it)}_prometheus"
    labels = {PROJECT_LABEL: project(it), HOME_LABEL: BY_HAND}
    engine.api.create_volume(name, labels=labels)
    up(it)
    take_down(it.name)
    assert parts(engine, project(it)) == [name]


def test_a_job_gives_what_it_gives_in_namespaces(it: TestLab, trained: dict[str, Any]) -> None:
    """The same cluster and job on both: equal plan, equal parameters, equal bytes."""
    done = it.command("up", "--backend", "netns", "--lab", it.name, "--no-probe")
    assert done.returncode == 0, done.stderr
    theirs = it.run("hier", *SETS)
    assert it.command("down", "--lab", it.name).returncode == 0
    assert (trained["backend"], theirs["backend"]) == ("compose", "netns")
    for key in ("plan_sha256", "params_sha256", "inter_node_bytes_per_step", "gradient_bytes"):
        assert trained[key] == theirs[key], key


def test_files_of_a_run_belong_to_whom_ranks_run_as(
    shared: Shared, trained: dict[str, Any]
) -> None:
    files = (shared.it.runs / trained["run_id"]).glob("rank*.jsonl")
    owners = {file.stat().st_uid for file in files}
    assert owners == {shared.nodes.user[0]} and 0 not in owners


def test_a_killed_node_ends_a_run_with_its_name(shared: Shared, engine: Engine) -> None:
    """The last one: the lab ends with it."""
    it = shared.it
    earlier = set(it.runs.glob("*"))
    process = it.start("run", "hier", "--lab", it.name, "--steps", "100000", "--set", "pace=null")
    assert eventually(
        lambda: any(
            '"kind":"step"' in file.read_text()
            for file in it.runs.glob("[!.]*/rank0.jsonl")
            if file.parent not in earlier and not file.parent.is_symlink()
        ),
        100,
    )
    engine.api.kill(containers(engine, it)[1])
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "the lab is gone: the container of node1 has ended" in out + err
    assert "Traceback" not in out + err
