"""What a rank tells its launcher while it runs: one JSON object a line, on a pipe it was given."""

import json
import os
from typing import Any, Literal

EVENTS_FD = "DDPLAB_EVENTS_FD"

PhaseName = Literal["start", "no_network", "warm_up", "train", "finish"]


class Events:
    """Writes to a file descriptor; without one nobody listens, and nothing is said."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    @classmethod
    def from_environment(cls) -> "Events":
        fd = os.environ.get(EVENTS_FD)
        return cls(int(fd) if fd else None)

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

    def _send(self, kind: str, **content: Any) -> None:
        if self._fd is None:
            return
        line = json.dumps({"kind": kind, **content}, allow_nan=False).encode() + b"\n"
        os.write(self._fd, line)  # shorter than a pipe's atomic write, so never torn
