"""The registry of backends: a name and how its labs are made."""

from collections.abc import Mapping

from cluster.errors import ClusterError
from cluster.netns import NETNS
from cluster.nodes import Backend
from cluster.yamlfile import nearest

BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (NETNS,)}
AUTO = "auto"


def choose_backend(name: str) -> Backend:
    """The backend of this name; `auto` takes the first that fits this machine."""
    if name == AUTO:
        return NETNS
    if name not in BACKENDS:
        rule = "a backend is one way in which nodes are made; auto takes the first that fits"
        raise ClusterError(f"unknown backend {name!r}", rule, nearest(name, [AUTO, *BACKENDS]))
    return BACKENDS[name]
