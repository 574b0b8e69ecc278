"""All that dashboard, rules and alerts ask, asked of a real Prometheus that saw a real run."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.runfolder import RunFolder
from tests.images.expressions import PROMETHEUS, recorded, rules, targets
from tests.live.lab import TestLab, lab
from tests.live.scraping import Prometheus, scraping

pytestmark = [pytest.mark.netns, pytest.mark.prometheus, pytest.mark.timeout(240)]

STEPS = 50
SEEN = "last_over_time(({})[10m:2s])"
"""What an expression was when it last was anything: rates are gone once a run has ended."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    with lab(tmp_path_factory.mktemp("monitored"), "2x2", "--rate", "100mbit") as it:
        yield it


@pytest.fixture(scope="module")
def prometheus(watched: TestLab) -> Iterator[Prometheus]:
    """With the configuration that containers get, but for where the exporter is."""
    shown = watched.command("status", "--lab", watched.name, "--json")
    (exporter,) = [each["exporter"] for each in json.loads(shown.stdout)["labs"]]
    folder = watched.home / "prometheus"
    folder.mkdir()
    for file in PROMETHEUS.glob("*.yml"):
        text = file.read_text().replace("exporter:9440", exporter.split("/")[2])
        (folder / file.name).write_text(text)
    with scraping(watched.home, folder / "prometheus.yml", exporter) as it:
        yield it


@pytest.fixture(scope="module")
def summary(watched: TestLab, prometheus: Prometheus) -> dict[str, Any]:
    """A whole run that waits for its links, and is known to."""
    sets = ("--set", f"train.steps={STEPS}", "--set", "data.batch_size=1")
    running = watched.start("run", "hier", "--lab", watched.name, "--json", *sets)
    try:
        prometheus.until('ALERTS{alertname="CrossNodeBottleneck", alertstate="firing"}')
        out, err = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 0, err
    document: dict[str, Any] = json.loads(out)
    folder = RunFolder(Path(watched.runs / document["run_id"]))
    folder.write("summary.json", {**document, "scaling_efficiency_ratio": 0.875})
    prometheus.until("ddplab_scaling_efficiency_ratio == 0.875")
    return document


def test_every_panel_shows_something(prometheus: Prometheus, summary: dict[str, Any]) -> None:
    withheld = summary["communication_efficiency_ratio"] is None  # on a machine too busy
    for target in targets():
        expression = target["expr"].replace("$run", summary["run_id"])
        if withheld and "communication_efficiency" in expression:
            continue
        answer = prometheus.until(SEEN.format(expression))
        for series in answer:
            legend = re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))
            assert set(legend) <= series["metric"].keys(), expression


def test_every_rule_is_reckoned(prometheus: Prometheus, summary: dict[str, Any]) -> None:
    for name in sorted(recorded()):
        answer = prometheus.query(SEEN.format(f'{name}{{run_id="{summary["run_id"]}"}}'))
        assert answer, name
        assert all(float(series["value"][1]) >= 0 for series in answer), name
    for expression in rules():
        prometheus.query(expression)  # none of them joins what does not match


def test_rules_say_what_the_summary_says(prometheus: Prometheus, summary: dict[str, Any]) -> None:
    """Roughly: rates are of 15 s, and the summary of the whole run."""

    def mean(expression: str, *labels: str) -> dict[tuple[str, ...], float]:
        run = f'run_id="{summary["run_id"]}"'
        return prometheus.values(f"avg_over_time({expression}{{{run}}}[10m])", *labels)

    phases = mean("run_phase:ddplab_phase_seconds:mean15s", "phase")
    assert set(phases) == {(phase,) for phase in summary["phase_seconds"]}
    step_s = sum(phases.values())
    assert step_s == pytest.approx(sum(summary["phase_seconds"].values()), rel=0.3)
    for (_, direction), use in mean("link:ddplab_use:ratio15s", "node", "direction").items():
        assert direction in ("out", "in")
        assert 0 < use <= 1.05
    waits = [f"run:ddplab_{kind}:ratio15s" for kind in ("network_wait", "straggler_wait")]
    exposed = mean("run:ddplab_exposed:ratio15s")[()]
    assert sum(mean(wait)[()] for wait in waits) == pytest.approx(exposed, abs=1e-6)


def test_nothing_was_told_that_was_not_so(prometheus: Prometheus, summary: dict[str, Any]) -> None:
    assert summary["status"] == "ok"
    for name in ("StalledRun", "ExporterDown"):
        fired = f'max_over_time(ALERTS{{alertname="{name}", alertstate="firing"}}[10m])'
        assert prometheus.query(fired) == []
