"""The communication thread of one wrapper: reduces buckets one after another, in the order given.

Owns what happens to a bucket once its gradients are there: status, reduction or hook, mean, timing,
and how a failure ends it. When a bucket may go is decided by the reducer.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import torch

from ddp.bucket import Bucket
from ddp.comm_hook import CommHook
from ddp.device import HostLine, Line
from ddp.errors import TransportError
from ddp.executor import Collective, NoCollective
from ddp.failure import FirstCause
from ddp.timing import BucketTiming, Traffic, sum_of


@dataclass(frozen=True)
class Submission:
    """A bucket to be reduced. `poisoned`: this rank gave up; the gradients mean nothing.

    `used`: by parameter, whether this rank has a gradient for it. `hook` takes the place of the
    collective for the gradients; the status still goes through the collective. `mark`: where the
    gradients are there, on the line of the device.
    """

    bucket: Bucket
    collective: Collective
    ready_ns: int
    poisoned: bool
    used: tuple[bool, ...] = ()
    hook: CommHook | None = None
    mark: Any = None


class CommunicationThread:
    """Started at once, stopped by `close`. `submit`, `drain` and `take` are for one other thread.

    `on_failure` is called on the thread as soon as it can no longer reduce: it must close the
    connections, so that no peer waits for this rank.
    """

    def __init__(
        self,
        rank: int,
        first_cause: FirstCause,
        on_failure: Callable[[], None],
        line: Line | None = None,
    ) -> None:
        self._rank = rank
        self.line: Line = line or HostLine()
        self._first_cause = first_cause
        self._on_failure = on_failure
        self._submissions: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._settled = threading.Condition()
        self._num_open = 0
        self._failure: str | None = None
        self._poisoned = False
        self._timings: list[BucketTiming] = []
        self._traffic = Traffic(0, 0)
        self._thread = threading.Thread(target=self._run, name="ddp-communication", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """The first cause, once this rank has stopped, or will with the next bucket."""
        return self._failure

    def submit(self, submission: Submission) -> None:
        with self._settled:
            self._num_open += 1
        self._submissions.put(submission)

    def drain(self) -> None:
        """Wait until every bucket submitted was reduced or given up; every wait inside is timed."""
        with self._settled:
            while self._num_open:
                self._settled.wait(timeout=1.0)
                if self._num_open and not self._thread.is_alive():
                    raise TransportError("the communication thread has gone")

    def wait_for_failure(self, timeout_s: float) -> None:
        """Returns sooner where a bucket fails."""
        deadline = monotonic() + timeout_s
        while self._failure is None and monotonic() < deadline:
            sleep(0.01)

    def take(self) -> tuple[list[BucketTiming], Traffic]:
        """What was reduced since the last call."""
        timings, self._timings = self._timings, []
        traffic, self._traffic = self._traffic, Traffic(0, 0)
        return timings, traffic

    def close(self) -> None:
        """Ends after what was submitted. A second call does nothing."""
        self._submissions.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (submission := self._submissions.get()) is not None:
            self._attempt(submission)
            with self._settled:
                self._num_open -= 1
                self._settled.notify_all()

    def _attempt(self, submission: Submission) -> None:
        if self._failure and not self._poisoned:
            return
        try:
            with torch.no_grad():
                self._reduce(submission)
        except Exception as exc:
            ours = isinstance(exc, TransportError)
            what = f"rank {self._rank}: " + (str(exc) if ours else f"{type(exc).__name__}: {exc}")
            reason = self._first_cause.publish_error(exc, what)
        else:
            return
        # only now: operations that the error refers to would keep the sockets open
        self._stop(reason)

    def _reduce(self, submission: Submission) -> None:
        bucket = submission.bucket
        with self.line.after(submission.mark, bucket.index) as span:
            if submission.collective.name == NoCollective.name:
                bucket.used = submission.used or bucket.used
                traffic = submission.collective.all_reduce(
                    bucket.buffer, bucket.layout.segments, bucket.index
                )
            else:
                poisoned = submission.poisoned or self._poisoned
                bucket.write_status(poisoned=poisoned, used=submission.used)
                traffic = (self._with_hook if submission.hook else self._without_hook)(submission)
        times = span.times(submission.ready_ns)
        self._timings.append(BucketTiming(bucket.index, bucket.num_bytes, *times))
        self._traffic = sum_of(self._traffic, traffic)

    def _without_hook(self, submission: Submission) -> Traffic:
        bucket, collective = submission.bucket, submission.collective
        traffic = collective.all_reduce(bucket.buffer, bucket.layout.segments, bucket.index)
        self.line.settle(f"bucket {bucket.index}")
        self._check(bucket)
        bucket.average()
        return traffic

    def _with_hook(self, submission: Submission) -> Traffic:
        """The status first: where a rank gave up, no rank calls its hook."""
        bucket = submission.bucket
        submission.collective.all_reduce(bucket.status, 1, bucket.index)
        self.line.settle(f"bucket {bucket.index}, its status")
        if self._check(bucket):
            assert submission.hook is not None
            submission.hook(bucket)
        return Traffic(None, None)

    def _check(self, bucket: Bucket) -> bool:
        """Whether all ranks go on to the end of this bucket; they all find the same."""
        status = bucket.read_status()
        bucket.used = status.used or bucket.used
        if status.num_poisoned:  # every rank reads this in the same bucket, and stops with it
            self._stop(self._first_cause.read() or "a rank gave up; its reason is out of reach")
        elif status.parameters_differ:
            self._failure = self._first_cause.publish(
                f"bucket {bucket.index}: its parameters ({', '.join(bucket.layout.parameters[:3])}"
                f"{', ...' if len(bucket.layout.parameters) > 3 else ''}) are not the same on all "
                "ranks; something other than the optimizer changed them, or it was given other "
                "settings or gradients on some ranks. Start again from one checkpoint"
            )
            self._poisoned = True  # ranks that saw no difference learn it from the next bucket
        return not status.num_poisoned

    def _stop(self, reason: str) -> None:
        self._failure = reason
        self._poisoned = False
        self._on_failure()
