"""A real exporter meets the Prometheus of a lab, for which addresses of the loopback stand in."""

import os
import socket
import urllib.request
from ipaddress import IPv4Interface
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.errors import LabExists
from cluster.lab import Lab
from cluster.nodes import Monitoring
from jobs.server import monitoring
from jobs.server import process as verbs
from jobs.server.monitoring import Watching, watch
from jobs.server.ports import GATEWAY_PORT
from jobs.server.process import Serving, serving
from tests.jobs.run_folders import ended
from tests.jobs.server_labs import Labs, eventually

PAGES = {"grafana": "http://127.0.0.1:3000/", "prometheus": "http://127.0.0.1:9090/"}


@pytest.fixture
def gateway() -> IPv4Interface:
    """Of this process alone, though tests run side by side."""
    number = os.getpid() % 65536
    return IPv4Interface(f"127.{number // 256}.{number % 256}.2/8")


def lab(name: str, gateway: IPv4Interface | None) -> Lab:
    watched = Monitoring(gateway, PAGES) if gateway else None
    stand_in: Any = SimpleNamespace(name=name, nodes=SimpleNamespace(monitoring=watched))
    return cast(Lab, stand_in)


def listens(gateway: IPv4Interface) -> bool:
    with socket.socket() as some:
        return some.connect_ex((str(gateway.ip), GATEWAY_PORT)) == 0


def test_from_up_to_down(tmp_path: Path, labs: Labs, gateway: IPv4Interface) -> None:
    ended(tmp_path / "runs", "one")
    with serving(tmp_path / "runs", "a") as exporter:
        labs.up("a")
    assert watch(exporter, lab("a", gateway), asked=True) == Watching(PAGES)
    with urllib.request.urlopen(f"http://{gateway.ip}:{GATEWAY_PORT}/metrics", timeout=20) as it:
        assert b'run_id="one"' in it.read()

    with serving(tmp_path / "runs", "b") as exporter:
        labs.up("b")
    assert watch(exporter, lab("b", None), asked=False) == Watching()
    labs.down("a")
    assert eventually(lambda: not listens(gateway))
    labs.down("b")


def test_a_lab_that_is_up_again_without_is_not_answered(
    tmp_path: Path, labs: Labs, gateway: IPv4Interface
) -> None:
    with serving(tmp_path / "runs", "a") as exporter:
        labs.up("a")
    assert watch(exporter, lab("a", gateway), asked=True).fault is None
    assert watch(exporter, lab("a", None), asked=False) == Watching()
    assert eventually(lambda: not listens(gateway))


def test_what_was_asked_for_is_there_or_it_fails(tmp_path: Path, labs: Labs) -> None:
    with serving(tmp_path / "runs", "a") as exporter:
        labs.up("a")
    with pytest.raises(LabExists, match='lab "a" is up without Prometheus') as told:
        watch(exporter, lab("a", None), asked=True)
    assert told.value.fix == ("make cluster-down LAB=a && make cluster-up LAB=a MONITORING=1",)


def test_without_an_exporter_it_is_said_why(gateway: IPv4Interface) -> None:
    found = watch(Serving(fault="uvicorn is not installed"), lab("a", gateway), asked=True)
    assert found == Watching(PAGES, "uvicorn is not installed")


def test_an_address_that_nobody_has_is_told(
    tmp_path: Path, labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "ANSWER_TIMEOUT_S", 0.5)
    with serving(tmp_path / "runs", "a") as exporter:
        labs.up("a")
    found = watch(exporter, lab("a", IPv4Interface("255.255.255.255/32")), asked=True)
    assert found.pages == PAGES
    assert "does not answer Prometheus at 255.255.255.255:9440" in (found.fault or "")


def test_a_folder_that_is_gone_is_told(
    tmp_path: Path, labs: Labs, gateway: IPv4Interface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "MODULE", "jobs.no_such_module")
    with serving(tmp_path / "runs", "a") as exporter:
        labs.up("a")
    assert exporter.place is not None
    exporter.place.remove()
    found = watch(exporter, lab("a", gateway), asked=True)
    assert found.pages == PAGES
    assert "No such file" in (found.fault or "")
