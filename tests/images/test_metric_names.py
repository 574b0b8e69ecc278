"""No panel, rule or alert names a metric that does not exist; Grafana's files belong together."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.server.table import HISTOGRAM, METRICS, PREFIX
from tests.images.expressions import DASHBOARD, FOLDER, panels, recorded, rules, targets

NAME = re.compile(r"[\w:]*ddplab_[\w:]+")
OF_PROMETHEUS = {"up", "ALERTS"}


def exposed() -> set[str]:
    """Every series that the exporter can have."""
    names = set()
    for metric in METRICS:
        ends = ("_bucket", "_count", "_sum") if metric.kind == HISTOGRAM else ("",)
        names |= {f"{PREFIX}{metric.name}{end}" for end in ends}
    return names


@pytest.mark.parametrize("expression", [*rules(), *(it["expr"] for it in targets())])
def test_every_metric_that_is_asked_for_exists(expression: str) -> None:
    named = set(NAME.findall(expression))
    assert named or OF_PROMETHEUS & set(re.findall(r"\w+", expression))
    assert named <= exposed() | recorded()


def test_every_recording_rule_is_used() -> None:
    used = " ".join([*rules(), *(it["expr"] for it in targets())])
    assert {name for name in recorded() if name not in used} == set()


def test_the_variable_of_the_dashboard_is_a_label_that_exists() -> None:
    (variable,) = dashboard()["templating"]["list"]
    assert variable["definition"] == variable["query"]["query"]
    assert variable["definition"] == "label_values(ddplab_run_info, run_id)"
    assert f"{PREFIX}run_info" in exposed()


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def test_all_of_it_asks_the_data_source_that_is_provisioned() -> None:
    source = yaml.safe_load(
        (FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    (provisioned,) = source["datasources"]
    asked = {"type": provisioned["type"], "uid": provisioned["uid"]}
    everybody = [*panels(), *targets(), *dashboard()["templating"]["list"]]
    assert [it["datasource"] for it in everybody] == [asked] * len(everybody)


def test_the_parts_are_where_the_container_looks_for_them() -> None:
    root = FOLDER.parent
    services = yaml.safe_load((root / "docker-compose.yml").read_text())["services"]
    mounts = {
        target: root / source
        for service in ("prometheus", "grafana")
        for source, target, *_ in (words.split(":") for words in services[service]["volumes"])
        if source.startswith(".")
    }
    provider = yaml.safe_load(
        (mounts["/etc/grafana/provisioning"] / "dashboards/ddplab.yml").read_text()
    )
    assert provider["providers"][0]["options"]["path"] in mounts
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert mounts[str(home.parent)] / home.name == DASHBOARD
    config = mounts["/etc/prometheus"] / "prometheus.yml"
    assert "--config.file=/etc/prometheus/prometheus.yml" in services["prometheus"]["command"]
    for name in yaml.safe_load(config.read_text())["rule_files"]:
        assert (config.parent / name).is_file()


def test_panels_lie_side_by_side_and_have_a_title_and_words() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["title"] and panel["description"].endswith(".")
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_what_was_promised_is_on_the_dashboard() -> None:
    text = json.dumps([panel["targets"] for panel in panels()])
    stacked = [
        panel["title"]
        for panel in panels()
        if panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking")
    ]
    assert "Where a step goes" in stacked
    for name in (
        *("run_phase:ddplab_phase_seconds:mean15s", "run:ddplab_network_wait:ratio15s"),
        *("link:ddplab_nic_bytes_while_busy:rate15s", "ddplab_link_rate_bytes_per_second"),
        *("ddplab_communication_efficiency_ratio", "run:ddplab_step_seconds:mean15s"),
    ):
        assert name in text
