"""A link as tc commands, and what the kernel must read back: pure, nothing runs here.

Every limit is a token bucket (tbf) on what leaves a device; delay and loss are netem. A backend
says which device stands for which side of a node. What is handed to tc is always bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any

from cluster.errors import ShapingError
from cluster.spec import LinkSpec, LinksSpec
from cluster.units import format_duration

MIN_BURST_BYTES = 128 * 1024
"""Above the largest packet that segmentation offload builds (64 KiB and headers), which tbf would
otherwise cut up: ten times the work, and 1 % of the rate."""
BURST_S = 0.002
QUEUE_S, QUEUE_BYTES, LONGEST_QUEUE_S = 0.05, 1 << 19, 0.1
"""Room for several flows, as a switch has: 50 ms, or 512 KiB where that is more (a fast sender
into a slow node drops whole 64 KiB packets of offload otherwise), but never more than 100 ms."""
MOST_QUEUE_BYTES = 1 << 30
NETEM_PACKETS = 1000

ROOT, CHILD = "1:", "10:"


class Side(StrEnum):
    """What a device stands for, seen from its node."""

    OUT = "out"
    IN = "in"
    INSIDE = "inside"


@dataclass(frozen=True)
class Qdisc:
    """One queueing discipline: its tc options, and the values the kernel must read back."""

    kind: str
    handle: str
    parent: str
    options: tuple[str, ...]
    expected: Mapping[str, tuple[float, float]]
    """Key of `tc -j`: (value, allowed difference)."""


def burst_bytes(rate_bits_per_s: int) -> int:
    """What may pass at once; transfers shorter than this are not slowed down at all."""
    return max(MIN_BURST_BYTES, round(rate_bits_per_s / 8 * BURST_S))


def queue_bytes(rate_bits_per_s: int) -> int:
    """What may wait for a link before packets are dropped."""
    rate = rate_bits_per_s / 8
    wanted = max(rate * QUEUE_S, min(QUEUE_BYTES, rate * LONGEST_QUEUE_S))
    return round(min(wanted, MOST_QUEUE_BYTES))


def wanted_qdiscs(links: LinksSpec) -> dict[Side, tuple[Qdisc, ...]]:
    """What each side of a node should hold; nothing where a side is unlimited."""
    nic, inside = links.inter_node, links.intra_node
    return {
        Side.OUT: (*_netem(nic), *_tbf(nic.rate_bits_per_s, below_netem=nic.needs_netem)),
        Side.IN: _tbf(nic.rate_bits_per_s),
        Side.INSIDE: _tbf(inside.rate_bits_per_s),
    }


def _tbf(rate_bits_per_s: int | None, below_netem: bool = False) -> tuple[Qdisc, ...]:
    if rate_bits_per_s is None:
        return ()
    rate = rate_bits_per_s // 8
    burst = burst_bytes(rate_bits_per_s)
    limit = burst + queue_bytes(rate_bits_per_s)
    tick = rate * 1e-6 + 1  # the kernel keeps a burst as time
    return (
        Qdisc(
            "tbf",
            CHILD if below_netem else ROOT,
            ROOT + "1" if below_netem else "root",
            ("rate", f"{rate_bits_per_s}bit", "burst", str(burst), "limit", str(limit)),
            {"rate": (rate, 0), "burst": (burst, tick), "limit": (limit, 0)},
        ),
    )


def _netem(link: LinkSpec) -> tuple[Qdisc, ...]:
    if not link.needs_netem:
        return ()
    options = ["limit", str(_netem_packets(link))]
    expected: dict[str, tuple[float, float]] = {"limit": (_netem_packets(link), 0)}
    if link.delay_s:
        options += ["delay", format_duration(link.delay_s)]
        expected["delay.delay"] = (link.delay_s, 1e-6)
    if link.jitter_s:
        options += [format_duration(link.jitter_s)]
        expected["delay.jitter"] = (link.jitter_s, 1e-6)
    if link.loss_ratio:
        options += ["loss", f"{link.loss_ratio * 100:.7g}%"]
        expected["loss-random.loss"] = (link.loss_ratio, 1e-6)
    return (Qdisc("netem", ROOT, "root", tuple(options), expected),)


def _netem_packets(link: LinkSpec) -> int:
    """Twice what is under way during the longest delay, so that netem itself drops nothing."""
    if link.rate_bits_per_s is None:
        return NETEM_PACKETS * 100
    in_flight = link.rate_bits_per_s / 8 * (link.delay_s + link.jitter_s) / link.mtu
    return max(NETEM_PACKETS, ceil(2 * in_flight))


def qdisc_commands(
    tc: Sequence[str],
    device: str,
    wanted: Sequence[Qdisc],
    current: Sequence[Mapping[str, Any]] = (),
) -> list[list[str]]:
    """The commands that turn what a device holds (`tc -j qdisc show`) into what is wanted.

    `tc` is how tc is called there, such as `tc -n node0`. None where it holds it already. A limit
    that stays is changed in place, so that traffic is never unlimited for a moment.
    """
    if _difference(wanted, current) is None:
        return []
    commands = []
    kinds = [qdisc["kind"] for qdisc in _ours(current)]
    if kinds[:1] != [qdisc.kind for qdisc in wanted[:1]] and kinds:
        commands.append([*tc, "qdisc", "del", "dev", device, "root"])
    elif len(kinds) > len(wanted):
        commands.append([*tc, "qdisc", "del", "dev", device, "parent", ROOT + "1"])
    for qdisc in wanted:
        place = ["root"] if qdisc.parent == "root" else ["parent", qdisc.parent]
        head = [*tc, "qdisc", "replace", "dev", device, *place, "handle", qdisc.handle]
        commands.append([*head, qdisc.kind, *qdisc.options])
    return commands


def _ours(current: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [qdisc for qdisc in current if qdisc.get("handle") in (ROOT, CHILD)]


def held_rate(current: Sequence[Mapping[str, Any]]) -> int | None:
    """Bits per second that a device is limited to, as it reads back; None: it is not."""
    for qdisc in _ours(current):
        rate = _lookup(qdisc.get("options", {}), "rate")
        if qdisc["kind"] == "tbf" and rate is not None:
            return int(rate) * 8
    return None


def read_command(tc: Sequence[str], device: str) -> list[str]:
    """Reads back what a device holds; raw, so that byte counts are not shortened."""
    return [*tc, "-j", "-r", "qdisc", "show", "dev", device]


def require_qdiscs(
    where: str, wanted: Sequence[Qdisc], current: Sequence[Mapping[str, Any]]
) -> None:
    """Raises ShapingError unless the kernel holds exactly what is wanted on this device."""
    held = _difference(wanted, current)
    if held is not None:
        asked = ", ".join(f"{it.kind} {' '.join(it.options)}" for it in wanted) or "no limit"
        raise _differs(where, asked, held)


def _difference(wanted: Sequence[Qdisc], current: Sequence[Mapping[str, Any]]) -> str | None:
    """What a device holds that is not wanted; None where all is as wanted."""
    ours = _ours(current)
    if [qdisc["kind"] for qdisc in ours] != [qdisc.kind for qdisc in wanted]:
        return ", ".join(str(qdisc["kind"]) for qdisc in current) or "nothing"
    for qdisc, held_qdisc in zip(wanted, ours, strict=True):
        for key, (value, difference) in qdisc.expected.items():
            held_value = _lookup(held_qdisc.get("options", {}), key)
            if held_value is None or abs(held_value - value) > difference:
                return f"{qdisc.kind} with {key} {held_value}"
    return None


def _lookup(options: Mapping[str, Any], key: str) -> float | None:
    value: Any = options
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, (int, float)) else None


def _differs(where: str, asked: str, held: str) -> ShapingError:
    return ShapingError(
        f"{where}: the kernel does not hold the limit that was asked for",
        "a limit is applied exactly, or the command fails",
        "look at it with: tc qdisc show; report it with the kernel and iproute2 versions",
        seen=f"asked: {asked}; read back: {held}",
    )
