"""What the files of images/ ask Prometheus: every expression of the dashboard, rules and alerts."""

import json
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "images"
DASHBOARD = FOLDER / "grafana/dashboards/ddplab.json"
PROMETHEUS = FOLDER / "prometheus"


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def targets() -> list[dict[str, Any]]:
    """Every query of every panel."""
    return [target for panel in panels() for target in panel["targets"]]


def _all_rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(file.read_text()) for file in sorted(PROMETHEUS.glob("*.yml"))]
    return [rule for file in files for group in file.get("groups", ()) for rule in group["rules"]]


def rules() -> list[str]:
    """The expressions of all rules and alerts."""
    return [rule["expr"] for rule in _all_rules()]


def recorded() -> set[str]:
    """The names that recording rules make."""
    return {rule["record"] for rule in _all_rules() if "record" in rule}
