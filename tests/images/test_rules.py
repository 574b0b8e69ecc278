"""Prometheus's rules and alerts against made-up runs, as promtool reckons them."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.prometheus import find

pytestmark = pytest.mark.prometheus

FOLDER = Path(__file__).parents[2] / "images" / "prometheus"
MIB = 2**20
EVERY_S = 2
RUN = {"run_id": "r", "job": "hier", "algorithm": "ring"}
Series = list[dict[str, str]]


def line(name: str, values: str, **labels: str) -> dict[str, str]:
    """A series of promtool; `values` such as 0+4x40: it begins with 0 and grows by 4."""
    inside = ", ".join(f'{key}="{value}"' for key, value in {**RUN, **labels}.items())
    return {"series": f"ddplab_{name}{{{inside}}}", "values": values}


def going_on(
    own_s: Sequence[float] = (1, 1),
    exposed_s: Sequence[float] = (1, 1),
    straggler_s: float = 0.25,
    link: int | None = 16 * MIB,
    up: str = "1x60",
    rows: int = 60,
) -> Series:
    """Two nodes with a rank each that do four steps every 2 s; what is given is for 2 s.

    Each node sends 16 MiB in them, within the second in which gradients are reduced. After
    `rows` times 2 s the run stands still.
    """

    def grows(by: float) -> str:
        return f"0+{by}x{rows} {rows * by}x{60 - rows}"

    made = [
        line("run_up", up),
        line("steps_total", grows(4)),
        line("step_duration_seconds_sum", grows(2)),
        line("step_duration_seconds_count", grows(4)),
    ]
    for rank, (own, exposed) in enumerate(zip(own_s, exposed_s, strict=True)):
        node = {"node": f"node{rank}"}
        labels = {**node, "rank": str(rank)}
        phases = {"forward": own / 2, "backward": own / 2, "comm_exposed": exposed}
        for phase, seconds in phases.items():
            made.append(line("phase_seconds_total", grows(seconds), **labels, phase=phase))
        made += [
            line("comm_exposed_seconds_total", grows(exposed), **labels),
            line("straggler_wait_seconds_total", grows(straggler_s), **labels),
            line("comm_busy_seconds_total", grows(1), **labels),
            line("last_step", grows(4), **labels),
            line("last_step_timestamp_seconds", grows(EVERY_S), **labels),
            line("nic_bytes_total", grows(16 * MIB), **node, direction="out"),
        ]
        limits = {"configured": link, "measured": 8 * MIB}
        for kind, rate in limits.items():
            if rate is not None:
                labels = {**node, "direction": "out", "kind": kind}
                made.append(line("link_rate_bytes_per_second", f"{rate}x60", **labels))
    return made


def promtool(folder: Path, series: Series, asked: Sequence[Mapping[str, Any]]) -> None:
    """promtool agrees, or says what it found instead."""
    tests = [{"interval": f"{EVERY_S}s", "input_series": series, "promql_expr_test": asked}]
    rules = [str(FOLDER / "rules.yml"), str(FOLDER / "alerts.yml")]
    file = folder / "test.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": rules, "evaluation_interval": "2s", "tests": tests}))
    command = [str(find("promtool")), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def asked(expression: str, values: Mapping[str, float], at_s: int = 40) -> dict[str, Any]:
    """That these labels have these values, rounded: promtool compares to the last bit."""
    samples = [{"labels": f"{{{labels}}}", "value": value} for labels, value in values.items()]
    return {
        "expr": f"round({expression}, 0.0625)",
        "eval_time": f"{at_s}s",
        "exp_samples": samples,
    }


def firing(*names: str, at_s: int = 60) -> dict[str, Any]:
    """That these alerts fire, and no others."""
    return asked(
        'count by (alertname) (ALERTS{alertstate="firing"})',
        {f'alertname="{name}"': 1 for name in names},
        at_s,
    )


def test_the_configuration_and_its_rules_are_accepted() -> None:
    command = [str(find("promtool")), "check", "config", str(FOLDER / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


def test_every_recording_rule_has_its_value(tmp_path: Path) -> None:
    run = 'run_id="r", job="hier", algorithm="ring"'
    nodes = [f'{run}, node="node{k}"' for k in (0, 1)]
    ranks = [f'{node}, rank="{k}"' for k, node in enumerate(nodes)]
    phases = {"forward": (0.125, 0.25), "backward": (0.125, 0.25), "comm_exposed": (0.25, 0.125)}
    promtool(
        tmp_path,
        going_on(own_s=(1, 2), exposed_s=(1, 0.5), straggler_s=0.25, link=32 * MIB),
        [
            asked("run:ddplab_step_seconds:mean15s", {run: 0.5}),
            asked(
                "rank_phase:ddplab_phase_seconds:mean15s",
                {
                    f'{ranks[k]}, phase="{phase}"': seconds[k]
                    for phase, seconds in phases.items()
                    for k in (0, 1)
                },
            ),
            asked(
                "run_phase:ddplab_phase_seconds:mean15s",
                {f'{run}, phase="{phase}"': sum(both) / 2 for phase, both in phases.items()},
            ),
            # of 2.25 s as the mean over ranks, 0.75 s and 0.25 s; in sixteenths
            asked("run:ddplab_exposed:ratio15s * 9", {run: 3}),
            asked("run:ddplab_straggler_wait:ratio15s * 9", {run: 1}),
            asked("run:ddplab_network_wait:ratio15s * 9", {run: 2}),
            asked(
                "link:ddplab_nic_bytes:rate15s / 2^20",
                {f'{node}, direction="out"': 8 for node in nodes},
            ),
            asked(
                "link:ddplab_nic_bytes_while_busy:rate15s / 2^20",
                {f'{node}, direction="out"': 16 for node in nodes},
            ),
            asked("link:ddplab_use:ratio15s", {f'{node}, direction="out"': 0.25 for node in nodes}),
            asked(
                "link:ddplab_use_while_busy:ratio15s",
                {f'{node}, direction="out"': 0.5 for node in nodes},
            ),
            asked("rank:ddplab_own_step:ratio15s", {ranks[0]: 1, ranks[1]: 2}),
        ],
    )


def test_a_run_that_does_no_step_has_no_rates(tmp_path: Path) -> None:
    names = 'count({__name__=~"(run|rank|run_phase|rank_phase):.+"})'
    promtool(tmp_path, going_on(rows=10), [asked(names, {"": 15}, 20), asked(names, {}, 40)])


@pytest.mark.parametrize(
    ("series", "names"),
    [
        (going_on(), ["CrossNodeBottleneck"]),
        (going_on(link=None), []),  # nothing limits the link
        (going_on(link=64 * MIB), []),  # a quarter full while gradients are reduced
        (going_on(own_s=(1.9, 1.9), exposed_s=(0.1, 0.1), straggler_s=0), []),  # it is hidden
        (going_on(own_s=(1, 1.5), exposed_s=(1, 0.5), straggler_s=0.5), ["SlowRank"]),
        (going_on(own_s=(1, 1.1), exposed_s=(1, 0.9), straggler_s=0.7), []),  # about as fast
        (going_on(own_s=(1, 1.5), exposed_s=(0.6, 0.1), straggler_s=0.1, link=None), []),
        (going_on(up="0x60"), []),  # it has ended, whatever it was
    ],
)
def test_what_holds_a_run_up_is_told(tmp_path: Path, series: Series, names: list[str]) -> None:
    promtool(tmp_path, series, [firing(*names)])


def test_an_alert_waits_before_it_fires(tmp_path: Path) -> None:
    promtool(tmp_path, going_on(), [firing(at_s=10), firing("CrossNodeBottleneck", at_s=16)])


def test_the_slow_rank_is_named(tmp_path: Path) -> None:
    labels = 'run_id="r", job="hier", algorithm="ring", node="node1", rank="1"'
    alert = f'alertname="SlowRank", alertstate="firing", severity="warning", {labels}'
    series = going_on(own_s=(1, 1.5), exposed_s=(1, 0.5), straggler_s=0.5)
    promtool(tmp_path, series, [asked('ALERTS{alertname="SlowRank"}', {alert: 1}, 60)])


def test_a_run_that_stands_still_is_told(tmp_path: Path) -> None:
    """Its last step ended at 20 s, and a step takes 0.5 s."""
    promtool(tmp_path, going_on(rows=10), [firing(at_s=54), firing("StalledRun", at_s=56)])


def test_a_run_that_takes_turns_with_another_has_time_for_both(tmp_path: Path) -> None:
    other = going_on()
    for each in other:
        each["series"] = each["series"].replace('run_id="r"', 'run_id="s"')
    names = 'count by (run_id) (ALERTS{alertname="StalledRun"})'
    asks = [asked(names, {}, 60), asked(names, {'run_id="r"': 1}, 62)]
    promtool(tmp_path, going_on(rows=10) + other, asks)


def test_a_run_that_does_not_begin_is_told(tmp_path: Path) -> None:
    series = [line("run_up", "1x100")]
    promtool(tmp_path, series, [firing(at_s=118), firing("StalledRun", at_s=120)])


@pytest.mark.parametrize(("values", "names"), [("1x40", []), ("1x5 0x40", ["ExporterDown"])])
def test_an_exporter_that_does_not_answer_is_told(
    tmp_path: Path, values: str, names: list[str]
) -> None:
    series = {"series": 'up{job="ddplab", instance="exporter:9440"}', "values": values}
    promtool(tmp_path, [series], [firing(*names)])
