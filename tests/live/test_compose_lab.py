"""Labs of containers: what is in a node, what is not, and what is left after any end."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from cluster.compose.engine import HOME_LABEL, PROJECT_LABEL, Engine
from cluster.compose.file import BY_HAND
from cluster.compose.image import ensure_image, image_name
from cluster.compose.nodes import ComposeNodes
from cluster.compose.project import Project
from cluster.errors import HostError, LabExists, NodeError, NoLab
from cluster.lab import bring_up, open_lab, take_down
from cluster.nodes import Making, Node
from cluster.spec import load_cluster
from tests.live.host import eventually
from tests.live.lab import TestLab

pytestmark = pytest.mark.docker
ONE = load_cluster("2x2")
TAKEN = f"198.19.{100 + os.getpid() % 100}.0/24"
HEALTH = "tc qdisc show | cmp -s - /run/ddplab/held"


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The engine, with the image there."""
    found = Engine.connect()
    ensure_image(found, nullcontext)
    return found


@pytest.fixture
def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Iterator[TestLab]:
    """A name for a lab, and folders of its own; whatever is left of the lab is removed."""
    tmp_path.chmod(0o755)  # ranks do not run as root
    (tmp_path / "state").mkdir(mode=0o700)
    lab = TestLab(f"c{os.getpid()}-{time.monotonic_ns() % 10**6}", tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    yield lab
    engine.remove(project(lab))


def project(it: TestLab) -> str:
    return f"ddplab-{it.name}"


def making(it: TestLab, subnet: str | None = None) -> Making:
    return Making("compose", subnet=IPv4Network(subnet) if subnet else None, runs=it.runs)


def up(it: TestLab, subnet: str | None = None) -> ComposeNodes:
    lab = bring_up(ONE, it.name, making(it, subnet), probe=False)
    assert isinstance(lab.nodes, ComposeNodes)
    return lab.nodes


def parts(engine: Engine, name: str) -> list[str]:
    """Whatever the engine has with the label of this project."""
    wanted = {"label": [f"{PROJECT_LABEL}={name}"]}
    found = [each["Id"] for each in engine.api.containers(all=True, filters=wanted)]
    found += [each["Name"] for each in engine.api.networks(filters=wanted)]
    return found + [each["Name"] for each in engine.api.volumes(filters=wanted)["Volumes"] or ()]


def containers(engine: Engine, it: TestLab) -> list[str]:
    """The nodes' containers, by number."""
    found = Project(engine, project(it), it.home).nodes()
    return [each["Id"] for each in found]


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


def test_a_node_has_one_way_out_and_one_right(it: TestLab, engine: Engine) -> None:
    nodes = up(it)
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


def test_this_machine_cannot_be_reached_from_a_node(it: TestLab) -> None:
    nodes = up(it)
    here = said(nodes, nodes.list()[0], "ip -j -4 addr show dev eth0")
    gateway = IPv4Network(f"{json.loads(here)[0]['addr_info'][0]['local']}/24", strict=False)[1]
    script = f"import socket; print(socket.socket().connect_ex(('{gateway}', 22)))"
    told = said(nodes, nodes.list()[0], f'timeout 5 {nodes.python} -c "{script}" || echo no answer')
    assert told in ("113", "no answer")  # EHOSTUNREACH; "refused" would be an answer


def test_its_health_is_the_limit_read_back(it: TestLab, engine: Engine) -> None:
    nodes = up(it)
    (first, second), (node, other) = containers(engine, it), nodes.list()
    nodes.shape(node, ONE.with_rates("all", {"inter_node": "50mbit"}).links_of("node0"))
    assert [inside(engine, each, "sh", "-c", HEALTH)[0] for each in (first, second)] == [0, 0]
    assert inside(engine, second, "tc", "qdisc", "del", "dev", other.interface, "root")[0] == 0
    assert [inside(engine, each, "sh", "-c", HEALTH)[0] for each in (first, second)] == [0, 1]


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


@pytest.mark.parametrize("after_s", [0.4, 0.8, 1.2, 1.6])
def test_nothing_is_left_of_an_up_that_was_killed(
    it: TestLab, engine: Engine, after_s: float
) -> None:
    process = it.start("up", "--backend", "compose", "--lab", it.name, "--no-probe")
    time.sleep(after_s)
    process.kill()
    process.communicate()
    assert eventually(lambda: not parts(engine, project(it)), 20) or process.returncode == 0
    time.sleep(1)  # what a killed Compose had still asked for
    if process.returncode != 0:
        assert parts(engine, project(it)) == []


def test_what_nobody_could_remove_is_removed_by_the_next_command(
    it: TestLab, engine: Engine
) -> None:
    process = it.start("up", "--backend", "compose", "--lab", it.name)
    assert eventually(lambda: len(containers(engine, it)) == 2, 60)
    (tie,) = ties(project(it))
    os.kill(tie, signal.SIGKILL)
    process.kill()
    process.communicate()
    assert parts(engine, project(it)) != []
    done = it.command("up", "--backend", "compose", "--lab", it.name, "--no-probe")
    assert done.returncode == 0, done.stderr
    assert len(containers(engine, it)) == 2
    done = it.command("down", "--lab", it.name)
    assert done.returncode == 0, done.stderr
    assert parts(engine, project(it)) == []


def ties(name: str) -> list[int]:
    """The processes that would remove a project."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"cluster.compose.tie" in words and name.encode() in words:
                found.append(int(entry.name))
    return found


def test_a_job_gives_what_it_gives_in_namespaces(it: TestLab) -> None:
    """The same cluster and job on both: equal plan, equal parameters, equal bytes."""
    small = ("model.layers=2", "model.width=64", "pace=null", "train.steps=4")
    sets = (*small, f"data.path={__file__}")
    runs = {}
    for backend in ("compose", "netns"):
        done = it.command("up", "--backend", backend, "--lab", it.name, "--no-probe")
        assert done.returncode == 0, done.stderr
        runs[backend] = it.run("hier", *sets)
        assert it.command("down", "--lab", it.name).returncode == 0
    ours, theirs = runs["compose"], runs["netns"]
    assert ours["backend"] == "compose"
    for key in ("plan_sha256", "params_sha256", "inter_node_bytes_per_step", "gradient_bytes"):
        assert ours[key] == theirs[key], key


def test_files_of_a_run_belong_to_whom_ranks_run_as(it: TestLab) -> None:
    nodes = up(it)
    summary = it.run("hier", "model.layers=2", "model.width=64", "pace=null", "train.steps=2")
    owners = {f.stat().st_uid for f in (it.runs / summary["run_id"]).glob("rank*.jsonl")}
    assert owners == {nodes.user[0]} and 0 not in owners


def test_a_killed_node_ends_a_run_with_its_name(it: TestLab, engine: Engine) -> None:
    up(it)
    process = it.start("run", "hier", "--lab", it.name, "--steps", "100000", "--set", "pace=null")
    assert eventually(lambda: any(it.runs.glob("*/rank0.jsonl")), 60)
    assert eventually(
        lambda: any('"kind":"step"' in f.read_text() for f in it.runs.glob("*/rank0.jsonl")), 60
    )
    engine.api.kill(containers(engine, it)[1])
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "the lab is gone: the container of node1 has ended" in out + err
    assert "Traceback" not in out + err
