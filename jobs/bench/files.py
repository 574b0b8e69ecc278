"""What a bench leaves behind: bench.json and bench.csv, in a folder beside the runs'.

Owns the documents. The folder is no run's, so the list of runs is without it.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster.site import Site
from cluster.units import format_rate
from jobs.bench.asked import BenchSpec
from jobs.bench.floors import Checked
from jobs.bench.launcher import Found
from jobs.bench.rows import Row
from jobs.runfolder import RunFolder, claim_folder, run_name
from jobs.runinfo import git_state, host_facts, lab_json, versions

SCHEMA = 1
BENCH_FILE = "bench.json"
IN_CSV = ("median", "p10", "p90")
LEFT_OUT_OF_CSV = ("rounds_s", "time_s")


def bench_json(
    bench: BenchSpec, site: Site, found: Found, rows: Sequence[Row], checked: Checked | None
) -> dict[str, Any]:
    """The document of `bench allreduce --json` and of bench.json."""
    return {
        "schema": SCHEMA,
        "rows": [row.to_json() for row in rows],
        "rounds": bench.rounds,
        "warmup_rounds": bench.warmup_rounds,
        "lab": lab_json(site),
        "probe": site.probe.to_json() if site.probe else None,
        "links": found.told["links"],
        "calibration": found.told["calibration"],
        "check": None if checked is None else _check_json(checked),
        "versions": versions(),
        "git": git_state(),
        "host": host_facts(),
    }


def _check_json(checked: Checked) -> dict[str, Any]:
    return {
        "ok": checked.ok,
        "figures": [asdict(each) for each in checked.figures],
        "elsewhere": [asdict(each) for each in checked.elsewhere],
    }


def bench_csv(rows: Sequence[Row]) -> str:
    """A line for each row of the table, in seconds and bytes."""
    text = io.StringIO()
    documents = [row.to_json() for row in rows]
    keys = [key for key in documents[0] if key not in LEFT_OUT_OF_CSV]
    writer = csv.DictWriter(
        text, [*keys, *(f"time_{key}_s" for key in IN_CSV), "n"], lineterminator="\n"
    )
    writer.writeheader()
    for document in documents:
        time = document["time_s"]
        writer.writerow(
            {key: document[key] for key in keys}
            | {f"time_{key}_s": time[key] for key in IN_CSV}
            | {"n": time["n"]}
        )
    return text.getvalue()


def write_bench(
    runs: Path, site: Site, document: Mapping[str, Any], rows: Sequence[Row]
) -> RunFolder:
    """Both files in a new folder, named after the lab. Raises RecordsError."""
    spec = site.spec
    rate = format_rate(spec.links.inter_node.rate_bits_per_s)
    now = datetime.now().astimezone()

    def fill(folder: RunFolder, name: str) -> None:
        about = {"folder": name, "created_at": now.isoformat(timespec="milliseconds")}
        folder.write(BENCH_FILE, {**document, **about})
        folder.write_text("bench.csv", bench_csv(rows))

    size = f"{spec.nodes}x{spec.ranks_per_node}"
    return claim_folder(runs, run_name("bench", size, rate, now), fill)
