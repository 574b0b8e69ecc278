"""What containers are limited to, as the engine holds it: pure.

An engine leaves out what its kernel cannot limit, and only warns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.errors import ShapingError
from cluster.spec import LimitsSpec

NANO = 1_000_000_000
CPU_TOLERANCE = 1e-5
"""Compose calculates with seven digits: 1.2345 cpus become 1.234500096."""


def require_limits(asked: LimitsSpec, containers: Sequence[Mapping[str, Any]]) -> None:
    """Raises ShapingError unless every container is limited to what was asked for, no less.

    `containers` as the engine inspects them.
    """
    cpus, num_bytes = asked.cpus or 0, asked.memory_bytes or 0
    for container in containers:
        config = container["HostConfig"]
        held = (int(config.get("NanoCpus") or 0) / NANO, int(config.get("Memory") or 0))
        if abs(held[0] - cpus) > CPU_TOLERANCE * cpus or held[1] != num_bytes:
            raise ShapingError(
                f"nodes are not limited to {asked.describe() or 'nothing'}",
                "what a cluster file asks for is applied, or the command fails",
                (
                    "docker info     ends with what this kernel cannot limit",
                    "a cluster file with other limits, or none",
                ),
                seen=f"held: {held[0]:g} cpus, {held[1]:,} bytes (0: no limit)",
            )
