"""The registry of backends: a name and how its labs are made."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.compose.backend import COMPOSE
from cluster.errors import ClusterError, HostError, NodeError, ShapingError
from cluster.netns import NETNS
from cluster.nodes import Backend, Making
from cluster.spec import ClusterSpec
from cluster.yamlfile import nearest

BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (COMPOSE, NETNS)}
"""In the order in which `auto` tries them."""
AUTO = "auto"
PRIVILEGES = ("none", "sudo")


@dataclass(frozen=True)
class Chosen:
    """A backend, and why it was taken; None where it was asked for by name."""

    backend: Backend
    reason: str | None = None


def require_backend(name: str) -> None:
    """Raises ClusterError unless this is `auto` or the name of a backend."""
    if name != AUTO and name not in BACKENDS:
        rule = "a backend is one way in which nodes are made; auto takes the first that fits"
        raise ClusterError(f"unknown backend {name!r}", rule, nearest(name, [AUTO, *BACKENDS]))


def choose_backend(making: Making) -> Chosen:
    """The backend that is asked for; `auto` takes the first that fits this machine, or the last."""
    require_backend(making.backend)
    if making.backend != AUTO:
        return Chosen(BACKENDS[making.backend])
    if making.privilege != "none":
        return Chosen(NETNS, f"PRIVILEGE={making.privilege} is for network namespaces")
    reasons = []
    for backend in BACKENDS.values():
        fit = backend.fit()
        reasons.append(fit.reason)
        if fit.ok:
            break
    return Chosen(backend, "; ".join(reasons))


def require_privilege(privilege: str) -> None:
    """Raises ClusterError unless a lab can be made with this privilege."""
    if privilege not in PRIVILEGES:
        hint = nearest(privilege, PRIVILEGES)
        rule = "none: as you are; sudo: the lab's own process is started with more rights"
        raise ClusterError(f"unknown privilege {privilege!r}", rule, hint)


@contextmanager
def naming_others(chosen: Chosen, spec: ClusterSpec, making: Making) -> Iterator[None]:
    """Where a backend that nobody asked for cannot make a lab, the error names those after it.

    Not where only containers have what is asked for.
    """
    try:
        yield
    except (HostError, NodeError, ShapingError) as exc:
        names = list(BACKENDS)
        if chosen.reason is not None and not (spec.limits.describe() or making.monitoring):
            for name in names[names.index(chosen.backend.name) + 1 :]:
                if not any(f"BACKEND={name}" in fix for fix in exc.fix):
                    exc.fix = (*exc.fix, f"BACKEND={name}     {BACKENDS[name].summary}")
        raise
