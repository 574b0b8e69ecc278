"""What a trial of the network means for a lab: one check for each thing, with its fix.

Pure but for looking commands up. Standard library only.
"""

import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.doctor.checks import FAULT, NOT_HERE, OK, SKIPPED, Check
from cluster.doctor.trial import STARTED, STEPS, Outcome
from cluster.errors import HostError
from cluster.holding import refusal, search_path, user_name
from cluster.packages import install_commands, load_module

COMMANDS = ("ip", "tc", "unshare", "nsenter", "setpriv", "mount")
CONGESTION_CONTROL = "cubic"
RATE_BYTES_PER_S = 25_000_000
"""What the trial asks of tbf: 200 Mbit/s."""
HELP = "see docs/troubleshooting.md#user-namespaces"
NETEM_HELP = "see docs/troubleshooting.md#delay-jitter-and-loss"
_REFUSED = ("Operation not permitted", "ermission denied", "No space left on device")
_SPACES = (STARTED, "folders", "named", "entered")


@dataclass(frozen=True)
class Feature:
    """One thing that the kernel must do: its module, and what a lab does with it."""

    module: str
    does: str
    only_for: str = ""
    """What cannot be had without it; empty where no lab can do without."""


CONTAINERS = "to limit what comes into a container"
FEATURES: Mapping[str, Feature] = {
    "veth": Feature("veth", "the cable of a node"),
    "bridge": Feature("bridge", "the switch between nodes"),
    "tbf": Feature("sch_tbf", "limits a rate; 200 Mbit/s read back as asked"),
    "congestion": Feature("tcp_cubic", "TCP cubic, pinned by route and read back"),
    "netem": Feature("sch_netem", "delays and loses packets", "for delay, jitter and loss"),
    "ingress": Feature("sch_ingress", "a hook on what comes in", CONTAINERS),
    "u32": Feature("cls_u32", "chooses packets", CONTAINERS),
    "mirred": Feature("act_mirred", "hands packets on", CONTAINERS),
    "ifb": Feature("ifb", "a device to limit them on", CONTAINERS),
}
HANGS_ON = {"u32": "ingress", "mirred": "u32"}


def wanted_commands(privilege: str) -> tuple[str, ...]:
    return (*COMMANDS, "sudo") if privilege == "sudo" and os.geteuid() != 0 else COMMANDS


def missing_commands(wanted: tuple[str, ...] = COMMANDS) -> tuple[str, ...]:
    return tuple(name for name in wanted if shutil.which(name, path=search_path()) is None)


def commands_check(missing: tuple[str, ...], wanted: tuple[str, ...] = COMMANDS) -> Check:
    if missing:
        seen = f"no {' '.join(missing)} on the search path"
        return Check("commands", FAULT, seen, install_commands(missing))
    return Check("commands", OK, " ".join(wanted))


def network_checks(
    found: Mapping[str, Outcome], missing: tuple[str, ...], netem_for: str = ""
) -> Iterator[Check]:
    """`found` is what `try_network` saw, `netem_for` what was asked for and needs netem."""
    spaces = _namespaces(found, missing)
    yield spaces
    for name, feature in FEATURES.items():
        if spaces.state != OK:
            yield Check(name, SKIPPED, "not tried: it needs namespaces")
        elif lacking := [word for word in STEPS[name].split() if word in missing]:
            yield Check(name, SKIPPED, f"not tried: it needs {lacking[0]}")
        elif name in HANGS_ON and not found[HANGS_ON[name]].ok:
            yield Check(name, SKIPPED, f"not tried: it needs {HANGS_ON[name]}")
        else:
            yield _feature(name, feature, found[name], netem_for if name == "netem" else "")


def _namespaces(found: Mapping[str, Outcome], missing: tuple[str, ...]) -> Check:
    if lacking := [name for name in missing if name not in ("ip", "tc")]:
        return Check("namespaces", SKIPPED, f"not tried: it needs {lacking[0]}")
    asked = [name for name in _SPACES if not (name == "named" and "ip" in missing)]
    failed = next((name for name in asked if not found[name].ok), None)
    if failed is None and "ip" not in missing and _is_refused(found["veth"]):
        failed = "veth"
    if failed is None:
        who = "root" if os.geteuid() == 0 else f'user "{user_name()}"'
        return Check("namespaces", OK, f"{who} may make networks that end with their programs")
    text = found[failed].text
    if not _is_refused(found[failed]):
        what = STEPS.get(failed, "unshare").partition(" && ")[0]
        return Check("namespaces", FAULT, f"{what}: {text}", (HELP,))
    return _refused(refusal(text))


def _refused(error: HostError) -> Check:
    seen = ": ".join(part for part in (error.message.rstrip("."), error.seen) if part)
    return Check("namespaces", FAULT, seen, (*error.fix, HELP))


def _is_refused(outcome: Outcome) -> bool:
    return not outcome.ok and any(text in outcome.text for text in _REFUSED)


def _feature(name: str, feature: Feature, outcome: Outcome, needed_for: str) -> Check:
    differs = _READ_BACK[name](outcome.text) if outcome.ok and name in _READ_BACK else None
    if outcome.ok and differs is None:
        remark = f" ({outcome.text})" if outcome.text and name not in _READ_BACK else ""
        return Check(name, OK, feature.does + remark)
    seen = differs or f"the kernel has none: {outcome.text}"
    fix = load_module(feature.module, platform.release())
    fix = (*fix, NETEM_HELP) if name == "netem" else fix
    if needed_for:
        seen = f"{needed_for} needs it; {seen}"
    elif feature.only_for:
        return Check(name, NOT_HERE, f"only needed {feature.only_for}; {seen}", fix)
    return Check(name, FAULT, seen, fix)


def _tbf_differs(text: str) -> str | None:
    rates = [held.get("options", {}).get("rate") for held in _parsed(text)]
    return None if RATE_BYTES_PER_S in rates else f"200 Mbit/s were asked, read back: {text}"


def _congestion_differs(text: str) -> str | None:
    metrics = [metric for route in _parsed(text) for metric in route.get("metrics", ())]
    pinned = [metric.get("congestion") for metric in metrics]
    if CONGESTION_CONTROL in pinned:
        return None
    return f"{CONGESTION_CONTROL} was asked, read back: {text}"


def _parsed(text: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except ValueError:
        return []
    return document if isinstance(document, list) else []


_READ_BACK = {"tbf": _tbf_differs, "congestion": _congestion_differs}
