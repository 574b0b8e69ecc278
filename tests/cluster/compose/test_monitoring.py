"""The network, ports and images of Prometheus and Grafana; the engine is stood in for."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.compose.engine import Engine
from cluster.compose.monitoring import choose_management, fetch_images, find_monitoring
from cluster.errors import HostError
from cluster.topology import BENCHMARK_RANGE

FABRIC = IPv4Network("198.18.0.0/24")
NETWORK_LABEL = "com.docker.compose.network"


class StandIn:
    """What an engine knows of one project."""

    def __init__(self, networks: list[Any], pages: dict[str, Any], images: set[str]) -> None:
        self._networks, self._pages, self._images = networks, pages, images
        self.environment = {"PATH": os.environ["PATH"]}

    def networks(self, project: str) -> list[Any]:
        assert project == "ddplab-a"
        return self._networks

    def containers(self, project: str, service: str) -> list[Any]:
        assert project == "ddplab-a"
        found = self._pages.get(service)
        return [] if found is None else [{"NetworkSettings": {"Ports": found}}]

    def has_image(self, name: str) -> bool:
        return name in self._images


def engine(
    networks: list[Any] | None = None,
    pages: dict[str, Any] | None = None,
    images: set[str] | None = None,
) -> Engine:
    return cast(Engine, StandIn(networks or [], pages or {}, images or set()))


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_the_last_free_part_of_the_range_is_taken() -> None:
    last, before = IPv4Network("198.19.255.0/24"), IPv4Network("198.19.254.0/24")
    assert choose_management({}, FABRIC, {}).subnet == last
    assert choose_management({last: "another lab"}, FABRIC, {}).subnet == before
    assert choose_management({}, last, {}).subnet == before
    assert choose_management({IPv4Network("198.19.254.0/23"): "x"}, FABRIC, {}).subnet == (
        IPv4Network("198.19.253.0/24")
    )
    with pytest.raises(HostError, match=r"no part of 198.18.0.0/15 is free"):
        choose_management({BENCHMARK_RANGE: "x"}, FABRIC, {})


def test_what_the_file_is_filled_in_with() -> None:
    environ = {"DDPLAB_GRAFANA_PORT": "13000", "DDPLAB_PROMETHEUS_PORT": "19090"}
    assert choose_management({}, FABRIC, environ).environment() == {
        "DDPLAB_MANAGEMENT_SUBNET": "198.19.255.0/24",
        "DDPLAB_MANAGEMENT_GATEWAY": "198.19.255.1",
        "DDPLAB_GRAFANA_PORT": "13000",
        "DDPLAB_PROMETHEUS_PORT": "19090",
    }


def test_a_port_that_is_taken_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as port:
        firsts = {"grafana": port, "prometheus": port + 200}
        monkeypatch.setattr("cluster.compose.monitoring.FIRST_PORT", firsts)
        chosen = choose_management({}, FABRIC, {}).ports
        assert port < int(chosen["grafana"]) < port + 100
        monkeypatch.setattr("cluster.compose.monitoring.PORTS_TRIED", 1)
        with pytest.raises(HostError, match=f"no port of 127.0.0.1 is free from {port}"):
            choose_management({}, FABRIC, {})


def network(name: str, **config: str) -> dict[str, Any]:
    return {"Labels": {NETWORK_LABEL: name}, "IPAM": {"Config": [config]}}


def test_a_lab_that_is_watched_is_found() -> None:
    shown = [{"HostIp": "127.0.0.1", "HostPort": "3001"}]
    found = find_monitoring(
        engine(
            [
                network("fabric", Subnet="198.18.0.0/24"),
                network("management", Subnet="198.19.255.0/24", Gateway="198.19.255.7"),
            ],
            {"grafana": {"3000/tcp": shown}, "prometheus": {"9090/tcp": None}},
        ),
        "ddplab-a",
    )
    assert found is not None
    assert found.gateway == IPv4Interface("198.19.255.7/24")
    assert found.pages == {"grafana": "http://127.0.0.1:3001/"}  # the other one has ended


def test_a_gateway_that_nobody_named_is_the_first_address() -> None:
    found = find_monitoring(engine([network("management", Subnet="10.1.0.0/28")]), "ddplab-a")
    assert found is not None
    assert (found.gateway, found.pages) == (IPv4Interface("10.1.0.1/28"), {})


def test_nodes_alone_are_not_watched() -> None:
    unlabelled = {"Labels": None, "IPAM": {"Config": None}}
    networks = [network("fabric", Subnet="198.18.0.0/24"), unlabelled]
    assert find_monitoring(engine(networks), "ddplab-a") is None


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command that notes what it was asked; pulls every image but those named `none`."""
    log = tmp_path / "log"
    script = tmp_path / "docker"
    script.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {log}\n'
        'case "$*" in\n'
        "*config*) echo prom:1; echo none:1;;\n"
        "*none*) echo 'no such host' >&2; exit 1;;\n"
        "esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return log


@contextmanager
def never() -> Iterator[None]:
    raise AssertionError("nothing is to be fetched")
    yield


def test_images_that_are_here_are_not_pulled(docker: Path) -> None:
    fetch_images(engine(images={"prom:1", "none:1"}), never)
    (asked,) = docker.read_text().splitlines()
    assert asked.endswith("--profile monitoring config --images grafana prometheus")


def test_only_what_is_missing_is_pulled_and_a_fault_has_a_way_out(docker: Path) -> None:
    told: list[str] = []

    @contextmanager
    def timed() -> Iterator[None]:
        told.append("begins")
        yield
        told.append("ends")

    fetch_images(engine(images={"none:1"}), timed)
    assert docker.read_text().splitlines()[1:] == ["pull --quiet prom:1"]
    assert told == ["begins", "ends"]
    with pytest.raises(HostError, match="the image none:1 cannot be had") as fault:
        fetch_images(engine(images={"prom:1"}), timed)
    assert "no such host" in str(fault.value)
    assert "DDPLAB_GRAFANA_IMAGE" in str(fault.value)
