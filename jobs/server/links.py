"""What each node's link was set to, carried when it was measured, and can carry, for one run.

From run.json alone. A link that was changed while the run went on has only what it is set to now:
what was measured before says nothing about it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ENDS = {"out": "src", "in": "dst"}


@dataclass(frozen=True)
class LinkRates:
    """One direction of one node's link, payload bytes per second but for `configured`.

    `configured` counts headers too; None where nothing limits the link. `measured` and `ceiling`
    are None where it was not measured, or changed since.
    """

    node: str
    direction: str
    configured: float | None
    measured: float | None
    ceiling: float | None


def link_rates(run: Mapping[str, Any]) -> Iterator[LinkRates]:
    """Both directions of every node's link, nodes in order."""
    changes = {(it["node"], it["direction"]): it for it in run.get("link_changes") or ()}
    for node in run["lab"]["nodes"]:
        name, rate = str(node["name"]), node["rate_bits_per_s"]
        for direction in ENDS:
            change = changes.get((name, direction))
            if change is not None:
                yield LinkRates(name, direction, _changed_to(change), None, None)
                continue
            best = _measurement(run, name, direction)
            yield LinkRates(
                node=name,
                direction=direction,
                configured=None if rate is None else rate / 8,
                measured=best["measured_bytes_per_second"] if best else None,
                ceiling=best["ceiling_bytes_per_second"] if best else None,
            )


def _changed_to(change: Mapping[str, Any]) -> float | None:
    rate = change["configured_bits_per_second"]
    unknown = rate is None or change["settled_ns"] is None  # the command that changed it died
    return None if unknown else float(rate) / 8


def _measurement(run: Mapping[str, Any], node: str, direction: str) -> Mapping[str, Any] | None:
    """Both ways at once where that was measured, as a reduction sends and receives together; the
    best pair, since a slow peer says nothing about this node."""
    links = [
        link for link in (run.get("probe") or {}).get("links", ()) if link[ENDS[direction]] == node
    ]
    for mode in ("both_ways", "one_way"):
        found = [link for link in links if link["mode"] == mode]
        if found:
            best: Mapping[str, Any] = max(found, key=lambda it: it["measured_bytes_per_second"])
            return best
    return None
