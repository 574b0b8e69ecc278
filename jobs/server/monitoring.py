"""The exporter meets the Prometheus of a lab that was brought up with one."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException

from cluster.errors import ClusterError, LabExists
from cluster.lab import DEFAULT_LAB, Lab
from jobs.server.ports import GATEWAY_PORT
from jobs.server.process import Serving
from jobs.server.registry import FAULTS, changing

ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Watching:
    """Pages that show a lab's runs, by service; `fault` tells why they stay empty."""

    pages: Mapping[str, str] = field(default_factory=dict)
    fault: str | None = None


def watch(exporter: Serving, lab: Lab, asked: bool) -> Watching:
    """Lets the exporter answer the lab's own Prometheus, where it has one; waits until it does.

    Raises LabExists where it was `asked` for and the lab is up without. A fault is told, never
    raised: a lab is worth having without.
    """
    try:
        monitoring = lab.nodes.monitoring
    except ClusterError as exc:
        return Watching(fault=exc.message)
    if monitoring is None and asked:
        option = "" if lab.name == DEFAULT_LAB else f" LAB={lab.name}"
        raise LabExists(
            f'lab "{lab.name}" is up without Prometheus and Grafana',
            "they come and go with their lab",
            f"make cluster-down{option} && make cluster-up{option} MONITORING=1",
        )
    gateway, pages = (monitoring.gateway, monitoring.pages) if monitoring else (None, {})
    if exporter.place is None:
        return Watching(pages, exporter.fault)
    try:
        with changing():
            exporter.place.note_gateway(lab.name, gateway)
    except FAULTS as exc:
        return Watching(pages, str(exc))
    if monitoring is None:
        return Watching()
    return Watching(monitoring.pages, _fault(str(monitoring.gateway.ip)))


def _fault(gateway: str) -> str | None:
    """None as soon as metrics are answered there. No proxy is asked: it is this machine."""
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    while (seen := _answer(gateway)) is not None:
        if time.monotonic() > deadline_s:
            return f"the exporter does not answer Prometheus at {gateway}:{GATEWAY_PORT}: {seen}"
        time.sleep(0.05)
    return None


def _answer(gateway: str) -> str | None:
    """What is wrong with the answer; None where it is as it should be."""
    connection = HTTPConnection(gateway, GATEWAY_PORT, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        status = connection.getresponse().status
    except (OSError, HTTPException) as exc:
        return str(exc)
    finally:
        connection.close()
    return None if status == HTTPStatus.OK else f"it answers {status}"
