"""What the figures of a run mean: the bottleneck in one sentence, and what was checked.

Owns the thresholds and the words. The figures come from `figures`, the links from run.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.figures import RunFigures, busiest
from jobs.parts import Side, changed, first_limits

Limits = Mapping[Side, int | None]

SMALL_SHARE = 0.1  # of a step: a wait below it is not what holds the training up
UNEXPLAINED_SHARE = 0.1
MOST_TIME_LOST_S = 1e-6  # phases are sums of the same clock: only float rounding may differ


@dataclass(frozen=True)
class Check:
    """One thing that was checked: whether it holds, and the words for it."""

    good: bool
    text: str


def slowest_link(run: Mapping[str, Any], stale: bool = False) -> dict[str, Any]:
    """The link of the contract: the slowest measured one, and whose NIC it is.

    `proof` is "none", and the figures null, where nothing was measured. `stale`: whether links were
    changed after that, while the run went on.
    """
    links = [link for link in (run.get("probe") or {}).get("links", ()) if _between_nodes(link)]
    if not links:
        keys = ("node", "direction", "configured_bits_per_second")
        rates = ("measured_bytes_per_second", "ceiling_bytes_per_second")
        return {**dict.fromkeys([*keys, *rates]), "proof": "none"}
    link = min(links, key=lambda link: float(link["measured_bytes_per_second"]))
    sender_limits = _limit(run, link["src"]) <= _limit(run, link["dst"])
    return {
        "node": link["src"] if sender_limits else link["dst"],
        "direction": "out" if sender_limits else "in",
        "configured_bits_per_second": link["configured_bits_per_second"],
        "measured_bytes_per_second": link["measured_bytes_per_second"],
        "ceiling_bytes_per_second": link["ceiling_bytes_per_second"],
        "proof": "stale" if stale else "probed",
    }


def link_use(figures: RunFigures, run: Mapping[str, Any]) -> float | None:
    """The share of a step in which the slowest link carries data, from 0 to 1.

    None where it is not known what the link carries, also because it was changed.
    """
    measured = slowest_link(run)["measured_bytes_per_second"]
    sent = busiest(figures.inter_node_bytes)
    sent = busiest(figures.nic_tx_bytes) if sent is None else sent
    if not measured or sent is None or figures.step is None or changed(figures.steps, run):
        return None
    if not figures.step.mean:
        return None
    return min(1.0, float(sent / measured / figures.step.mean))


def bottleneck(
    figures: RunFigures, run: Mapping[str, Any], limits: Limits | None = None
) -> str | None:
    """One sentence on what to make faster; None where nothing was measured.

    `limits` are those of the links that these steps went over; None: those the run began with.
    """
    if figures.step is None or figures.phase_s is None or not figures.step.mean:
        return None
    waits = {
        **_waits(figures, run, limits or first_limits(run)),
        f"loading data. It takes {_ms(figures.phase_s['data'])} of every step.": figures.phase_s[
            "data"
        ],
        f"none of the phases. {_ms(figures.phase_s['other'])} of every step are outside all of "
        "them: more processes than cores, perhaps.": figures.phase_s["other"],
    }
    worst = max(waits, key=lambda sentence: waits[sentence])
    if waits[worst] >= SMALL_SHARE * figures.step.mean:
        return worst
    exposed_s = figures.phase_s["comm_exposed"]
    share = exposed_s / figures.step.mean * 100
    return (
        f"computing. Waiting for other ranks takes {share:.0f} % of a step: a faster network saves "
        f"at most {_ms(exposed_s)}."
    )


def _waits(figures: RunFigures, run: Mapping[str, Any], limits: Limits) -> dict[str, float]:
    """Sentences on waiting for other ranks, with the seconds of each."""
    network_s = figures.network_wait_s
    if network_s is not None:
        return {
            _network(figures, run, limits, network_s): network_s,
            _straggler(figures, run): figures.straggler_wait_s or 0.0,
        }
    exposed_s = figures.exposed_s or 0.0
    use = link_use(figures, run) if run["nnodes"] > 1 else None
    carries = f"; the link between nodes carries data {(use or 0.0) * 100:.0f} % of the time"
    sentence = (
        f"communication, or a slower rank. It adds {_ms(exposed_s)} to every step"
        f"{'' if use is None else carries}. Which of the two torch's own class does not tell."
    )
    return {sentence: exposed_s}


def _network(figures: RunFigures, run: Mapping[str, Any], limits: Limits, network_s: float) -> str:
    adds = f"It adds {_ms(network_s)} to every step"
    if run["nnodes"] == 1:
        return f"communication inside the node. {adds}."
    inside = _busiest([step.intra_node_bytes for step in figures.steps], "inside", run, limits)
    between = _busiest([step.inter_node_bytes for step in figures.steps], "out", run, limits)
    if inside[0] > between[0]:
        return f"communication inside {inside[1]}. {adds}."
    use = link_use(figures, run)
    carries = "" if use is None else f" and carries data {use * 100:.0f} % of the time"
    return f"the link between nodes. {adds}{carries}."


def _busiest(
    step_bytes: Sequence[Sequence[int | None]],
    direction: str,
    run: Mapping[str, Any],
    limits: Limits,
) -> tuple[float, str]:
    """How long the limit of the busiest node needs for its bytes of all steps, and its name."""
    busy = [(0.0, "")]
    for index, node in enumerate(run["lab"]["nodes"]):
        limit = limits.get((node["name"], direction))
        if limit is not None:
            sent = sum(per_node[index] or 0 for per_node in step_bytes)
            busy.append((sent * 8 / limit, str(node["name"])))
    return max(busy)


def _straggler(figures: RunFigures, run: Mapping[str, Any]) -> str:
    rank = figures.held_up_by
    waited = _ms(figures.straggler_wait_s or 0.0)
    if rank is None:
        return "a slower rank."
    node = run["lab"]["nodes"][run["node_of"][rank]]["name"]
    return (
        f"a slower rank. The others wait {waited} in every step for a slower one, "
        f"most often for rank {rank} ({node})."
    )


def checks(
    figures: RunFigures, run: Mapping[str, Any], summary: Mapping[str, Any]
) -> Sequence[Check]:
    """What the closing screen says was checked."""
    return [
        _replicas_check(run, summary),
        _time_check(figures),
        _link_check(figures, run, summary),
    ]


def _replicas_check(run: Mapping[str, Any], summary: Mapping[str, Any]) -> Check:
    num_ranks = run["world_size"]
    agree = summary["ranks_agree"]
    if agree is None:
        return Check(False, "parameters not compared: not every rank came to its end")
    if agree:
        unexpected = run["job"]["expects_divergence"] and num_ranks > 1
        text = f"parameters equal on {num_ranks} of {num_ranks} ranks"
        return Check(not unexpected, f"{text} ({summary['params_sha256'][:8]})")
    if run["job"]["expects_divergence"]:
        return Check(True, "parameters differ between ranks, as this job expects")
    return Check(False, "parameters DIFFER between ranks")


def _time_check(figures: RunFigures) -> Check:
    if figures.phase_s is None or figures.step is None or not figures.step.mean:
        return Check(False, "no time was measured")
    if figures.time_lost_s > MOST_TIME_LOST_S:
        return Check(False, f"time does NOT add up: {_ms(figures.time_lost_s)} off in one step")
    rest = figures.phase_s["other"] / figures.step.mean
    return Check(rest <= UNEXPLAINED_SHARE, f"time adds up (rest {rest * 100:.1f} %)")


def _link_check(figures: RunFigures, run: Mapping[str, Any], summary: Mapping[str, Any]) -> Check:
    if run["nnodes"] == 1:
        return Check(True, "one node: no link between nodes")
    if summary["link"]["proof"] == "none":
        return Check(False, "link NOT proven: it was not measured")
    if figures.link_carried is False:
        return Check(False, "link NOT proven: its counters miss bytes that were sent")
    if summary["link"]["proof"] == "stale":
        return Check(False, _proven_until(summary["parts"]))
    if run["lab"]["backend"] != run["lab"]["underlay"]:
        return Check(True, "links measured; nothing is limited by this backend")
    return Check(True, "link proven")


def _proven_until(parts: Sequence[Mapping[str, Any]]) -> str:
    if parts and parts[0]["proof"] == "probed":
        last = parts[0]["last_step"] + 1  # people count from 1
        return f"link proven up to step {last}; then it was changed, and not measured since"
    return "link NOT proven: it was changed before the first step, and not measured since"


def _between_nodes(link: Mapping[str, Any]) -> bool:
    return str(link["mode"]) != "intra_node"


def _limit(run: Mapping[str, Any], name: str) -> float:
    """The configured rate of a node's own NIC, bits per second; infinite where not limited."""
    rate = next(node["rate_bits_per_s"] for node in run["lab"]["nodes"] if node["name"] == name)
    return float("inf") if rate is None else float(rate)


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.0f} ms" if milliseconds >= 9.95 else f"{milliseconds:.1f} ms"
