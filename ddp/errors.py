"""What can go wrong in ddp.

DdpError
+-- ScheduleError       a schedule breaks a rule (found when a stage is drawn)
+-- PlanError           a reduction plan cannot be made, read or agreed on
+-- TransportError      two ranks could not exchange a chunk
|   +-- PeerTimeout     a wait ran out; the message names bucket, stage and peer
+-- ReductionFailed     this job must stop on every rank; carries the first cause
+-- UsageError          a call or a module that cannot be reduced correctly
    +-- OwnCodeError    code of the user's own, named by where it is, cannot be used
"""


class DdpError(Exception):
    """Base of every error that ddp raises on purpose."""


class ScheduleError(DdpError, ValueError):
    """A schedule breaks a rule; the message names stage, transfer and rule."""


class PlanError(DdpError, ValueError):
    """A reduction plan cannot be made, read or agreed on."""


class TransportError(DdpError, RuntimeError):
    """Two ranks could not exchange a chunk."""


class PeerTimeout(TransportError):
    """A wait for a peer ran out of time. `stage`: of the schedule, where it was in one."""

    stage = 0


class ReductionFailed(DdpError, RuntimeError):
    """The job must stop on every rank; the message is the first cause, the same on all."""


class UsageError(DdpError, ValueError):
    """A call or a module that cannot be reduced correctly."""


class OwnCodeError(UsageError):
    """Code of the user's own, named by where it is, cannot be used: what was seen, rule and fix."""

    def __init__(self, message: str, rule: str | None = None, fix: str | None = None) -> None:
        super().__init__("; ".join(part for part in (message, rule, fix) if part))
        self.message = message
        self.rule = rule
        self.fix = fix
