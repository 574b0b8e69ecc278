"""What every backend that makes nodes must do; one suite for all of them."""

import functools
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.backends import BACKENDS
from cluster.errors import HostError, NodeError, NoLab
from cluster.nodes import Making, Node, NodeProcess, Nodes, Place, Shapeable
from cluster.spec import ClusterSpec, LinksSpec, load_cluster
from cluster.state import STATE_FILE
from tests.live.rays import on, ray_lab

SPEC = load_cluster("2x2").to_dict() | {
    "overrides": {"node1": {"inter_node": {"rate": "50mbit"}, "intra_node": {"rate": "1gbit"}}}
}
TIMEOUT_S = 20
BACKEND_MARKS: dict[str, Any] = {"netns": pytest.mark.netns, "compose": pytest.mark.docker}


RAY = "ray"
BACKEND_MARKS[RAY] = [pytest.mark.ray, pytest.mark.netns]
PARAMS = [pytest.param(name, marks=BACKEND_MARKS[name]) for name in BACKENDS]


@pytest.fixture(scope="module", params=PARAMS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Nodes]]:
    """Two nodes of each backend that several tests use; each leaves them as they were."""
    with ExitStack() as stack:

        @functools.cache
        def of(name: str) -> Nodes:
            home = tmp_path_factory.mktemp(name)
            if name == RAY:
                return stack.enter_context(on(stack.enter_context(ray_lab(home)))).nodes
            nodes = created(name, home, "several")
            stack.callback(nodes.down)
            spec = ClusterSpec.from_dict(SPEC)
            nodes.up(spec)
            for node in nodes.list():
                nodes.shape(node, spec.links_of(node.name))
            return nodes

        yield of


@pytest.fixture(scope="module")
def shaped(made: Callable[[str], Nodes], backend: str) -> Shapeable:
    """Nodes that a backend made, and whose links it limits."""
    return cast("Shapeable", made(backend))


@pytest.fixture(scope="module", params=[*PARAMS, pytest.param(RAY, marks=BACKEND_MARKS[RAY])])
def nodes(made: Callable[[str], Nodes], request: pytest.FixtureRequest) -> Nodes:
    """Nodes that run programs, whoever made them."""
    return made(request.param)


def created(backend: str, home: Path, name: str) -> Shapeable:
    """Nodes that are not up yet, of a lab whose name nobody else has."""
    making = Making(backend, runs=home / "runs")
    place = Place(f"{name}-{os.getpid()}", home, making)
    chosen = BACKENDS[backend]
    chosen.prepare(place, nullcontext)
    return chosen.create(place)


def ended(process: NodeProcess, data: bytes = b"") -> tuple[int, str, str]:
    """Status, output and errors of a program that gets `data` as its whole input."""
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(data)
    process.stdin.close()
    out, err = process.stdout.read().decode(), process.stderr.read().decode()
    process.stdout.close()
    process.stderr.close()
    return process.wait(TIMEOUT_S), out, err


def said(nodes: Nodes, node: Node, *argv: str) -> str:
    status, out, err = ended(nodes.exec(node, argv))
    assert status == 0, err
    return out.strip()


def test_nodes_are_named_numbered_and_addressed(nodes: Nodes) -> None:
    found = nodes.list()
    assert [(node.name, node.index) for node in found] == [("node0", 0), ("node1", 1)]
    assert len({node.address for node in found}) == 2
    assert all(len(node.interface) >= 2 for node in found)


def test_the_interface_of_a_node_owns_its_address(nodes: Nodes) -> None:
    for node in nodes.list():
        shown = said(nodes, node, "ip", "-o", "-4", "addr", "show", "dev", node.interface)
        assert re.search(rf"\binet {re.escape(node.address)}/", shown)
        assert "LOOPBACK,UP" in said(nodes, node, "ip", "-o", "link", "show", "dev", "lo")


