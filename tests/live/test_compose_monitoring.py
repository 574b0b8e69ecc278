"""Labs of containers that are watched by a Prometheus of their own, as docker-compose.yml has it.

The images are made here: Prometheus of the binary of this machine, and in Grafana's place a server
that shows the folder of dashboards.
"""

import io
import json
import os
import socket
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, nullcontext
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from cluster.compose.engine import Engine
from cluster.compose.image import ensure_image
from cluster.compose.monitoring import find_monitoring
from cluster.nodes import Monitoring
from jobs.server.ports import GATEWAY_PORT
from tests.live.containers import parts, project
from tests.live.host import eventually
from tests.live.lab import SMALL, TestLab
from tests.live.scraping import Prometheus
from tests.prometheus import find

pytestmark = [pytest.mark.docker, pytest.mark.prometheus, pytest.mark.timeout(300)]

PROMETHEUS = """
FROM {base}
COPY prometheus /usr/bin/
RUN mkdir /prometheus && chown 65534:65534 /prometheus
USER 65534:65534
ENTRYPOINT ["prometheus"]
"""
GRAFANA = """
FROM {base}
USER 472:0
WORKDIR /var/lib/dashboards
ENTRYPOINT ["python3", "-m", "http.server", "3000"]
"""


@pytest.fixture(scope="module")
def images(engine: Engine) -> Iterator[dict[str, str]]:
    """The variables that name the images; they are removed afterwards."""
    base = ensure_image(engine, nullcontext)
    binary = Path(str(find("prometheus"))).read_bytes()
    files = {"PROMETHEUS": {"prometheus": binary}, "GRAFANA": {}}
    names = {kind: f"ddplab-test-{kind.lower()}:{os.getpid()}" for kind in files}
    try:
        for kind, text in (("PROMETHEUS", PROMETHEUS), ("GRAFANA", GRAFANA)):
            context = archive({"Dockerfile": text.format(base=base).encode(), **files[kind]})
            said = list(
                engine.api.build(
                    fileobj=context, custom_context=True, tag=names[kind], rm=True, decode=True
                )
            )
            assert engine.has_image(names[kind]), said[-1]
        yield {f"DDPLAB_{kind}_IMAGE": name for kind, name in names.items()}
    finally:
        for name in names.values():
            if engine.has_image(name):
                engine.api.remove_image(name, force=True)


def archive(files: dict[str, bytes]) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(content), 0o755
            tar.addfile(about, io.BytesIO(content))
    packed.seek(0)
    return packed


