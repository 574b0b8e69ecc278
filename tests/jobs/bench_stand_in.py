"""What a rank runs in tests of the verb bench: the messages of a real one, no torch.

An all-reduce of native takes 30 ms, of others 20 ms, on the last rank 1 ms more. A dtype says how
it misbehaves: with int32 a sum is wrong, with int64 rank 1 is killed, with float64 it hangs.
"""

import json
import os
import signal
import time
from typing import Any


def tell(**message: Any) -> None:
    os.write(int(os.environ["DDPLAB_EVENTS_FD"]), json.dumps(message).encode() + b"\n")


def main(argument: dict[str, Any]) -> None:
    told, bench = argument["rank"], argument["bench"]
    rank, last = told["rank"], told["rank"] == told["world_size"] - 1
    tell(kind="phase", phase="start", done=1, total=1)
    sizes, who = bench["sizes_bytes"], bench["contenders"]
    if rank == 0:
        limit_s = None if told["nnodes"] == 1 else 0.015
        entries = [[entry(size, each["algorithm"], limit_s) for each in who] for size in sizes]
        document = {"links": told["links"], "calibration": {}, "entries": entries}
        tell(kind="prediction", document=document)
    turns = (bench["rounds"] + bench["warmup_rounds"]) * len(sizes) * len(who)
    for turn in range(turns):
        if turn == 1 and rank == 1:
            misbehave(bench["dtype"])
        tell(kind="phase", phase="turn", done=turn + 1, total=turns)
    wrong = 3 if bench["dtype"] == "int32" and last else 0

    def times(algorithm: str) -> list[float]:
        first_s = seconds(algorithm) + 0.001 * last
        return [first_s + 0.0001 * number for number in range(bench["rounds"])]

    result = {
        "node": told["node"],
        "seconds": [[times(each["algorithm"]) for each in who] for _ in sizes],
        "wrong": [[wrong for _ in who] for _ in sizes],
        "sent": [
            [None if each["algorithm"] == "native" else size // 2 for each in who] for size in sizes
        ],
        "memory": [
            [[0.001 * rank, 0.001 * rank + 0.004]] * bench["rounds"] if told["nnodes"] == 1 else []
            for _ in sizes
        ],
    }
    tell(kind="finished", result=result)


def seconds(algorithm: str) -> float:
    return 0.03 if algorithm == "native" else 0.02


def entry(size: int, algorithm: str, limit_s: float | None) -> dict[str, Any]:
    native = algorithm == "native"
    return {
        "goes_through": algorithm,
        "segments": 1,
        "predicted_s": seconds(algorithm),
        "sent_bytes": size * 3 // 2 if native else size,
        "limit_s": limit_s,
    }


def misbehave(dtype: str) -> None:
    if dtype == "int64":
        os.kill(os.getpid(), signal.SIGKILL)
    if dtype == "float64":
        time.sleep(600)
