"""What can go wrong in ddp.

DdpError
+-- ScheduleError       a schedule breaks a rule (found when a stage is drawn)
+-- PlanError           a reduction plan cannot be made, read or agreed on
+-- TransportError      two ranks could not exchange a chunk
|   +-- PeerTimeout     a wait ran out; the message names bucket, stage and peer
+-- ReductionFailed     this job must stop on every rank; carries the first cause
+-- UsageError          a call or a module that cannot be reduced correctly
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
    """A wait for a peer ran out of time."""


class ReductionFailed(DdpError, RuntimeError):
    """The job must stop on every rank; the message is the first cause, the same on all."""


class UsageError(DdpError, ValueError):
    """A call or a module that cannot be reduced correctly."""
