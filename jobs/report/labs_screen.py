"""The screen of all labs of a person: `make cluster-status` without LAB."""

import re
from collections.abc import Sequence

from cluster.lab import Lab
from cluster.spec import ClusterSpec
from cluster.state import Activity
from cluster.survey import Condition, Sighting
from jobs.report.lab_words import GIGABIT, clock, rate_words, slowest_rate
from jobs.report.table import Column, table
from jobs.report.text import QUIET, Lines, count, labelled, line, paragraph, significant

COLUMNS = (
    Column(("lab",), right=False, cut=8),
    Column(("nodes", "x ranks")),
    Column(("limit",)),
    Column(("measured *",)),
    Column(("at",), from_width=120),
    Column(("up for",)),
    Column(("now",), right=False),
)
LEGEND = "* the slowest link between nodes, one way; changed: not measured since then"
JOBS_AT_WORK = ("run ", "compare of ", "scale of ")
"""How what uses a lab begins where it trains; all else measures."""
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
WORDS = {
    Condition.COMING_UP: "coming up",
    Condition.BUSY: "changing",
    Condition.UNREADABLE: "unreadable",
}


def labs_screen(labs: Sequence[Sighting], now_s: float, width: int) -> Lines:
    """A row for each lab, then what each one is doing, and what was found dead."""
    shown = [each for each in labs if each.condition is not Condition.REMOVED]
    dead = [each for each in labs if each.condition is Condition.REMOVED]
    lines: Lines = []
    for each in dead:
        text = f'Lab "{each.name}" was dead ({each.note}); what it had left is removed.'
        lines += paragraph(text, width)
    if not shown:
        return [*lines, *paragraph("No lab is up.    next    make cluster-up", width)]
    lines += [line()] if dead else []
    lines += [line(text) for text in table(COLUMNS, [_row(each, now_s) for each in shown], width)]
    lines += [line(f"  {LEGEND}", QUIET)]
    more = _more(shown, now_s, width)
    return [*lines, *([line(), *more] if more else []), line(), *_next(shown)]


def _more(shown: Sequence[Sighting], now_s: float, width: int) -> Lines:
    """What does not fit into a row: who is at work, and what is wrong."""
    told = {each.name: doing(each, now_s) + _wrong(each) for each in shown}
    label_width = 2 + max((len(name) for name, words in told.items() if words), default=0)
    lines: Lines = []
    for name, words in told.items():
        for number, each in enumerate(words):
            lines += labelled("" if number else name, each, width, label_width)
    return lines


def _wrong(sighting: Sighting) -> list[str]:
    if sighting.condition is not Condition.UNREADABLE:
        return []
    return [f"{sighting.note}", f"fix: {sighting.fix}"]


def doing(sighting: Sighting, now_s: float) -> list[str]:
    """What is done with a lab now, and for how long: nothing where it is idle."""
    words = []
    for activity in (sighting.usage, sighting.worker):
        if activity is not None:
            who = f"process {activity.what}" if activity.what.isdigit() else activity.what
            words.append(f"{who}, for {age(now_s - activity.since)}")
    return words


def process_of(activity: Activity) -> int | None:
    """The number of the process that does it, as it has said."""
    found = re.search(r"(\d+)\)?$", activity.what)
    return int(found[1]) if found else None


def age(seconds: float) -> str:
    """`12 s`, `3 min`, `2 h 5 min`, `20 h`, `3 days`: rounded down."""
    whole = max(0, int(seconds))
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min"
    if 10 * HOUR_S <= whole < DAY_S:
        return f"{whole // HOUR_S} h"
    if whole < DAY_S:
        return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S} min"
    return count(whole // DAY_S, "day")


def _row(sighting: Sighting, now_s: float) -> list[str]:
    lab = sighting.lab
    if lab is None:
        return [sighting.name, "-", "-", "-", "-", "-", WORDS[sighting.condition]]
    return [
        lab.name,
        f"{lab.spec.nodes} x {lab.spec.ranks_per_node}",
        _limits(lab.spec),
        _measured(lab),
        clock(lab.probe.measured_at) if lab.probe else "-",
        age(now_s - lab.created_at),
        _now(sighting),
    ]


def _limits(spec: ClusterSpec) -> str:
    """`200 Mbit/s`, or `50 to 200 Mbit/s` where nodes differ."""
    rates = {spec.links_of(name).inter_node.rate_bits_per_s for name in spec.node_names}
    ordered = sorted(rates, key=lambda rate: (rate is None, rate or 0))
    least, most = rate_words(ordered[0]), rate_words(ordered[-1])
    if len(rates) == 1:
        return least
    unit = least.rpartition(" ")[2]
    return f"{least.removesuffix(f' {unit}') if most.endswith(unit) else least} to {most}"


def _measured(lab: Lab) -> str:
    slowest = slowest_rate(lab.probe)
    if slowest is not None:
        bits_per_s = slowest * 8
        unit, size = ("Gbit/s", GIGABIT) if bits_per_s >= GIGABIT else ("Mbit/s", 1e6)
        return f"{significant(bits_per_s / size, 4)} {unit}"
    if lab.spec.nodes == 1:
        return "no link"
    return "changed" if lab.proof == "stale" else "no"


def _now(sighting: Sighting) -> str:
    if sighting.usage is not None:
        return "runs a job" if sighting.usage.what.startswith(JOBS_AT_WORK) else "in use"
    return "changing" if sighting.worker is not None else "idle"


def _next(shown: Sequence[Sighting]) -> Lines:
    name = next((each.name for each in shown if each.lab is not None), shown[0].name)
    option = "" if [each.name for each in shown] == ["default"] else f" LAB={name}"
    return [
        line(f"  links   make cluster-status LAB={name}".ljust(44) + "one lab, link by link"),
        line(f"  next    make run JOB=hier{option}".ljust(44) + "train on it"),
        line(f"  stop    make cluster-down{option}"),
    ]
