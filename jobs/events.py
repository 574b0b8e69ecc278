"""What a rank tells its launcher while it runs: one JSON object a line, on a pipe it was given.

Where launcher and rank share no files, what the rank records goes the same way.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, Literal

EVENTS_FD = "DDPLAB_EVENTS_FD"

PhaseName = Literal["start", "no_network", "warm_up", "train", "turn", "finish"]


class Events:
    """Writes to a file descriptor; without one nobody listens, and nothing is said.

    `job` is the number of the job that is spoken of, where several take turns.
    """

    def __init__(self, fd: int | None, job: int = 0) -> None:
        self._fd = fd
        self._job = job

    @classmethod
    def from_environment(cls) -> "Events":
        fd = os.environ.get(EVENTS_FD)
        return cls(int(fd) if fd else None)

    def of(self, job: int) -> "Events":
        """The same listener, told of another job."""
        return Events(self._fd, job)

    def phase(
        self,
        phase: PhaseName,
        done: int,
        total: int,
        loss: float | None = None,
        step_s: float | None = None,
    ) -> None:
        self._send("phase", phase=phase, done=done, total=total, loss=loss, step_s=step_s)

    def failed(self, message: str) -> None:
        self._send("failed", message=message)

    def finished(self, params_sha256: str, steps: int) -> None:
        self._send("finished", params_sha256=params_sha256, steps=steps)

    def finished_with(self, result: Mapping[str, Any]) -> None:
        """The end of a rank that trained nothing, and what it found."""
        self._send("finished", result=result)

    def record(self, line: str) -> None:
        """A line of this rank's records."""
        self._send("record", line=line)

    def prediction(self, document: Mapping[str, Any]) -> None:
        """What prediction.json is to hold."""
        self._send("prediction", document=document)

    def _send(self, kind: str, **content: Any) -> None:
        if self._fd is None:
            return
        message = {"kind": kind, "job": self._job, **content}
        rest = json.dumps(message, allow_nan=False).encode() + b"\n"
        while rest:  # nobody else writes to this pipe, so that a long line is not torn
            rest = rest[os.write(self._fd, rest) :]
