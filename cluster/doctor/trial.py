"""Tries, one by one, what a lab's network needs: in namespaces that end with the trial.

Nothing of this machine's own network is touched. Says what happened; what it means for a lab is
`cluster.doctor.network`'s matter. Standard library only.
"""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cluster.holding import SUDO_TIMEOUT_S, elevation, search_path, unshare_command
from cluster.packages import has_module

TIMEOUT_S = 20.0
STARTED = "started"
IFB_LOADED = Path("/sys/module/ifb")
LOADED_MODULES = Path("/proc/modules")
"""Not there where the kernel has no modules at all."""
_MARK, _PART = "\x1e", "\x1f"
_TRY = 'try() { text=$({ eval "$2"; } 2>&1); printf "\\036%s\\037%d\\037%s" "$1" "$?" "$text"; }\n'
INGRESS = "tc qdisc add dev lo handle ffff: ingress"
REDIRECT = "action mirred egress redirect dev lo"
U32 = "tc filter add dev lo parent ffff: protocol all u32 match u32 0 0"

STEPS: Mapping[str, str] = {
    "folders": "mount -t tmpfs -o mode=755 tmpfs /run && "
    "mount -t tmpfs -o mode=1777 tmpfs /dev/shm && stat -f -c '%S %b' /dev/shm",
    "named": "ip netns add node0 && ip -n node0 link set lo up",
    "entered": "nsenter -t 1 -m -p -u -i -n setpriv --pdeathsig CONT true",
    "veth": "ip link add port0 type veth peer name fab0",
    "bridge": "ip link add fabric0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
    "tbf": "tc qdisc add dev lo root handle 1: tbf rate 200000000bit burst 131072 limit 1381072 && "
    "tc -j -r qdisc show dev lo && tc qdisc del dev lo root",
    "congestion": "ip link set lo up && ip route add 198.18.0.0/15 dev lo congctl cubic && "
    "ip -j route show 198.18.0.0/15",
    "netem": "tc qdisc add dev lo root handle 1: netem delay 1ms && tc qdisc del dev lo root",
    "ingress": INGRESS,
    "u32": f"{U32} flowid :1",
    "mirred": f"{U32} {REDIRECT}",
    "ifb": "ip link add ifb0 type ifb",
}
"""Each is one shell line, and needs none of the others, but for u32 and mirred, which need
ingress to hang on."""


class Outcome(NamedTuple):
    """How one step went: its exit status, and all that it wrote."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        return self.status == 0


def try_network(privilege: str = "none") -> dict[str, Outcome]:
    """What came of each step; `started` stands for the namespaces themselves.

    Raises MissingTool where there is no unshare.
    """
    elevated = privilege == "sudo" and os.geteuid() != 0
    steps, known = harmless(STEPS)
    command = [*(elevation() if elevated else []), *unshare_command(), "sh", "-c", script(steps)]
    timeout_s = SUDO_TIMEOUT_S if elevated else TIMEOUT_S
    try:
        done = subprocess.run(
            command,
            stdin=None if elevated else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C", "PATH": search_path()},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {STARTED: Outcome(1, f"no answer within {timeout_s:g} s")}
    found = outcomes(done.stdout)
    if not found:
        return {STARTED: Outcome(done.returncode or 1, _one_line(done.stderr))}
    cut = Outcome(1, "the trial ended before this")
    return {STARTED: Outcome(0, ""), **dict.fromkeys(STEPS, cut), **found, **known}


def harmless(steps: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Outcome]]:
    """The steps that may be tried, and what is known of the others without trying.

    Whoever asks for the first ifb loads its module, which puts ifb0 and ifb1 into this machine's
    own network.
    """
    if "ifb" not in steps or IFB_LOADED.exists() or not LOADED_MODULES.exists():
        return dict(steps), {}
    is_there = has_module("ifb", platform.release())
    text = "its module lies there" if is_there else "its module is not seen here"
    rest = {name: line for name, line in steps.items() if name != "ifb"}
    return rest, {"ifb": Outcome(0 if is_there else 1, f"{text}, and was not loaded")}


def script(steps: Mapping[str, str]) -> str:
    """A shell script that tries every step and says how each went."""
    return _TRY + "".join(f"try {name} {_quoted(line)}\n" for name, line in steps.items())


def outcomes(output: str) -> dict[str, Outcome]:
    """What the script said."""
    parts: list[Sequence[str]] = [piece.split(_PART, 2) for piece in output.split(_MARK)[1:]]
    return {name: Outcome(int(status), _one_line(text)) for name, status, text in parts}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"
