"""A real Prometheus scrapes the exporter while a job runs, after it, and when a rank is killed."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.runfolder import RunFolder
from tests.live.lab import ROOT, TestLab, lab
from tests.live.scene import agents
from tests.live.scraping import Prometheus, scraping
from tests.prometheus import find

pytestmark = [pytest.mark.netns, pytest.mark.prometheus, pytest.mark.timeout(200)]

DOCS = (ROOT / "docs" / "metrics.md").read_text()
SETS = (
    *("model.layers=4", "model.layer_forward_ms=10", "model.layer_backward_ms=20"),
    "model.scale=1",
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    with lab(tmp_path_factory.mktemp("watched"), "2x2", "--rate", "400mbit") as it:
        yield it


@pytest.fixture(scope="module")
def prometheus(watched: TestLab) -> Iterator[Prometheus]:
    """With the configuration that docs/metrics.md shows, but for the port; twice a second."""
    shown = watched.command("status", "--lab", watched.name, "--json")
    (exporter,) = [each["exporter"] for each in json.loads(shown.stdout)["labs"]]
    config = documented("# prometheus.yml").replace("127.0.0.1:9440", exporter.split("/")[2])
    file = watched.home / "prometheus.yml"
    file.write_text(config.replace("scrape_interval: 5s", "scrape_interval: 500ms"))
    with scraping(watched.home, file, exporter) as it:
        yield it


def documented(first_line: str) -> str:
    """The indented block of docs/metrics.md that begins so."""
    (block,) = [block for block in blocks() if block.startswith(first_line)]
    return block


def blocks() -> list[str]:
    found = re.findall(r"(?:^ {4}.*\n)+", DOCS, re.MULTILINE)
    return [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in found]


@pytest.fixture(scope="module")
def summary(watched: TestLab, prometheus: Prometheus) -> dict[str, Any]:
    """A whole run, asked about while it went on."""
    sets = [word for setting in (*SETS, "train.steps=15") for word in ("--set", setting)]
    words = ["run", "7b-thousandth", "--lab", watched.name, "--json", *sets]
    running = watched.start(*words)
    try:
        prometheus.until("ddplab_run_up == 1")
        prometheus.until("ddplab_steps_total > 0")
        assert len(prometheus.query('ddplab_phase_seconds_total{phase="forward"} > 0')) == 4
        assert len(prometheus.query("ddplab_comm_exposed_seconds_total")) == 4
        assert len(prometheus.query('ddplab_comm_bytes_total{scope="inter_node"} > 0')) == 4
        prometheus.scraped()
        out, err = running.communicate(timeout=100)
    finally:
        running.kill()
    assert running.returncode == 0, err
    document: dict[str, Any] = json.loads(out)
    prometheus.until("ddplab_steps_total == 15 and ddplab_run_up == 0")
    return document


def test_a_finished_run_answers_with_what_its_summary_says(
    prometheus: Prometheus, summary: dict[str, Any]
) -> None:
    run_id = summary["run_id"]
    values = prometheus.values
    assert values("ddplab_run_info", "run_id", "job", "algorithm") == {
        (run_id, "7b-thousandth", "hierarchical"): 1
    }
    efficiency = summary["communication_efficiency_ratio"]  # withheld on a machine too busy
    answers = list(values("ddplab_communication_efficiency_ratio").values())
    assert answers == ([] if efficiency is None else [efficiency])
    means = values("avg by (phase) (ddplab_phase_seconds_total) / 15", "phase")
    for phase, seconds in summary["phase_seconds"].items():
        assert means[(phase,)] == pytest.approx(seconds, rel=1e-6, abs=1e-8)
    busy = values("avg (ddplab_comm_busy_seconds_total) / 15")[()]
    assert busy == pytest.approx(summary["comm_seconds"]["busy"], rel=1e-6)
    hidden = values("avg (ddplab_comm_hidden_seconds_total) / 15")[()]
    assert 0 < hidden <= busy
    per_node = values('max (sum by (node) (ddplab_comm_bytes_total{scope="inter_node"})) / 15')
    assert per_node[()] == summary["inter_node_bytes_per_step"]
    rates = values('ddplab_link_rate_bytes_per_second{kind="configured"}', "node", "direction")
    assert rates == {(f"node{k}", way): 50e6 for k in (0, 1) for way in ("out", "in")}
    assert values("ddplab_scaling_efficiency_ratio") == {}


def test_what_the_documentation_asks_is_answered(
    prometheus: Prometheus, summary: dict[str, Any]
) -> None:
    assert summary["status"] == "ok"
    questions = [block for block in blocks() if "ddplab_" in block and "scrape" not in block]
    assert len(questions) == 5
    for question in questions:
        answer = prometheus.query(question)
        assert answer, question
        assert all(float(series["value"][1]) >= 0 for series in answer)


def test_the_documented_configuration_is_one(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(documented("# prometheus.yml"))
    checked = subprocess.run(
        [str(find("promtool")), "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_scaling_efficiency_that_is_written_later_answers(
    watched: TestLab, prometheus: Prometheus, summary: dict[str, Any]
) -> None:
    folder = RunFolder(watched.runs / summary["run_id"])
    folder.write("summary.json", {**summary, "scaling_efficiency_ratio": 0.875})
    (series,) = prometheus.until("ddplab_scaling_efficiency_ratio")
    assert series["metric"]["run_id"] == summary["run_id"]
    assert float(series["value"][1]) == 0.875


def test_series_of_killed_ranks_go_and_counters_of_the_run_stay(
    watched: TestLab, prometheus: Prometheus, summary: dict[str, Any]
) -> None:
    sets = [word for setting in (*SETS, "train.steps=1000") for word in ("--set", setting)]
    running = watched.start("run", "7b-thousandth", "--lab", watched.name, *sets)
    try:
        (series,) = prometheus.until("ddplab_steps_total > 3 and ddplab_run_up == 1")
        run_id = series["metric"]["run_id"]
        assert len(prometheus.query(f'ddplab_last_step{{run_id="{run_id}"}}')) == 4
        before = prometheus.values(f'ddplab_steps_total{{run_id="{run_id}"}}')[()]
        os.kill(agents(watched, 3)[0], signal.SIGKILL)
        _, said = running.communicate(timeout=60)
        assert running.returncode == 1, said
    finally:
        running.kill()
    prometheus.until(f'ddplab_run_up{{run_id="{run_id}"}} == 0')
    assert prometheus.values(f'ddplab_steps_total{{run_id="{run_id}"}}')[()] >= before
    assert prometheus.query('{__name__=~"ddplab_.+", rank!=""}') == []
    text = prometheus.scraped()
    assert 'rank="' not in text
    assert f'run_id="{summary["run_id"]}"' in text  # its result
