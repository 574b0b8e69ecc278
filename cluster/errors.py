"""What can go wrong in cluster.

    ClusterError
    +-- UnitError           a rate, duration or share that cannot be read (also a ValueError)
    +-- SpecError           a file of ours breaks rules: every fault at once
    +-- LabError            the lab asked for is not there, or another one is
    |   +-- NoLab
    |   +-- LabExists
    |   +-- LabBusy
    |   +-- StateRefused    the state directory cannot be trusted
    +-- HostError           this machine cannot do what was asked
    |   +-- MissingTool
    |   +-- NamespacesRefused
    |   +-- MissingQdisc
    +-- NodeError           a command in the lab failed, or a node does not answer
    |   +-- CommandFailed
    +-- ShapingError        the kernel holds something else than what was asked
    +-- ProbeFailed         a link does not carry what was asked
    +-- RayError            a Ray cluster cannot be used as asked
        +-- NoRay           there is none where it was looked for, or it does not answer
        +-- NotPlaced       it has no room for what was asked
        +-- NodesDiffer     its nodes do not run the same software
        +-- FabricRefused   a node has no such NIC

Every error says what was seen, the rule and the fix; screens and `--json` are made from these.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class ClusterError(Exception):
    """Base of every error that cluster raises on purpose.

    `message` is one headline; `seen`, `rule` and `fix` are the three parts under it, as far as
    they are known. `fix` is a sequence of alternatives. `kind` names the error in JSON.
    """

    kind = "cluster_error"

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
        self.fix: tuple[str, ...] = () if fix is None else _as_tuple(fix)

    def __str__(self) -> str:
        parts = [self.message, self.seen, self.rule, " or: ".join(self.fix)]
        return "; ".join(part for part in parts if part)


def _as_tuple(fix: str | Sequence[str]) -> tuple[str, ...]:
    return (fix,) if isinstance(fix, str) else tuple(fix)


class UnitError(ClusterError, ValueError):
    """A rate, duration or share that cannot be read, or could be read in two ways."""

    kind = "bad_value"

    def __init__(
        self,
        message: str,
        rule: str | None = None,
        fix: str | Sequence[str] | None = None,
        *,
        seen: str | None = None,
        below: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, rule, fix, seen=seen)
        self.below = below
        """The keys that lead from what was checked to what is wrong in it."""


@dataclass(frozen=True)
class Fault:
    """One broken rule in one file. `where` is `file:line`, `key` the dotted path of the key."""

    where: str
    key: str
    message: str
    rule: str | None = None
    fix: str | None = None

    @property
    def headline(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.message) if part)

    def __str__(self) -> str:
        return "; ".join(part for part in (self.headline, self.rule, self.fix) if part)


class SpecError(ClusterError):
    """A file breaks rules; `faults` holds all of them, in the order of the file."""

    kind = "bad_file"

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        if len(self.faults) == 1:
            (fault,) = self.faults
            super().__init__(fault.headline, fault.rule, fault.fix)
        else:
            super().__init__("\n".join(str(fault) for fault in faults))


class LabError(ClusterError):
    """The lab asked for is not there, is another one, or is being worked on."""

    kind = "lab_error"


class NoLab(LabError):
    """No lab of this name is up."""

    kind = "no_lab"


class LabExists(LabError):
    """A lab of this name is up, with another specification."""

    kind = "lab_exists"


class LabBusy(LabError):
    """Another command is working on this lab."""

    kind = "lab_busy"


class StateRefused(LabError):
    """The directory that holds the state of labs cannot be trusted."""

    kind = "state_refused"


class HostError(ClusterError):
    """This machine cannot do what was asked."""

    kind = "host_error"


class MissingTool(HostError):
    """A command that the lab needs is not installed."""

    kind = "missing_tool"


class NamespacesRefused(HostError):
    """This machine does not let this user make namespaces."""

    kind = "namespaces_refused"


class MissingQdisc(HostError):
    """The kernel lacks a queueing discipline that was asked for."""

    kind = "missing_qdisc"


class NodeError(ClusterError):
    """A node does not do what it was told."""

    kind = "node_error"


class CommandFailed(NodeError):
    """A command inside the lab ended with an error."""

    kind = "command_failed"


class ShapingError(ClusterError):
    """What the kernel holds is not what was asked."""

    kind = "not_shaped"


class ProbeFailed(ClusterError):
    """A link does not carry what was asked."""

    kind = "probe_failed"


class RayError(ClusterError):
    """A Ray cluster cannot be used as asked."""

    kind = "ray_error"


class NoRay(RayError):
    """There is no Ray cluster where it was looked for, or it does not answer."""

    kind = "no_ray"


class NotPlaced(RayError):
    """Ray has no room for the nodes asked for."""

    kind = "not_placed"


class NodesDiffer(RayError):
    """The nodes of a Ray cluster do not run the same software."""

    kind = "nodes_differ"


class FabricRefused(RayError):
    """A node has no NIC such as was asked for."""

    kind = "fabric_refused"
