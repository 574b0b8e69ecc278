"""What a check means to the backend that BACKEND=auto takes: what only others need is no fault.

Pure; standard library only.
"""

from collections.abc import Mapping

from cluster.doctor.checks import FAULT, NOT_HERE, OK, Check

ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "netns": ("commands", "namespaces", "veth", "bridge", "tbf", "congestion"),
    "compose": ("container",),
}
"""Which checks are of one backend alone, by its name."""
PURPOSES = {
    "netns": "only needed for labs of network namespaces",
    "compose": "only needed for labs in containers",
}


def weighed(check: Check, backend: str) -> Check:
    """The check as it counts where labs are made by this backend."""
    owner = next((name for name, checks in ONLY_FOR.items() if check.name in checks), None)
    if owner is None:
        return check
    if owner == backend and check.state == NOT_HERE:
        seen = check.seen.replace(f": {PURPOSES[owner]}", "")
        return check._replace(state=FAULT, seen=seen)
    if owner != backend and check.state == FAULT:
        return check._replace(state=NOT_HERE, seen=f"{PURPOSES[owner]}; {check.seen}")
    return check


def backend_check(backend: str, reason: str) -> Check:
    """What labs are made of where nobody says, and why."""
    return Check("backend", OK, f"BACKEND=auto takes {backend}: {reason}")


def likely_backend(docker: Mapping[str, Check]) -> Check:
    """As `backend_check`, from the checks of Docker alone, by name: before there is an environment.

    `docker` holds those that were made; without an engine there is one only.
    """
    lacking = [check for check in docker.values() if check.state != OK]
    if lacking or not docker:
        return backend_check("netns", lacking[0].seen if lacking else "Docker was not asked")
    return backend_check("compose", " and ".join(check.seen for check in docker.values()))
