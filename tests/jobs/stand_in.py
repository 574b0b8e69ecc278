"""What a rank runs in tests of the launcher: real records and messages, no torch, and bad ends.

The job's name says how: `ok`, `killed`, `failed`, `silent`, `hang`, `diverge`, `leaves`, `crowd`,
`elsewhere`.
Rank 1 is the one that misbehaves, at its third step. Every step takes 10 ms.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ddp.timing import BucketTiming
from jobs.records import RecordWriter, StepRecord, file_writer

MS = 1_000_000
STEP_S = 0.01
BAD_STEP = 2


def tell(**message: Any) -> None:
    os.write(int(os.environ["DDPLAB_EVENTS_FD"]), json.dumps(message).encode() + b"\n")


def send(line: bytes) -> None:
    tell(kind="record", job=0, line=line.decode())


def record(step: int, rank: int, local_rank: int) -> StepRecord:
    """10 ms: forward 4, backward 4, exposed 2; one bucket of 6 ms, of which 4 are hidden."""
    start = 1_000 * MS + step * 10 * MS
    return StepRecord(
        step=step,
        t_ns=start,
        step_s=STEP_S,
        data_s=0.0,
        forward_s=0.004,
        backward_s=0.004,
        comm_exposed_s=0.002,
        optimizer_s=0.0,
        other_s=0.0,
        exposed=((start + 8 * MS, start + 10 * MS),),
        buckets=(BucketTiming(0, 1024, start + 4 * MS, start + 4 * MS, start + 10 * MS),),
        intra_node_bytes=512,
        inter_node_bytes=512,
        samples=2,
        loss=4.0 - step / 10 + rank / 100,
        nic_tx_bytes=1100 if local_rank == 0 else None,
        nic_rx_bytes=1100 if local_rank == 0 else None,
    )


def misbehave(name: str, folder: Path) -> None:
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "failed":
        tell(kind="failed", message="bucket 1: parameter w was not used")
        raise SystemExit(1)
    if name == "silent":
        sys.stderr.write("the last words\n")
        os._exit(7)
    if name == "leaves":
        raise SystemExit(0)
    if name == "crowd":
        child = subprocess.Popen(["sleep", "600"])
        (folder / "child").write_text(str(child.pid))
    if name in ("hang", "crowd"):
        time.sleep(600)


def main(argument: dict[str, Any]) -> None:
    rank, name = argument["rank"], argument["job"]["name"]
    folder, train = argument["run_dir"] and Path(argument["run_dir"]), argument["job"]["train"]
    sys.stdout.write(f"hello from rank {rank}\n")
    with file_writer(folder, rank) if folder else nullcontext(RecordWriter(send)) as writer:
        header = {"model_parameters": 256, "gradient_bytes": 1024, "initial_params_sha256": "aa"}
        environment = {key: os.environ[key] for key in ("RANK", "DDPLAB_NODE", "OMP_NUM_THREADS")}
        plan = {"plan": {"algorithm": "ring"}, "plan_sha256": "feed"}
        writer.header({"argument": argument, "environment": environment, **header, **plan})
        tell(kind="phase", phase="start", done=1, total=1, loss=None, step_s=None)
        for step in range(20):
            writer.baseline(0, record(step, rank, argument["local_rank"]))
            tell(kind="phase", phase="no_network", done=step + 1, total=20, step_s=STEP_S)
        for step in range(train["steps"]):
            if step == BAD_STEP and rank == 1:
                misbehave(name, folder)
            time.sleep(STEP_S)
            writer.step(record(step, rank, argument["local_rank"]))
            tell(
                kind="phase",
                phase="train",
                done=step + 1,
                total=train["steps"],
                loss=4.0 - step / 10,
                step_s=STEP_S,
            )
        mark = f"{rank:02d}" if name == "diverge" else "ab"
        counted = 100 if name == "elsewhere" else 1100 * train["steps"]
        sent = {"inter_node_bytes": 512 * train["steps"]}
        nic = {"nic_tx_bytes": counted if argument["local_rank"] == 0 else None}
        writer.end({"params_sha256": mark * 32, **sent, **nic})
        tell(kind="phase", phase="finish", done=1, total=1)
        tell(kind="finished", params_sha256=mark * 32, steps=train["steps"])
