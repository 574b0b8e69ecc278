"""`make doctor`, whole: what the front door saw, PyTorch, this machine, and what its links carry.

Needs installed packages only for what is measured with a lab; so the front door can ask the rest
where there is no environment.
"""

import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.doctor.checks import FAULT, OK, SKIPPED, Check, has_fault
from cluster.doctor.host import Asked, Port, host_checks
from cluster.doctor.needs import backend_check, likely_backend, weighed
from cluster.doctor.room import Size
from jobs.server.ports import ADDRESS, PORTS

if TYPE_CHECKING:
    from cluster.spec import ClusterSpec

PROJECT = Path(__file__).resolve().parent.parent
EXPORTER = Port(ADDRESS, PORTS, "the exporter", "jobs.server")
TORCH_TIMEOUT_S = 120
_QUESTION = """\
import torch, torch.distributed as d
print(torch.__version__, "gloo" if d.is_available() and d.is_gloo_available() else "no gloo")
"""
BEFORE_A_LAB = ("commands", "namespaces", "veth", "bridge", "tbf", "congestion", "state")
"""What a lab in which nothing is trained needs."""
ANEW = "rm -r .venv .venvs && make setup"


@dataclass(frozen=True)
class Examination:
    """What is asked for: a cluster, and whether its links are measured."""

    cluster: str
    spec: "ClusterSpec"
    runs: Path
    privilege: str = "none"
    quick: bool = False


def examine(it: Examination, before: Sequence[Check] = ()) -> Iterator[Check]:
    """All checks, as they are made; `before` are those that were made already."""
    from cluster.backends import choose_backend
    from cluster.doctor.rate import rate_check
    from cluster.nodes import Making

    made = [*before] or [Check("python", OK, f"{platform.python_version()}, {sys.executable}")]
    yield from made
    yield torch_check(sys.executable)
    chosen = choose_backend(Making(privilege=it.privilege))
    for check in host_checks(_asked(it), EXPORTER):
        made.append(check)
        yield weighed(check, chosen.backend.name)
    yield backend_check(chosen.backend.name, chosen.reason or "")
    if it.quick:
        yield Check("rate", SKIPPED, "QUICK=1 leaves out what links carry")
    elif has_fault(check for check in made if check.name in BEFORE_A_LAB):
        yield Check("rate", SKIPPED, "what links carry: no lab of namespaces comes up here")
    else:
        yield rate_check(it.spec, it.privilege)


def alone(size: Size, runs: Path, privilege: str) -> Iterator[Check]:
    """All that can be asked without an environment."""
    docker = {}
    for check in host_checks(Asked(checkout(), runs, size, privilege=privilege), EXPORTER):
        docker.update({check.name: check} if check.name in ("docker", "compose") else {})
        yield check
    yield likely_backend(docker)
    for name, what in (("torch", "PyTorch"), ("rate", "what links carry")):
        yield Check(name, SKIPPED, f"{what}: asked once there is an environment")


def checkout() -> Path:
    """The folder this program is used from, where it is not installed elsewhere."""
    return PROJECT if (PROJECT / "Makefile").is_file() else Path.cwd()


def _asked(it: Examination) -> Asked:
    links = [it.spec.links_of(name).inter_node for name in it.spec.node_names]
    netem_for = f"CLUSTER={it.cluster}" if any(link.needs_netem for link in links) else ""
    size = Size(it.spec.nodes, it.spec.ranks_per_node)
    return Asked(checkout(), it.runs, size, netem_for, it.privilege)


def torch_check(python: str) -> Check:
    """Whether a rank could start: imports it as a rank does, in a process of its own."""
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TORCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check("torch", FAULT, f"not imported within {TORCH_TIMEOUT_S} s", (ANEW,))
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2] or f"it ended with {done.returncode}"
        return Check("torch", FAULT, f"PyTorch cannot be imported: {last}", (ANEW,))
    version, _, gloo = done.stdout.strip().partition(" ")
    if gloo != "gloo":
        return Check("torch", FAULT, f"PyTorch {version} was built without gloo", (ANEW,))
    return Check("torch", OK, f"PyTorch {version}, with gloo")
