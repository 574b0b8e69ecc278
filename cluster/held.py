"""Whether links are still limited as their lab says: a limit is never taken on trust."""

import time
from collections.abc import Mapping

from cluster.errors import ShapingError
from cluster.kept import DEFAULT_LAB, Lab, read_lab
from cluster.shaping import Side
from cluster.spec import LinksSpec
from cluster.state import LabDirectory
from cluster.units import format_rate

LOOKS, PAUSE_S = 5, 0.4
"""A command that is just changing links needs some moments."""


def require_limited(lab: Lab) -> None:
    """Raises ShapingError where the kernel holds another limit than the lab says.

    A change that `cluster.links` makes meanwhile is none of these: the lab is read again.
    """
    for look in range(LOOKS):
        wrong = _wrong(lab if look == 0 else read_lab(LabDirectory.of(lab.name)))
        if wrong is None:
            return
        time.sleep(PAUSE_S)
    option = "" if lab.name == DEFAULT_LAB else f" LAB={lab.name}"
    raise ShapingError(
        "a link is not limited as the lab says: somebody changed it by hand",
        "no result may carry a limit that the kernel does not hold",
        f"make cluster-down{option} && make cluster-up{option}",
        seen=wrong,
    )


def _wrong(lab: Lab) -> str | None:
    """The first side of a node that holds another limit; None where all hold what they should."""
    for node in lab.nodes.list():
        held = lab.nodes.limits(node)
        for side, rate in _rates(lab.spec.links_of(node.name)).items():
            if held[side] != rate:
                return (
                    f"{node.name} {side}: asked {format_rate(rate)}; "
                    f"read back {format_rate(held[side])}"
                )
    return None


def _rates(links: LinksSpec) -> Mapping[str, int | None]:
    nic = links.inter_node.rate_bits_per_s
    inside = links.intra_node.rate_bits_per_s
    return {Side.OUT.value: nic, Side.IN.value: nic, Side.INSIDE.value: inside}
