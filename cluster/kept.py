"""A lab as one command leaves it for the next: the one place that knows the keys of its state."""

from dataclasses import dataclass, field
from typing import Any

from cluster.backends import BACKENDS
from cluster.errors import NoLab
from cluster.nodes import Shapeable
from cluster.probe import ProbeReport
from cluster.spec import ClusterSpec
from cluster.state import DEFAULT_LAB, LabDirectory

__all__ = ["DEFAULT_LAB", "Lab", "no_lab", "read_lab", "write_lab"]


@dataclass(frozen=True)
class Lab:
    """A lab that is up. `probe` is None until its links, as they are now, were measured."""

    name: str
    spec: ClusterSpec
    """As it is now, changes of its links included."""
    backend: str
    nodes: Shapeable = field(compare=False)
    probe: ProbeReport | None
    created_at: float
    """Wall clock, seconds since 1970."""
    already_up: bool = field(default=False, compare=False)
    """True where bring_up found this lab as asked for and made nothing."""
    changed_at: float | None = None
    """Wall clock of the last change of its links; None: they are as they were made."""
    link_position: int = 0
    """Up to where `spec` includes what `cluster.linklog` tells."""
    pending: ClusterSpec | None = None
    """What its links were about to be changed to when a command died on the way."""

    @property
    def proof(self) -> str:
        """`probed`: measured as they are now; `stale`: changed since; `none`: never measured."""
        if self.probe is not None:
            return "probed"
        return "none" if self.changed_at is None else "stale"

    @property
    def underlay(self) -> "Lab":
        """See cluster.site.Site: a lab's nodes are its own."""
        return self


def read_lab(directory: LabDirectory) -> Lab:
    """The lab that was kept here and is alive. Raises NoLab; StateRefused where it is spoilt."""
    saved = directory.read()
    if saved is None:
        raise no_lab(directory.name)
    try:
        return _built(saved, directory)
    except NoLab as exc:
        raise no_lab(directory.name, str(exc)) from exc
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        words = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise directory.unreadable(f"it holds something else than a lab ({words[:100]})") from exc


def _built(saved: dict[str, Any], directory: LabDirectory) -> Lab:
    nodes = BACKENDS[saved["backend"]].attach(directory.path, saved["nodes"])
    report, pending = saved["probe"], saved.get("pending")
    return Lab(
        name=directory.name,
        spec=ClusterSpec.from_dict(saved["spec"]),
        backend=saved["backend"],
        nodes=nodes,
        probe=None if report is None else ProbeReport.from_json(report),
        created_at=saved["created_at"],
        changed_at=saved.get("changed_at"),
        link_position=saved.get("link_position", 0),
        pending=None if pending is None else ClusterSpec.from_dict(pending),
    )


def write_lab(lab: Lab, directory: LabDirectory) -> None:
    """Keeps the lab. Call it with the lock held."""
    state: dict[str, Any] = {
        "backend": lab.backend,
        "spec": lab.spec.to_dict(),
        "created_at": lab.created_at,
        "nodes": lab.nodes.save(),
        "probe": None if lab.probe is None else lab.probe.to_json(),
        "changed_at": lab.changed_at,
        "link_position": lab.link_position,
        "pending": None if lab.pending is None else lab.pending.to_dict(),
    }
    directory.write(state)


def no_lab(name: str, seen: str | None = None) -> NoLab:
    """The error for a lab that is not up; names those that are."""
    others = ", ".join(other for other in LabDirectory.names() if other != name)
    option = "" if name == DEFAULT_LAB else f" LAB={name}"
    seen = seen or (f"labs that are up: {others}" if others else None)
    rule = "a lab is brought up first, and stays until it is taken down"
    return NoLab(f'lab "{name}" is not up', rule, f"make cluster-up{option}", seen=seen)
