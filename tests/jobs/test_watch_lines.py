"""Where runs can be watched, under the screens of up and status."""

import json
import re
import urllib.request
from dataclasses import replace
from typing import Any

import pytest

import cluster.lab
from cluster.lab import Lab
from jobs.report.watch_lines import page_lines, unwatched_lines, watch_lines
from jobs.server import monitoring, process
from jobs.server.monitoring import Watching
from tests.jobs.command import call
from tests.jobs.samples import flat, text_of

ADDRESSES = ("http://127.0.0.1:9539/", None, "http://127.0.0.1:9440/", "http://127.0.0.1:9440/")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_each_exporter_has_a_line_and_an_address_is_never_cut(width: int) -> None:
    first, second = text_of(watch_lines(ADDRESSES), width).splitlines()
    assert first == f"  watch   {ADDRESSES[2]}".ljust(44) + "runs, and /metrics for Prometheus"
    assert second.startswith(f"  watch   {ADDRESSES[0]} ")
    assert watch_lines([None]) == []


def test_each_page_of_a_lab_has_a_line() -> None:
    pages = {"prometheus": "http://127.0.0.1:9090/", "grafana": "http://127.0.0.1:3000/"}
    first, second = text_of(page_lines(pages), 80).splitlines()
    assert first == "  watch   http://127.0.0.1:3000/".ljust(44) + "Grafana"
    assert second == "  watch   http://127.0.0.1:9090/".ljust(44) + "Prometheus"
    assert page_lines({}) == []


@pytest.mark.usefixtures("own_folder")
def test_up_tells_the_pages_of_its_lab_and_why_they_stay_empty(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {"grafana": "http://127.0.0.1:3000/"}
    asked = []

    def watch(_exporter: object, _lab: Lab, wanted: bool) -> Watching:
        asked.append(wanted)
        return Watching(pages, "the exporter does not answer Prometheus")

    monkeypatch.setattr(monitoring, "watch", watch)
    monkeypatch.setattr(process, "find_spec", lambda _name: None)
    monkeypatch.setattr(cluster.lab, "bring_up", lambda *_: replace(lab, already_up=True))
    code, out, _ = call(capsys, "up", "--monitoring")
    assert (code, asked) == (0, [True])
    assert re.search(r"^  watch   http://127\.0\.0\.1:3000/ +Grafana$", out, re.MULTILINE)
    assert "watch not possible: jinja2 is not installed" in flat(out)
    assert "watch not possible: the exporter does not answer Prometheus" in flat(out)
    code, out, _ = call(capsys, "up", "--json")
    assert (code, asked) == (0, [True, False])
    told = json.loads(out)
    assert told["monitoring"] == pages
    assert told["watch_fault"].startswith("jinja2 is not installed")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_why_there_is_none(width: int) -> None:
    fault = "uvicorn is not installed; make setup, or: pip install 'ddplab[server]'"
    assert flat(text_of(unwatched_lines(fault, width), width)).strip() == (
        f"watch not possible: {fault}"
    )


@pytest.mark.usefixtures("own_folder")
def test_up_tells_where_to_watch_also_as_json(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring_up(*_: Any) -> Lab:
        with urllib.request.urlopen(address_now(), timeout=20) as answer:
            assert answer.status == 200  # it is there before the lab is
        return replace(lab, already_up=True)

    monkeypatch.setattr(cluster.lab, "bring_up", bring_up)
    code, out, _ = call(capsys, "up")
    assert code == 0
    assert re.search(r"^  watch   http://127\.0\.0\.1:94\d\d/ ", out, re.MULTILINE)
    code, out, _ = call(capsys, "up", "--json")
    told = json.loads(out)
    assert re.fullmatch(r"http://127\.0\.0\.1:94\d\d/", told["exporter"])
    assert told["watch_fault"] is None
    monkeypatch.setattr(monitoring, "watch", lambda *_: Watching(fault="nobody answers there"))
    assert json.loads(call(capsys, "up", "--json")[1])["watch_fault"] == "nobody answers there"


def address_now() -> str:
    """Of the only exporter there is."""
    ((place,),) = [process.Place.all(process.exporters_folder())]
    address = process.Serving(place).address()
    assert address is not None
    return address


@pytest.mark.usefixtures("own_folder")
def test_up_without_the_packages_says_what_to_install(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "find_spec", lambda _name: None)
    monkeypatch.setattr(cluster.lab, "bring_up", lambda *_: replace(lab, already_up=True))
    code, out, _ = call(capsys, "up")
    assert code == 0
    assert "watch not possible: jinja2 is not installed; make setup" in flat(out)
    code, out, _ = call(capsys, "up", "--json")
    assert (code, json.loads(out)["exporter"]) == (0, None)
