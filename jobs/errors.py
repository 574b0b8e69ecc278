"""What can go wrong in jobs: three parts each, the value seen, the rule, the fix.

JobError
+-- JobSpecError     a job, a key or a value that cannot be run
+-- DataError        training data is missing, empty, too short or not the same everywhere
+-- ModelError       a model of one's own cannot be loaded, or fails
+-- RecordsError     a run folder cannot be read or written
+-- WorkerError      a rank cannot start or go on
+-- LaunchError      the job's processes cannot be started
+-- RunFailed        the job ended without doing what was asked
+-- RunStopped       a person stopped the job
+-- CompareError     jobs or runs that cannot be held side by side
+-- BenchError       all-reduces that cannot be timed as asked
"""

from collections.abc import Sequence


class JobError(Exception):
    """Base of every error that jobs raises on purpose; of the same shape as cluster's.

    `message` is the value seen, in one line; `seen` more of it; `rule` what it breaks; `fix` a
    sequence of alternatives. `kind` names the error in JSON.
    """

    kind = "job_error"

    def __init__(
        self,
        message: str,
        rule: str | None = None,
        fix: str | Sequence[str] | None = None,
        *,
        seen: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.seen = seen
        self.rule = rule
        self.fix: tuple[str, ...] = (fix,) if isinstance(fix, str) else tuple(fix or ())

    def __str__(self) -> str:
        parts = [self.message, self.seen, self.rule, " or: ".join(self.fix)]
        return "; ".join(part for part in parts if part)


class JobSpecError(JobError, ValueError):
    """A job, a key or a value that cannot be run."""

    kind = "bad_job"


class DataError(JobError, ValueError):
    """Training data is missing, empty, too short or not the same everywhere."""

    kind = "bad_data"


class ModelError(JobError):
    """A model of one's own cannot be loaded, or fails."""

    kind = "bad_model"


class RecordsError(JobError):
    """A run folder cannot be read or written."""

    kind = "bad_records"


class WorkerError(JobError):
    """A rank cannot start or go on."""

    kind = "worker_failed"


class LaunchError(JobError):
    """The job's processes cannot be started."""

    kind = "not_started"


class RunFailed(JobError):
    """The job ended without doing what was asked."""

    kind = "run_failed"


class RunStopped(JobError):
    """A person stopped the job."""

    kind = "stopped"


class CompareError(JobError):
    """Jobs or runs that cannot be held side by side."""

    kind = "not_comparable"


class BenchError(JobError):
    """All-reduces that cannot be timed as asked."""

    kind = "bad_bench"
