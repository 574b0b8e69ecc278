"""Labs by name: bring one up, find it again, measure it, take it down.

Owns the order of things and what is kept between commands. How nodes are made is a backend's
matter; where state lies is `cluster.state`'s.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.backends import AUTO, BACKENDS, choose_backend
from cluster.errors import ClusterError, LabError, LabExists, NoLab
from cluster.nodes import Backend, Shapeable
from cluster.probe import ProbeReport, require_carried, run_probe
from cluster.spec import ClusterSpec
from cluster.state import LabDirectory, Use
from cluster.yamlfile import nearest

PRIVILEGES = ("none", "sudo")
DEFAULT_LAB = "default"


@dataclass(frozen=True)
class LabEvent:
    """Progress of `bring_up`: a step (`start`, `limit`, `measure`) begins, or has ended."""

    step: str
    seconds: float | None = None
    """How long the step took; None as it begins."""


OnEvent = Callable[[LabEvent], None]


def _ignore(event: LabEvent) -> None:
    del event


@dataclass(frozen=True)
class Lab:
    """A lab that is up. `probe` is None until its links were measured."""

    name: str
    spec: ClusterSpec
    backend: str
    nodes: Shapeable = field(compare=False)
    probe: ProbeReport | None
    created_at: float
    """Wall clock, seconds since 1970."""
    already_up: bool = field(default=False, compare=False)
    """True where bring_up found this lab as asked for and made nothing."""


def open_lab(name: str = DEFAULT_LAB) -> Lab:
    """The lab that is up under this name; what a dead lab left is removed.

    Raises NoLab, and LabBusy while another command brings it up.
    """
    directory = LabDirectory.of(name)
    try:
        return _read(directory)
    except NoLab:
        if not directory.path.is_dir():
            raise
        with directory.locked(timeout_s=0):  # LabBusy: it is just coming up, or going
            lab = _read_or_clear(directory)
            if lab is not None:
                return lab
            directory.remove()
        raise


def bring_up(
    spec: ClusterSpec,
    name: str = DEFAULT_LAB,
    backend: str = AUTO,
    privilege: str = "none",
    probe: bool = True,
    on_event: OnEvent = _ignore,
) -> Lab:
    """Makes the lab, limits its links and measures them; or leaves nothing.

    A lab of the same name and specification is returned as it is (`already_up`), measured if it
    was not. Raises LabExists where it has another specification or backend.
    """
    chosen = choose_backend(backend)
    if privilege not in PRIVILEGES:
        hint = nearest(privilege, PRIVILEGES)
        raise ClusterError(f"unknown privilege {privilege!r}", None, hint)
    directory = LabDirectory.of(name)
    with directory.locked():
        lab = _read_or_clear(directory)
        if lab is None:
            return _make(spec, directory, chosen, privilege, probe, on_event)
        _require_same(lab, spec, None if backend == AUTO else backend)
        lab = replace(lab, already_up=True)
        return _measured(lab, directory, on_event) if probe and lab.probe is None else lab


def take_down(name: str = DEFAULT_LAB) -> Lab:
    """Removes the lab and all that runs in it; returns what it was. Raises NoLab."""
    directory = LabDirectory.of(name)
    open_lab(name)
    with directory.locked():
        lab = _read(directory)
        directory.tell_user_it_ends()
        lab.nodes.down()
        directory.remove()
        return lab


@contextmanager
def in_use(lab: Lab, what: str) -> Iterator[Use]:
    """The lab's links for one user alone. Raises LabBusy, naming who uses them, and NoLab."""
    try:
        with LabDirectory.of(lab.name).in_use(what) as use:
            yield use
    except FileNotFoundError as exc:
        raise _no_lab(lab.name) from exc


def user_of(name: str) -> str | None:
    """What runs on the lab's links now, such as `run 20261130-1104-hier (process 71)`."""
    return LabDirectory.of(name).user()


def is_up(lab: Lab) -> bool:
    """Whether this very lab is still there, and not another one of its name."""
    try:
        return open_lab(lab.name).created_at == lab.created_at
    except LabError:
        return False


def measure(name: str = DEFAULT_LAB, on_event: OnEvent = _ignore) -> Lab:
    """Measures the links of a lab that is up, and keeps the result, good or bad.

    Raises ProbeFailed (after keeping it) where a link is off its ceiling.
    """
    directory = LabDirectory.of(name)
    open_lab(name)
    with directory.locked():
        return _measured(_read(directory), directory, on_event)


