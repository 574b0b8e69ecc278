"""What each rank runs when several jobs take turns in one set of ranks: jobs.worker, repeatedly.

Of the steps without network, from which nothing is judged here, there are the fewest.
Beside the records of each job stands what its node's loopback carried while its steps ran.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jobs.argument import RankArgument
from jobs.data import Windows
from jobs.events import Events
from jobs.phases import NicCounters
from jobs.rendezvous import rendezvous
from jobs.spec import JobSpec
from jobs.text import load_data
from jobs.worker import ready_to_train

BASELINE_STEPS = 2


def main(argument: dict[str, Any]) -> None:
    told = RankArgument.model_validate_json(json.dumps(argument))
    torch.set_num_threads(told.threads)
    run_dir = Path(told.run_dir)
    jobs: dict[str, Any] = json.loads((run_dir / "jobs.json").read_text())
    with rendezvous(told) as store:
        for name, document in jobs.items():
            job = JobSpec.model_validate_json(json.dumps(document))
            text = load_data(job.data)
            turn = told.model_copy(
                update={"job": job, "run_dir": str(run_dir / name), "run_id": name}
            )
            windows = Windows(text.content, job.model.context)
            with ready_to_train(turn, text, windows, store, Events(None)) as rank_run:
                loopback = NicCounters("lo")  # what comes before depends on how busy the machine is
                rank_run.begin(BASELINE_STEPS)
                rank_run.train(range(job.train.steps))
                rank_run.finish()
                dist.barrier()
            if told.local_rank == 0:
                crossed, _ = loopback.total()
                (run_dir / name / f"loopback{told.node}").write_text(str(crossed))
