"""What this machine can do for a lab, asked by doing it: all that needs no installed package.

Owns the order of the checks; each kind has a file of its own. Standard library only, so that it
answers where no environment can be built.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.doctor.checks import Check
from cluster.doctor.docker import docker_checks
from cluster.doctor.files import files_check, state_check
from cluster.doctor.network import (
    commands_check,
    missing_commands,
    network_checks,
    wanted_commands,
)
from cluster.doctor.ports import port_check
from cluster.doctor.room import Size, disk_check, measure_room, room_checks, shared_memory_check
from cluster.doctor.trial import Outcome, try_network


@dataclass(frozen=True)
class Asked:
    """What a lab is to be, and where it is to be used from."""

    checkout: Path
    runs: Path
    size: Size
    netem_for: str = ""
    """What asks for delay, jitter or loss, such as `CLUSTER=far.yaml`."""
    privilege: str = "none"


@dataclass(frozen=True)
class Port:
    """A port of this machine that something of ours takes."""

    address: str
    ports: Sequence[int]
    what: str
    own: str
    """How the command line of our own program is known."""


def host_checks(asked: Asked, port: Port) -> Iterator[Check]:
    """Everything but what is measured with a lab."""
    wanted = wanted_commands(asked.privilege)
    missing = missing_commands(wanted)
    yield commands_check(missing, wanted)
    found = try_network(asked.privilege) if set(missing) <= {"ip", "tc"} else {}
    yield from network_checks(found, missing, asked.netem_for)
    yield from room_checks(measure_room(), asked.size)
    yield shared_memory_check(_lab_shared_bytes(found))
    yield disk_check(asked.runs)
    yield files_check(asked.checkout, asked.runs)
    yield state_check(os.environ)
    yield port_check(port.address, port.ports, port.what, port.own)
    yield from docker_checks()


def _lab_shared_bytes(found: Mapping[str, Outcome]) -> int | None:
    """The size of a lab's own /dev/shm, as the trial mounted one."""
    folders = found.get("folders")
    if folders is None or not folders.ok:
        return None
    block_bytes, num_blocks = folders.text.split()
    return int(block_bytes) * int(num_blocks)