def plan(spec: ClusterSpec, backend: str = AUTO) -> tuple[str, ...]:
    """The exact commands that bring_up would run inside the lab."""
    return choose_backend(backend).plan(spec)


def list_labs() -> tuple[str, ...]:
    """Names of the labs that have state here, dead or alive."""
    return LabDirectory.names()


def _read(directory: LabDirectory) -> Lab:
    saved = directory.read()
    if saved is None:
        raise _no_lab(directory.name)
    try:
        nodes = BACKENDS[saved["backend"]].attach(directory.path, saved["nodes"])
    except NoLab as exc:
        raise _no_lab(directory.name, str(exc)) from exc
    report = saved["probe"]
    return Lab(
        name=directory.name,
        spec=ClusterSpec.from_dict(saved["spec"]),
        backend=saved["backend"],
        nodes=nodes,
        probe=None if report is None else ProbeReport.from_json(report),
        created_at=saved["created_at"],
    )


def _write(lab: Lab, directory: LabDirectory) -> None:
    state: dict[str, Any] = {
        "backend": lab.backend,
        "spec": lab.spec.to_dict(),
        "created_at": lab.created_at,
        "nodes": lab.nodes.save(),
        "probe": None if lab.probe is None else lab.probe.to_json(),
    }
    directory.write(state)


def _no_lab(name: str, seen: str | None = None) -> NoLab:
    others = ", ".join(other for other in LabDirectory.names() if other != name)
    option = "" if name == DEFAULT_LAB else f" LAB={name}"
    seen = seen or (f"labs that are up: {others}" if others else None)
    return NoLab(f'lab "{name}" is not up', None, f"make cluster-up{option}", seen=seen)


def _read_or_clear(directory: LabDirectory) -> Lab | None:
    """The lab; where none is alive, what a dead one left is removed. Needs the lock."""
    try:
        return _read(directory)
    except NoLab:
        directory.clear()
        return None


def _require_same(lab: Lab, spec: ClusterSpec, backend: str | None) -> None:
    here, asked = lab.spec.describe(), spec.describe()
    if lab.backend != (backend or lab.backend):
        here, asked = f"backend {lab.backend}", f"backend {backend}"
    elif lab.spec.resolved() == spec.resolved():
        return
    option = "" if lab.name == DEFAULT_LAB else f" LAB={lab.name}"
    raise LabExists(
        f'lab "{lab.name}" is up with another specification',
        "a lab is never changed behind the back of those who use it",
        (f"make cluster-down{option}, then bring it up again", "another lab: LAB=name"),
        seen=f"up: {here}; asked: {asked}",
    )


@contextmanager
def _timed(step: str, on_event: OnEvent) -> Iterator[None]:
    started = time.monotonic()
    on_event(LabEvent(step))
    yield
    on_event(LabEvent(step, time.monotonic() - started))


def _make(
    spec: ClusterSpec,
    directory: LabDirectory,
    backend: Backend,
    privilege: str,
    probe: bool,
    on_event: OnEvent,
) -> Lab:
    nodes = backend.create(directory.path, privilege)
    done = False
    try:
        with _timed("start", on_event):
            nodes.up(spec)
        with _timed("limit", on_event):
            for node in nodes.list():
                nodes.shape(node, spec.links_of(node.name))
        report = _probed(nodes, spec, on_event) if probe else None
        if report is not None:
            require_carried(report)
        lab = Lab(directory.name, spec, backend.name, nodes, report, time.time())
        _write(lab, directory)
        nodes.keep()
        done = True
        return lab
    finally:
        if not done:
            nodes.down()
            directory.remove()


def _probed(nodes: Shapeable, spec: ClusterSpec, on_event: OnEvent) -> ProbeReport:
    with _timed("measure", on_event):
        return run_probe(nodes, spec)


def _measured(lab: Lab, directory: LabDirectory, on_event: OnEvent) -> Lab:
    with directory.in_use("its links are being measured"):
        report = _probed(lab.nodes, lab.spec, on_event)
    lab = replace(lab, probe=report)
    _write(lab, directory)
    require_carried(report)
    return lab