class Watched:
    """Labs in one folder, each with a Prometheus."""

    def __init__(self, home: Path, engine: Engine) -> None:
        self._home, self._engine = home, engine
        self.labs: list[TestLab] = []

    def up(self, name: str, *options: str) -> tuple[TestLab, dict[str, Any]]:
        it = TestLab(f"m{os.getpid()}{name}", self._home)
        self.labs.append(it)
        words = ("--backend", "compose", "--no-probe", "--json", *options)
        done = it.command("up", "--lab", it.name, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return it, document

    def monitoring(self, it: TestLab) -> Monitoring:
        found = find_monitoring(self._engine, project(it))
        assert found is not None
        return found


@pytest.fixture
def watched(
    tmp_path: Path, engine: Engine, images: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watched]:
    tmp_path.chmod(0o755)  # ranks do not run as root
    (tmp_path / "state").mkdir(mode=0o700)
    for name, value in images.items():
        monkeypatch.setenv(name, value)
    made = Watched(tmp_path, engine)
    yield made
    for it in made.labs:
        it.command("down", "--lab", it.name)
        engine.remove(project(it))


def status(url: str, host: str | None = None) -> int:
    try:
        headers = {"Host": host} if host else {}
        with closing(urllib.request.urlopen(urllib.request.Request(url, headers=headers))) as it:
            return int(it.status)
    except urllib.error.HTTPError as exc:
        return exc.code


def container(engine: Engine, it: TestLab, service: str) -> dict[str, Any]:
    (found,) = engine.containers(project(it), service)
    return found


def listens(at: IPv4Address, port: int) -> bool:
    """Whether this machine does: a network that is gone may be answered for by somebody else."""
    where = f"{socket.htonl(int(at)):08X}:{port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(line[1] == where and line[3] == "0A" for line in lines)


def test_a_run_reaches_the_labs_own_prometheus(watched: Watched, engine: Engine) -> None:
    it, told = watched.up("a", "--monitoring")
    assert set(told["monitoring"]) == {"grafana", "prometheus"}
    assert all(page.startswith("http://127.0.0.1:") for page in told["monitoring"].values())
    prometheus = Prometheus(told["monitoring"]["prometheus"].rstrip("/"), told["exporter"])
    assert eventually(
        lambda: listens(IPv4Address("127.0.0.1"), int(prometheus.address.split(":")[2]))
    )
    (scrape,) = prometheus.until('up{job="ddplab"} == 1')
    assert scrape["metric"]["instance"] == f"exporter:{GATEWAY_PORT}"

    summary = it.run("hier", *SMALL, "train.steps=20")
    run_id = summary["run_id"]
    prometheus.until(f'ddplab_run_up{{run_id="{run_id}"}} == 0')
    prometheus.until(f'ddplab_steps_total{{run_id="{run_id}"}} == 20')
    prometheus.until(f'last_over_time(run:ddplab_step_seconds:mean15s{{run_id="{run_id}"}}[5m])')
    assert status(f"{told['monitoring']['grafana']}ddplab.json") == 200

    gateway = watched.monitoring(it).gateway
    own = f"http://{gateway.ip}:{GATEWAY_PORT}"
    assert [status(f"{own}{path}") for path in ("/metrics", "/", "/api/state")] == [200, 404, 404]
    assert status(f"{own}/metrics", "evil.example") == 421
    assert listens(gateway.ip, GATEWAY_PORT)
    assert it.command("down", "--lab", it.name).returncode == 0
    assert parts(engine, project(it)) == []
    assert eventually(lambda: not listens(gateway.ip, GATEWAY_PORT))


def test_what_watches_sees_this_machine_and_no_node(watched: Watched, engine: Engine) -> None:
    it, _ = watched.up("a", "--monitoring")
    networks = {name: f"{project(it)}_{name}" for name in ("management", "fabric")}
    for service in ("prometheus", "grafana"):
        found = container(engine, it, service)
        assert set(found["NetworkSettings"]["Networks"]) == {networks["management"]}
        assert found["HostConfig"]["CapDrop"] == ["ALL"]
        assert not found["HostConfig"]["CapAdd"]
        assert found["HostConfig"]["ReadonlyRootfs"] and not found["HostConfig"]["Privileged"]
        assert "no-new-privileges:true" in found["HostConfig"]["SecurityOpt"]
        mounts = {mount["Destination"]: mount for mount in found["Mounts"]}
        assert [mount["Type"] for mount in mounts.values() if mount["RW"]] == ["volume"]
        shown = [each for bound in found["NetworkSettings"]["Ports"].values() for each in bound]
        assert {each["HostIp"] for each in shown} == {"127.0.0.1"}
    for node in engine.containers(project(it), "node"):
        assert set(node["NetworkSettings"]["Networks"]) == {networks["fabric"]}


def test_two_labs_at_once_have_a_network_and_pages_each(watched: Watched) -> None:
    labs = [watched.up(name, "--monitoring") for name in ("a", "b")]
    gateways = {watched.monitoring(it).gateway for it, _ in labs}
    pages = {page for _, told in labs for page in told["monitoring"].values()}
    assert (len(gateways), len(pages)) == (2, 4)
    for _, told in labs:
        address = told["monitoring"]["prometheus"].rstrip("/")
        Prometheus(address, told["exporter"]).until('up{job="ddplab"} == 1')
    first = labs[0][0]
    assert first.command("down", "--lab", first.name).returncode == 0
    _, told = watched.up("b", "--monitoring")  # as it is
    assert told["already_up"] and set(told["monitoring"].values()) < pages


def test_without_it_is_as_before_and_cannot_be_added(watched: Watched, engine: Engine) -> None:
    it, told = watched.up("a")
    assert told["monitoring"] == {}
    assert find_monitoring(engine, project(it)) is None
    words = ("up", "--lab", it.name, "--backend", "compose", "--no-probe", "--monitoring")
    done = it.command(*words)
    assert done.returncode != 0
    assert "is up without Prometheus and Grafana" in done.stderr
    assert it.command("status", "--lab", it.name).returncode == 0


def test_an_image_that_cannot_be_had_leaves_nothing(
    watched: Watched, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPLAB_GRAFANA_IMAGE", "127.0.0.1:1/no-such-image:1")
    it = TestLab(f"m{os.getpid()}a", watched._home)
    done = it.command("up", "--lab", it.name, "--backend", "compose", "--no-probe", "--monitoring")
    assert done.returncode != 0
    assert "the image 127.0.0.1:1/no-such-image:1 cannot be had" in done.stderr
    assert "without MONITORING" in done.stderr
    assert parts(engine, project(it)) == []