def test_programs_get_input_and_give_output_errors_and_status(nodes: Nodes) -> None:
    script = "read word; echo got $word; echo odd >&2; exit 7"
    for node in nodes.list():
        process = nodes.exec(node, ["sh", "-c", script])
        assert ended(process, b"a word\n") == (7, "got a word\n", "odd\n")


def test_arguments_arrive_as_they_were(nodes: Nodes) -> None:
    words = ["two words", "$HOME", "a'b\"c", "", "*", "-n", "--", "a=b"]
    shown = ended(nodes.exec(nodes.list()[0], ["printf", "[%s]", *words]))[1]
    assert shown == "".join(f"[{word}]" for word in words)


def test_environment_is_added_and_the_folder_taken(nodes: Nodes) -> None:
    node = nodes.list()[0]
    process = nodes.exec(node, ["sh", "-c", "echo $A; pwd; echo ${PATH:+p}"], env={"A": "x y"})
    assert ended(process)[1].splitlines()[0::2] == ["x y", "p"]
    assert ended(nodes.exec(node, ["pwd"], cwd="/usr"))[1] == "/usr\n"


def test_errors_can_go_to_a_file(nodes: Nodes, tmp_path: Path) -> None:
    with (tmp_path / "errors").open("wb") as file:
        process = nodes.exec(nodes.list()[0], ["sh", "-c", "echo odd >&2"], stderr=file)
        assert process.stdin and process.stdout and process.stderr is None
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0
        process.stdout.close()
    assert (tmp_path / "errors").read_text() == "odd\n"


def test_a_program_that_is_not_there(nodes: Nodes) -> None:
    status, out, err = ended(nodes.exec(nodes.list()[0], ["/nowhere/at-all"]))
    assert status != 0
    assert "/nowhere/at-all" in out + err  # docker complains on standard output


def test_the_project_can_be_imported_in_every_node(nodes: Nodes) -> None:
    for node in nodes.list():
        assert said(nodes, node, nodes.python, "-c", "import cluster.agent; print(1)") == "1"


