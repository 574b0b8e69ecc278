"""The verb predict: what a step would cost on a cluster that nobody has; needs no lab."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from jobs.cli_lab import json_option
from jobs.cli_making import RUNS

SCHEMA = 1


@click.command()
@click.option("--parameters", help="Of the model: 7b, 350m.")
@click.option("--dtype", help="Of its gradients: float32, bfloat16, float16, float64.")
@click.option("--bytes", help="Of gradients on one rank, instead: 14GB.")
@click.option("--nodes", type=int, help="Nodes, all alike.")
@click.option("--ranks-per-node", type=int, help="Ranks on each.")
@click.option("--nics", type=int, help="NICs of each, side by side.")
@click.option("--rate", help="What one NIC carries: 25GB/s, 200gbit.")
@click.option("--latency", help="Of a message between nodes, beside its bytes: 20us.")
@click.option("--intra-rate", help="What a rank sends inside its node: 900GB/s.")
@click.option("--intra-latency", help="Of a message inside a node: 5us.")
@click.option("--compute", help="A step with nothing sent: 0.5s.")
@click.option("--overlap", type=float, help="Share of it that can hide communication, 0 to 1.")
@click.option("--example", is_flag=True, help="A 7b model on two machines of eight GPUs.")
@click.option("--calibrate", help="A finished run, whose figures stand where none is typed.")
@json_option
def predict(example: bool, calibrate: str | None, as_json: bool, **typed: Any) -> None:
    """Say what a step would cost on a cluster that you do not have; needs no lab."""
    from jobs.estimate.estimate import estimates, rule_of_thumb
    from jobs.estimate.source import figures
    from jobs.report.predict_screen import predict_screen
    from jobs.report.terminal import output_console, show

    found = figures(typed, example, None if calibrate is None else _run(calibrate))
    links = found.asked.cluster.links
    thumbs = {
        "intra_node": rule_of_thumb(found.asked, links.intra.bytes_per_s),
        "inter_node": rule_of_thumb(found.asked, links.nic_out.bytes_per_s),
    }
    rows = list(estimates(found.asked))
    if as_json:
        document = {
            "schema": SCHEMA,
            "asked": asdict(found.asked),
            "rule_of_thumb": {name: asdict(thumb) for name, thumb in thumbs.items()},
            "algorithms": [asdict(row) for row in rows],
        }
        click.echo(json.dumps(document))
        return
    console = output_console()
    show(console, predict_screen(found.asked, thumbs, rows, console.width))


def _run(name: str) -> Mapping[str, Any]:
    """What a run left; raises JobError where it has no figures of its own."""
    from jobs.compare.runs import find_runs
    from jobs.estimate.source import NotCalibrated

    found = find_runs(RUNS, [name])[0]
    if not (found.prediction or {}).get("inputs", {}).get("calibration"):
        raise NotCalibrated(
            f"{found.run['run_id']} has no calibration",
            rule="a run measures its links and its own latencies before it trains",
            fix="make run JOB=hier, then CALIBRATE=latest",
        )
    return {"prediction": found.prediction, "run": found.run}
