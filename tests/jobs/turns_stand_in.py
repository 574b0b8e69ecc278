"""What a rank runs in tests of scale: real records and messages of several jobs, no torch.

A step computes 8 ms and then waits 2 ms for each other rank; it is predicted as 1 ms less. A job
called `killed` or `hang` is so at its second step, on rank 1.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from ddp.timing import BucketTiming
from jobs.records import StepRecord, file_writer

MS = 1_000_000
COMPUTE_MS, WAIT_MS, PREDICTED_LESS_MS = 8, 2, 1
BASELINE_STEPS = 20


def tell(**message: Any) -> None:
    os.write(int(os.environ["DDPLAB_EVENTS_FD"]), json.dumps(message).encode() + b"\n")


def record(step: int, num_ranks: int, local_rank: int, batch: int) -> StepRecord:
    start = 1_000 * MS + step * 100 * MS
    ready, end = start + COMPUTE_MS * MS, start + step_ms(num_ranks) * MS
    return StepRecord(
        step=step,
        t_ns=start,
        step_s=step_ms(num_ranks) / 1e3,
        data_s=0.0,
        forward_s=0.004,
        backward_s=0.004,
        comm_exposed_s=(end - ready) / 1e9,
        optimizer_s=0.0,
        other_s=0.0,
        exposed=((ready, end),),
        buckets=(BucketTiming(0, 1024, ready, ready, end),),
        intra_node_bytes=512,
        inter_node_bytes=512,
        samples=batch,
        loss=4.0 - step / 10,
        nic_tx_bytes=1100 if local_rank == 0 else None,
        nic_rx_bytes=1100 if local_rank == 0 else None,
    )


def step_ms(num_ranks: int) -> int:
    return COMPUTE_MS + WAIT_MS * (num_ranks - 1)


def misbehave(name: str) -> None:
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hang":
        time.sleep(600)


def main(argument: dict[str, Any]) -> None:
    told = argument["rank"]
    steps = argument["rounds"] * argument["turn_steps"]
    for number, turn in enumerate(argument["jobs"]):
        run_job(told, number, turn["job"], Path(turn["run_dir"]), steps)


def run_job(
    told: dict[str, Any], number: int, job: dict[str, Any], folder: Path, steps: int
) -> None:
    rank, num_ranks, place = told["rank"], told["world_size"], told["local_rank"]
    batch = job["data"]["batch_size"]
    with file_writer(folder, rank) as writer:
        plan = {"plan": {"algorithm": "ring"}, "plan_sha256": "feed"}
        start = {"initial_params_sha256": "aa", "model_parameters": 256, "gradient_bytes": 1024}
        writer.header({**start, "turns": steps, **plan})
        tell(kind="phase", job=number, phase="start", done=1, total=1, loss=None, step_s=None)
        for step in range(BASELINE_STEPS):
            writer.baseline(0, record(step, 1, place, batch))
        if rank == 0:
            predicted_s = (step_ms(num_ranks) - PREDICTED_LESS_MS) / 1e3
            (folder / "prediction.json").write_text(json.dumps({"step_seconds": predicted_s}))
        for step in range(steps):
            if step == 1 and rank == 1:
                misbehave(job["name"])
            writer.step(record(step, num_ranks, place, batch))
            done = {"phase": "train", "done": step + 1, "total": steps}
            tell(kind="phase", job=number, **done, loss=4.0, step_s=0.01)
        sent = {"inter_node_bytes": 512 * steps}
        nic = {"nic_tx_bytes": 1100 * steps if place == 0 else None}
        writer.end({"params_sha256": "ab" * 32, **sent, **nic})
        tell(kind="phase", job=number, phase="finish", done=1, total=1)
        tell(kind="finished", job=number, params_sha256="ab" * 32, steps=steps)
