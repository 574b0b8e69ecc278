"""Whether a lab that is up is the one that is asked for; what differs is told with both."""

from ipaddress import IPv4Address

from cluster.backends import AUTO
from cluster.errors import LabExists
from cluster.kept import DEFAULT_LAB, Lab
from cluster.nodes import Making
from cluster.spec import ALL, ClusterSpec
from cluster.units import format_rate


def require_same(lab: Lab, spec: ClusterSpec, making: Making) -> None:
    """Raises LabExists unless bringing this up again would make the same lab."""
    here, asked = lab.spec.describe(), spec.describe()
    addresses = [node.address for node in lab.nodes.list()]
    option = "" if lab.name == DEFAULT_LAB else f" LAB={lab.name}"
    fixes = [f"make cluster-down{option}, then bring it up again", "another lab: LAB=name"]
    if making.backend not in (AUTO, lab.backend):
        here, asked = f"backend {lab.backend}", f"backend {making.backend}"
    elif making.subnet and not all(IPv4Address(each) in making.subnet for each in addresses):
        here, asked = f"addresses {', '.join(addresses)}", f"subnet {making.subnet}"
    elif lab.spec.resolved() == spec.resolved():
        return
    elif lab.spec.with_rates(ALL, rates := _usual_rates(spec)).resolved() == spec.resolved():
        words = " ".join(f"{_VARIABLES[link]}={rate}" for link, rate in rates.items())
        fixes.insert(0, f"make link NODE={ALL} {words}{option}")
    if lab.changed_at is not None:
        here += " (changed by make link)"
    raise LabExists(
        f'lab "{lab.name}" is up with another specification',
        "a lab is never changed behind the back of those who use it",
        fixes,
        seen=f"up: {here}; asked: {asked}",
    )


_VARIABLES = {"inter_node": "RATE", "intra_node": "INTRA_RATE"}


def _usual_rates(spec: ClusterSpec) -> dict[str, str]:
    """The rates of a node without its own; the inside only where it is limited."""
    rates = {"inter_node": format_rate(spec.links.inter_node.rate_bits_per_s)}
    if spec.links.intra_node.rate_bits_per_s is not None:
        rates["intra_node"] = format_rate(spec.links.intra_node.rate_bits_per_s)
    return rates
