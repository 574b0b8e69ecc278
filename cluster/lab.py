"""Labs by name: bring one up, find it again, measure it, take it down.

Owns the order of things and what is kept between commands. How nodes are made is a backend's
matter; where state lies is `cluster.state`'s.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cluster.backends import (
    BACKENDS,
    Chosen,
    choose_backend,
    naming_others,
    require_backend,
    require_privilege,
)
from cluster.carried import is_too_slow, rate_advice
from cluster.errors import LabError, NoLab
from cluster.kept import DEFAULT_LAB, Lab, no_lab, read_lab, write_lab
from cluster.nodes import Making, Place, Shapeable
from cluster.probe import ProbeReport, require_carried, run_probe
from cluster.relink import mend
from cluster.same import require_same
from cluster.spec import ClusterSpec
from cluster.state import LabDirectory, Use

__all__ = [
    "DEFAULT_LAB",
    "Lab",
    "LabEvent",
    "bring_up",
    "how_it_ended",
    "in_use",
    "list_labs",
    "measure",
    "open_lab",
    "plan",
    "take_down",
    "user_of",
]


@dataclass(frozen=True)
class LabEvent:
    """Progress of `bring_up`: a step (`image` where one is built, `start`, `limit`, `measure`;
    `search` for a rate that can be carried) begins, or has ended. First of all, `choose` tells
    which backend was taken."""

    step: str
    seconds: float | None = None
    """How long the step took; None as it begins."""
    chosen: Chosen | None = None


OnEvent = Callable[[LabEvent], None]


def ignore(event: LabEvent) -> None:
    del event


def open_lab(name: str = DEFAULT_LAB) -> Lab:
    """The lab that is up under this name; what a dead lab left is removed.

    Raises NoLab, and LabBusy while another command brings it up.
    """
    lab = _find(name)
    if lab.pending is None:
        return lab
    directory = LabDirectory.of(name)
    with directory.locked():
        return mend(read_lab(directory), directory)


def _find(name: str) -> Lab:
    """As open_lab, but links that a killed command left half changed stay so."""
    directory = LabDirectory.of(name)
    try:
        return read_lab(directory)
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
    making: Making = Making(),  # noqa: B008 - frozen
    probe: bool = True,
    on_event: OnEvent = ignore,
    *,
    lasting: bool = True,
) -> Lab:
    """Makes the lab, limits its links and measures them; or leaves nothing.

    A lab of the same name and specification is returned as it is (`already_up`), measured if it
    was not. Raises LabExists where it has another specification or backend. A lab that is not
    `lasting` is gone when this process is, however that ends.
    """
    require_backend(making.backend)
    require_privilege(making.privilege)
    directory = LabDirectory.of(name)
    with directory.locked():
        lab = _read_or_clear(directory)
        if lab is None:
            return _make(spec, directory, making, probe, on_event, lasting)
        require_same(lab, spec, making)
        lab = replace(lab, already_up=True)
        return measure_held(lab, directory, on_event) if probe and lab.probe is None else lab


def take_down(name: str = DEFAULT_LAB) -> Lab:
    """Removes the lab and all that runs in it; returns what it was. Raises NoLab."""
    directory = LabDirectory.of(name)
    _find(name)
    with directory.locked():
        lab = read_lab(directory)
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
        raise no_lab(lab.name) from exc


def user_of(name: str) -> str | None:
    """What runs on the lab's links now, such as `run 20261130-1104-hier (process 71)`."""
    return LabDirectory.of(name).user()


def how_it_ended(lab: Lab) -> str | None:
    """What became of this very lab; None while it is up."""
    try:
        same = open_lab(lab.name).created_at == lab.created_at
    except LabError as exc:
        return exc.seen or exc.message
    return None if same else "it was taken down, and another one of its name is up"


def measure(name: str = DEFAULT_LAB, on_event: OnEvent = ignore) -> Lab:
    """Measures the links of a lab that is up, and keeps the result, good or bad.

    Raises ProbeFailed (after keeping it) where a link is off its ceiling.
    """
    directory = LabDirectory.of(name)
    open_lab(name)
    with directory.locked():
        return measure_held(mend(read_lab(directory), directory), directory, on_event)


def plan(
    spec: ClusterSpec,
    name: str = DEFAULT_LAB,
    making: Making = Making(),  # noqa: B008 - frozen
) -> tuple[str, ...]:
    """The exact commands that bring_up would run. Raises where it would refuse."""
    require_privilege(making.privilege)
    place = Place(name, LabDirectory.of(name).path, making)
    return choose_backend(making).backend.plan(spec, place)


def list_labs() -> tuple[str, ...]:
    """Names of the labs that have state here, dead or alive."""
    return LabDirectory.names()


def _read_or_clear(directory: LabDirectory) -> Lab | None:
    """The lab; where none is alive, what a dead one left is removed. Needs the lock."""
    try:
        return mend(read_lab(directory), directory)
    except NoLab:
        for backend in BACKENDS.values():
            backend.clear(directory.path)
        directory.clear()
        return None


@contextmanager
def timed(step: str, on_event: OnEvent) -> Iterator[None]:
    """Tells of a step as it begins and as it has ended."""
    started = time.monotonic()
    on_event(LabEvent(step))
    yield
    on_event(LabEvent(step, time.monotonic() - started))


def _make(
    spec: ClusterSpec,
    directory: LabDirectory,
    making: Making,
    probe: bool,
    on_event: OnEvent,
    lasting: bool,
) -> Lab:
    chosen = choose_backend(making)
    backend, place = chosen.backend, Place(directory.name, directory.path, making)
    nodes: Shapeable | None = None
    done = False
    try:
        with naming_others(chosen, spec, making):
            nodes = backend.create(place)
            on_event(LabEvent("choose", 0.0, chosen))
            backend.prepare(place, lambda: timed("image", on_event))
            with timed("start", on_event):
                nodes.up(spec)
        with timed("limit", on_event):
            for node in nodes.list():
                nodes.shape(node, spec.links_of(node.name))
        report = _probed(nodes, spec, on_event) if probe else None
        if report is not None:
            _require_carried(report, nodes, spec, directory.name, on_event)
        lab = Lab(directory.name, spec, backend.name, nodes, report, time.time())
        write_lab(lab, directory)
        if lasting:
            nodes.keep()
        done = True
        return lab
    finally:
        if not done:
            if nodes is not None:
                nodes.down()
            directory.remove()


def _probed(nodes: Shapeable, spec: ClusterSpec, on_event: OnEvent) -> ProbeReport:
    with timed("measure", on_event):
        return run_probe(nodes, spec)


def _require_carried(
    report: ProbeReport, nodes: Shapeable, spec: ClusterSpec, name: str, on_event: OnEvent
) -> None:
    """Raises ProbeFailed with the rate to ask for instead, found on the nodes themselves."""
    advice = None
    if is_too_slow(report):
        with timed("search", on_event):
            advice = rate_advice(report, nodes, spec, name)
    require_carried(report, advice)


def measure_held(lab: Lab, directory: LabDirectory, on_event: OnEvent) -> Lab:
    """As measure, for who holds the lab's lock. Raises LabBusy while somebody uses the links."""
    with directory.in_use("its links are being measured"):
        report = _probed(lab.nodes, lab.spec, on_event)
    lab = replace(lab, probe=report)
    write_lab(lab, directory)
    require_carried(report)
    return lab