def test_the_end_of_the_input_arrives_also_when_the_client_was_killed(nodes: Nodes) -> None:
    """So that `kill -9` of a launcher ends its ranks."""
    node = nodes.list()[0]
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    temporary = said(nodes, node, "sh", "-c", "echo $TMPDIR")
    process = nodes.exec(node, ["sh", "-c", f"echo on; cat; echo > {temporary}/{mark}"])
    assert process.stdin and process.stdout and process.stderr
    assert process.stdout.readline() == b"on\n"
    process.kill()
    process.wait(TIMEOUT_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()
    said(nodes, node, "sh", "-c", f"until [ -e {temporary}/{mark} ]; do sleep 0.02; done")


def test_nodes_reach_one_another_and_nothing_else(nodes: Nodes) -> None:
    here, there = nodes.list()
    script = (
        "import socket, sys; s = socket.create_server(('', 0)); print(s.getsockname()[1], "
        "flush=True); c, who = s.accept(); print(who[0], flush=True); sys.stdin.read()"
    )
    server = nodes.exec(there, [nodes.python, "-c", script])
    assert server.stdin and server.stdout
    port = int(server.stdout.readline())
    client = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    said(nodes, here, nodes.python, "-c", client, there.address, str(port))
    assert server.stdout.readline().decode().strip() == here.address
    ended(server)
    assert said(nodes, here, "ip", "route", "show", "default") == ""


def test_programs_run_as_the_user_that_the_backend_names(nodes: Nodes) -> None:
    for node in nodes.list():
        shown = said(nodes, node, "sh", "-c", "id -u; id -g; echo ${HOME:?} ${TMPDIR:?}")
        assert shown.split()[:2] == [str(number) for number in nodes.user]


def test_what_nodes_see_of_this_machine(nodes: Nodes) -> None:
    here = Path(__file__)
    nodes.require_visible(here)
    assert said(nodes, nodes.list()[0], "cat", str(here)) == here.read_text().strip()
    for hidden in (Path("/run/nothing"), Path("/dev/shm/nothing")):
        with pytest.raises(HostError, match=f"{hidden} (cannot be seen inside|is not there on)"):
            nodes.require_visible(hidden)


def limits(nodes: Nodes, node: Node, device: str) -> list[str]:
    """The rates on a device of a node, as tc shows them to people."""
    return re.findall(r"\brate (\S+)", said(nodes, node, "tc", "qdisc", "show", "dev", device))


def test_limits_and_overrides_are_there(shaped: Shapeable) -> None:
    here, there = shaped.list()
    assert limits(shaped, here, here.interface) == ["200Mbit"]
    assert limits(shaped, here, "lo") == []
    assert limits(shaped, there, there.interface) == ["50Mbit"]
    assert limits(shaped, there, "lo") == ["1Gbit"]


def test_limits_change_while_running_and_back(shaped: Shapeable) -> None:
    here, there = shaped.list()
    spec = ClusterSpec.from_dict(SPEC)
    for rate, shown in (("400mbit", ["400Mbit"]), ("unlimited", []), ("1gbit", ["1Gbit"])):
        links = LinksSpec.model_validate({"inter_node": {"rate": rate}, "intra_node": {}})
        shaped.shape(here, links)
        assert limits(shaped, here, here.interface) == shown
        assert limits(shaped, there, there.interface) == ["50Mbit"]
    shaped.shape(here, spec.links_of(here.name))
    assert limits(shaped, here, here.interface) == ["200Mbit"]


def test_a_plan_is_what_would_be_done_and_limits_are_read_back(shaped: Shapeable) -> None:
    here, there = shaped.list()
    spec = ClusterSpec.from_dict(SPEC)
    mbit = 10**6
    usual = {"out": 200 * mbit, "in": 200 * mbit, "inside": None}
    assert shaped.limits(here) == usual
    assert shaped.limits(there) == {"out": 50 * mbit, "in": 50 * mbit, "inside": 1000 * mbit}
    assert shaped.shape_plan(here, spec.links_of(here.name)) == ()
    other = spec.with_rates("all", {"inter_node": "30mbit"})
    planned = shaped.shape_plan(here, other.links_of(here.name))
    assert len(planned) == 2  # out and in; what is inside stays
    assert all("30000000bit" in command for command in planned)
    assert shaped.limits(here) == usual
    shaped.shape(here, other.links_of(here.name))
    assert shaped.limits(here) == {"out": 30 * mbit, "in": 30 * mbit, "inside": None}
    shaped.shape(here, spec.links_of(here.name))
    assert shaped.limits(here) == usual


def test_facts(nodes: Nodes) -> None:
    for node in nodes.list():
        facts = nodes.facts(node)
        assert facts.cores >= 1 and facts.memory_bytes > 1 << 20
        assert facts.congestion_control == "cubic"
        assert facts.kernel == said(nodes, node, "uname", "-r")


def test_is_found_again_from_what_it_saved(shaped: Shapeable, backend: str, tmp_path: Path) -> None:
    again = BACKENDS[backend].attach(tmp_path, shaped.save())
    assert again.list() == shaped.list()
    assert said(again, again.list()[1], "echo", "hello") == "hello"
    assert limits(again, again.list()[0], again.list()[0].interface) == ["200Mbit"]


def test_is_gone_when_taken_down(backend: str, tmp_path: Path) -> None:
    made = created(backend, tmp_path, "gone")
    try:
        made.up(load_cluster("2x2"))
        (tmp_path / STATE_FILE).write_text("{}")  # a lab that nobody finds again ends by itself
        made.keep()
        (node, _), saved = made.list(), made.save()
        process = made.exec(node, ["cat"])
        assert process.stdin and process.stdout and process.stderr
        made.down()
        assert process.wait(TIMEOUT_S) != 0
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        made.down()
        with pytest.raises(NodeError):
            made.exec(node, ["true"])
        with pytest.raises(NoLab):
            BACKENDS[backend].attach(tmp_path, saved)
    finally:
        made.down()
