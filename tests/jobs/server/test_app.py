"""What the exporter answers, over a real connection: who may ask, and what a page may contain."""

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from jobs.server.app import build_app
from jobs.server.notes import notes
from jobs.server.serve import listen
from jobs.server.store import Store
from tests.jobs.run_folders import description, ended, going_on

SCRIPT = "<script>alert(1)</script>"


class Answer:
    """One answer of the exporter."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read().decode()

    def json(self) -> Any:
        return json.loads(self.text)


class Asking:
    """Asks an application that listens on a port of its own."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        listener = listen(range(19440, 19640))
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            build_app(Store(runs), self.port), log_config=None, lifespan="off", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()

    def ask(self, path: str, host: str | None = None, method: str = "GET") -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {"Host": host or f"127.0.0.1:{self.port}"}
        try:
            connection.request(method, path, headers=headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def raw(self, request: str) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request.encode())
            return connection.makefile("rb").readline().decode()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """One with a single finished run, for all who change nothing."""
    asking = Asking(tmp_path_factory.mktemp("quiet") / "runs")
    ended(asking.runs, "secret-run")
    yield asking
    asking.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Asking]:
    asking = Asking(tmp_path / "runs")
    yield asking
    asking.close()


PAGES = ("/", "/metrics", "/api/state", "/status.css")


@pytest.mark.parametrize("path", PAGES)
def test_every_page_says_what_a_browser_may_do_with_it(quiet: Asking, path: str) -> None:
    answer = quiet.ask(path)
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "script" not in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_every_page_answers_before_there_are_runs(server: Asking) -> None:
    assert [server.ask(path).status for path in PAGES] == [200] * 4
    assert server.ask("/metrics").text == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "[::1]"])
def test_our_own_names_are_answered(quiet: Asking, host: str) -> None:
    assert quiet.ask("/metrics", f"{host}:{quiet.port}").status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}",
        "localhost",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "evil.example@localhost:{port}",
        "localhost:{port}.evil.example",
        "127.0.0.1:{port}, evil.example",
        "[::2]:{port}",
        "0.0.0.0:{port}",
    ],
)
def test_a_foreign_host_is_refused_and_told_nothing(quiet: Asking, host: str) -> None:
    for path in (*PAGES, "/nothing"):
        answer = quiet.ask(path, host.format(port=quiet.port))
        assert answer.status == 421
        assert "secret" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "request_text",
    [
        "GET /metrics HTTP/1.0\r\n\r\n",
        "GET /metrics HTTP/1.1\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1:{port}\r\n\r\n",
        "GET http://127.0.0.1/metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "nonsense\r\n\r\n",
    ],
)
def test_no_host_two_hosts_or_nonsense_are_refused(quiet: Asking, request_text: str) -> None:
    status = int(quiet.raw(request_text.format(port=quiet.port)).split()[1])
    assert status in (400, 421)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(quiet: Asking, method: str) -> None:
    assert [quiet.ask(path, method=method).status for path in PAGES] == [405] * 4


def test_nothing_else_can_be_read(quiet: Asking) -> None:
    assert quiet.ask("/metrics", method="HEAD").text == ""
    assert quiet.ask("/../../../../../etc/passwd").status == 404
    assert quiet.ask("/runs/secret-run/run.json").status == 404


def test_metrics_in_the_form_that_every_prometheus_reads(quiet: Asking) -> None:
    plain = quiet.ask("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name for family in text_string_to_metric_families(plain.text)}
    assert {"ddplab_run_info", "ddplab_steps", "ddplab_communication_efficiency_ratio"} <= families


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_names_and_reasons_that_are_markup_are_shown_as_text(server: Asking) -> None:
    job = {"name": SCRIPT, "ddp": {"algorithm": '"><img src=x onerror=alert(1)>'}}
    with going_on(server.runs, "run") as ranks:
        run = ranks.folder.read("run.json") or {}
        changed = {**run, "job": {**run["job"], **job}, "lab": {**run["lab"], "name": SCRIPT}}
        ranks.folder.write("run.json", changed)
        (server.runs / "<b onclick=x>").mkdir()
        (server.runs / "<b onclick=x>" / "run.json").write_text(f'{{"run_id": "{SCRIPT}"}}')
        page = Tags(server.ask("/").text)
    assert not {"script", "img"} & set(page.tags)
    assert page.handlers == []
    assert SCRIPT in page.words
    assert "<b onclick=x>" in page.words
    assert "<img src=x onerror=alert(1)>" in page.words


def test_the_page_says_what_there_is(server: Asking) -> None:
    assert "make run JOB=hier" in server.ask("/").text
    ended(server.runs, "done", steps=5, created_at="2026-11-30T10:00:00")
    with going_on(server.runs, "live", created_at="2026-11-30T11:00:00") as ranks:
        ranks.headers()
        ranks.baseline()
        ranks.step(0)
        ranks.text(0, "broken\n")
        words = " ".join(Tags(server.ask("/").text).words.split())
        assert "Left out live" in words
        assert "rank0.jsonl:23" in words
        assert "done: ok, step 5 of 30" in words
        assert "Step 286 ms, of that 87 ms waiting for other ranks" in words
        assert "without network 198 ms; efficiency 69 %; predicted 279 ms" in words
        assert "Paced compute: a step computes for at least 180 ms." in words


def test_figures_that_could_be_taken_for_others_are_explained() -> None:
    run = description("run")
    assert notes(run) == ["Paced compute: a step computes for at least 180 ms."]
    free = {**run, "job": {**run["job"], "pace": None}}
    assert notes(free) == []
    crowded = {**free, "host": {"cores": 2}}
    assert notes(crowded) == ["4 ranks share 2 cores: their computing varies."]
    model = {"kind": "paced", "layers": 4, "layer_forward_ms": 5, "layer_backward_ms": 10}
    scaled = {**run["job"], "pace": None, "model": {**model, "scale": 1000}}
    assert notes({**run, "job": scaled}) == [
        "Paced compute: a step computes for at least 60 ms.",
        "1 byte stands for 1,000; latency is not scaled.",
    ]


def test_the_state_document_has_every_run(server: Asking) -> None:
    ended(server.runs, "done", steps=5, created_at="2026-11-30T10:00:00")
    with going_on(server.runs, "live", created_at="2026-11-30T11:00:00") as ranks:
        ranks.headers()
        ranks.step(0, loss=float("nan"))
        document = server.ask("/api/state").json()
    assert document["schema"] == 1
    assert document["runs_folder"] == str(server.runs)
    assert document["left_out"] == []
    live, done = document["runs"]
    assert (live["run_id"], live["state"], live["steps_done"], live["steps_asked"]) == (
        *("live", "running", 1, 30),
    )
    assert live["summary"]["step_seconds"]["mean"] == 0.286
    assert live["summary"]["loss_last"] is None
    assert [rank["last_step"] for rank in live["ranks"]] == [1, 1, 1, 1]
    assert live["ranks"][3]["phase_seconds"]["forward"] == 0.061
    assert [link["configured"] for link in live["links"]] == [25e6] * 4
    assert (done["state"], done["summary"]["status"], done["steps_done"]) == ("ok", "ok", 5)


def test_many_ask_at_once(server: Asking) -> None:
    ended(server.runs, "run")
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(server.ask("/metrics").text))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 16
    assert len(set(texts)) == 1


def test_every_colour_of_the_style_is_used(quiet: Asking) -> None:
    style = quiet.ask("/status.css").text
    assert set(re.findall(r"(--\w+):", style)) == set(re.findall(r"var\((--\w+)\)", style))
