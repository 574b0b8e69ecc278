"""What a lab must not touch, and what it must not leave: this machine's network and processes."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

DOCKERS = re.compile(
    r"\bdocker|\bbr-[0-9a-f]{12}\b|\bveth[0-9a-f]{7}\b|\bif\d+\b|masquerade|dnat", re.IGNORECASE
)
"""What an engine makes and removes for its containers, which other tests may start meanwhile.
`if7`: a link that was gone before it could be named."""
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def python_environment() -> dict[str, str]:
    """The environment in which another interpreter finds what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _output(*command: str) -> str:
    """What a command says; again where it saw links come and go, and so not the whole."""
    environment = {"PATH": PATH, "LC_ALL": "C"}
    while True:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if "Dump was interrupted" not in result.stderr:
            return result.stdout + result.stderr


def host_network() -> dict[str, object]:
    """Links, addresses, routes, named namespaces and the firewall, without counters.

    What is Docker's is left out.
    """
    links = json.loads(_output("ip", "-j", "-d", "link"))
    kept = ("ifname", "mtu", "operstate", "master", "qdisc", "link_type", "flags")
    state: dict[str, object] = {
        "links": [
            {key: link.get(key) for key in kept}
            for link in links
            if not DOCKERS.search(link["ifname"])
        ],
        "routes": _without_docker(_output("ip", "route", "show", "table", "all")),
        "named": _output("ip", "netns", "list"),
    }
    for firewall in (["nft", "-s", "list", "ruleset"], ["iptables", "-S"]):
        if shutil.which(firewall[0], path=PATH):
            state[firewall[0]] = _without_docker(_output(*firewall))
    return state


def _without_docker(text: str) -> list[str]:
    return [line for line in text.splitlines() if not DOCKERS.search(line)]


def namespace_of(pid: int, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def processes_in(namespace: str) -> list[int]:
    """Processes that live in a namespace such as `pid:[4026532305]`."""
    found = []
    kind = namespace.partition(":")[0]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str((entry / "ns" / kind).readlink()) == namespace:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def eventually(true: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
