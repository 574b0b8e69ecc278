"""The exporter at the gateway of a lab's own Prometheus; addresses of the loopback stand in."""

import http.client
import logging
import socket
from collections.abc import Iterator
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
import uvicorn

from jobs.server.gateways import Gateways
from jobs.server.registry import Place
from jobs.server.store import Store
from tests.jobs.run_folders import ended
from tests.jobs.server_labs import eventually

NEAR = IPv4Interface("127.0.0.2/24")  # who asks from 127.0.0.1 is on its network
OTHER = IPv4Interface("127.0.0.3/24")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    (tmp_path / "state").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "state"))
    (tmp_path / "place").mkdir()
    return Place(tmp_path / "place")


@pytest.fixture
def port() -> int:
    with socket.socket() as some:
        some.bind(("0.0.0.0", 0))
        number: int = some.getsockname()[1]
    return number


@pytest.fixture
def gateways(place: Place, tmp_path: Path, port: int) -> Iterator[Gateways]:
    ended(tmp_path / "runs", "secret-run")
    made = Gateways(place, Store(tmp_path / "runs"), port)
    yield made
    made.close()


def ask(
    port: int,
    path: str = "/metrics",
    host: str | None = None,
    at: str = str(NEAR.ip),
    source: str = "127.0.0.1",
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(at, port, timeout=20, source_address=(source, 0))
    try:
        connection.request("GET", path, headers={"Host": host or f"exporter:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def refused(port: int, at: str) -> bool:
    with socket.socket() as some:
        return some.connect_ex((at, port)) != 0


def test_metrics_and_nothing_else_to_those_of_its_network(
    gateways: Gateways, place: Place, port: int
) -> None:
    place.note_gateway("a", NEAR)
    gateways.keep_up()
    for host in (f"exporter:{port}", f"{NEAR.ip}:{port}"):
        status, text = ask(port, host=host)
        assert status == 200
        assert 'run_id="secret-run"' in text
    for path in ("/", "/api/state", "/status.css", "/../etc/passwd"):
        assert ask(port, path)[0] == 404
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "exporter:1", "evil.example"):
        status, text = ask(port, host=host)
        assert status == 421
        assert "secret" not in text
    status, text = ask(port, source="127.0.1.1")  # of another network
    assert status == 421
    assert "secret" not in text
    assert refused(port, "127.0.0.1")  # at no other address of this machine


def test_it_comes_and_goes_with_what_the_folder_says(
    gateways: Gateways, place: Place, port: int
) -> None:
    gateways.keep_up()
    assert refused(port, str(NEAR.ip))
    place.note_gateway("a", NEAR)
    place.note_gateway("b", OTHER)
    for _ in range(3):
        gateways.keep_up()
    assert [ask(port, at=str(it.ip))[0] for it in (NEAR, OTHER)] == [200, 200]
    place.note_gateway("a", None)
    gateways.keep_up()
    assert refused(port, str(NEAR.ip))
    assert ask(port, at=str(OTHER.ip))[0] == 200
    gateways.close()
    assert refused(port, str(OTHER.ip))


def test_one_that_cannot_listen_yet_is_tried_again_and_said_once(
    gateways: Gateways, place: Place, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    place.note_gateway("a", NEAR)
    place.note_gateway("gone", IPv4Interface("192.0.2.1/24"))  # nobody has this address
    with caplog.at_level(logging.WARNING), socket.socket() as taken:
        taken.bind((str(NEAR.ip), port))
        taken.listen()
        for _ in range(3):
            gateways.keep_up()
    said = [record.getMessage() for record in caplog.records]
    assert sorted(said) == [
        f"no metrics at 127.0.0.2:{port}: Address already in use",
        f"no metrics at 192.0.2.1:{port}: Cannot assign requested address",
    ]
    gateways.keep_up()
    assert ask(port)[0] == 200


def test_the_gateway_of_a_lab_that_is_gone_is_forgotten(place: Place) -> None:
    place.register("b")  # by this process, which lives
    place.note_gateway("b", NEAR)
    place.note_gateway("gone", OTHER)
    (place.path / "gateways" / "nonsense").write_text("no address")
    assert place.gateways() == {"b": NEAR, "gone": OTHER}
    assert place.labs() == {"b"}
    assert place.gateways() == {"b": NEAR}
    assert [file.name for file in (place.path / "gateways").iterdir()] == ["b"]


def test_a_listener_that_died_is_replaced(
    gateways: Gateways, place: Place, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.note_gateway("a", NEAR)
    with monkeypatch.context() as dead:
        dead.setattr(uvicorn.Server, "run", lambda *_: None)  # its socket stays open
        gateways.keep_up()
        (listener,) = gateways._listeners.values()
        assert eventually(lambda: not listener.alive)
    gateways.keep_up()
    assert ask(port)[0] == 200
