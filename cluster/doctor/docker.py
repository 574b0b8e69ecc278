"""Docker and Compose, for labs in containers: the engine is asked, and a container tried.

No lab of namespaces needs them, so that nothing here is a fault. What limits links is tried inside
a container, never on this machine's own network. Standard library only.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cluster.doctor.checks import NOT_HERE, OK, SKIPPED, Check
from cluster.doctor.needs import PURPOSES
from cluster.doctor.trial import STEPS, harmless, outcomes, script
from cluster.holding import user_name
from cluster.packages import as_root, compose_commands, install_commands

TIMEOUT_S = 20.0
IMAGES = "ddplab*"
"""Only images of this project are started."""
SHAPING = ("tbf", "ingress", "ifb", "u32", "mirred")
PURPOSE = PURPOSES["compose"]


class _Answer(NamedTuple):
    status: int
    out: str
    err: str


def docker_checks() -> Iterator[Check]:
    """The engine, Compose, and whether links can be limited in a container."""
    docker = shutil.which("docker")
    if docker is None:
        yield Check("docker", NOT_HERE, f"no docker: {PURPOSE}", install_commands(["docker"]))
        return
    engine = _engine(docker)
    yield engine
    yield _compose(docker)
    if engine.state == OK:
        yield _container(docker)


def _engine(docker: str) -> Check:
    answer = _ask([docker, "version", "--format", "{{json .Server}}"])
    server = _parsed(answer.out)
    if answer.status == 0 and server:
        kernel = server.get("KernelVersion") or next(
            (part.get("Details", {}).get("KernelVersion") for part in server.get("Components", ())),
            "",
        )
        words = f"engine {server.get('Version')}" + (f", kernel {kernel}" if kernel else "")
        return Check("docker", OK, words)
    if "permission denied" in answer.err.lower():
        seen = f"the engine does not answer {user_name()}: {PURPOSE}"
        join = f"sudo usermod -aG docker {user_name()}     then log in again"
        return Check("docker", NOT_HERE, seen, (join,))
    seen = f"the engine does not answer: {PURPOSE}; {_first(answer.err)}"
    return Check("docker", NOT_HERE, seen, (as_root("systemctl start docker"),))


def _compose(docker: str) -> Check:
    answer = _ask([docker, "compose", "version", "--format", "json"])
    version = str(_parsed(answer.out).get("version", "")).lstrip("v")
    if answer.status == 0 and re.match(r"([2-9]|\d\d+)\.", version):
        return Check("compose", OK, f"Compose {version}")
    old = shutil.which("docker-compose")
    seen = f"Compose {version} is too old" if version else "the engine's client has no Compose v2"
    older = " (an old docker-compose does not do)" if old and not version else ""
    return Check("compose", NOT_HERE, f"{seen}{older}: {PURPOSE}", compose_commands())


def _container(docker: str) -> Check:
    """Links are limited inside of a container with the rights that a node gets, and no more."""
    listed = _ask(
        [docker, "image", "ls", f"--filter=reference={IMAGES}", "--format={{.Repository}}:{{.Tag}}"]
    )
    image = next((name for name in listed.out.split() if "<none>" not in name), None)
    if image is None:
        seen = "links in a container were not tried: no image of this project is here"
        return Check("container", SKIPPED, seen)
    rights = ["--network=none", "--cap-drop=ALL", "--cap-add=NET_ADMIN", "--user=0", "--read-only"]
    steps, known = harmless({name: STEPS[name] for name in SHAPING})
    start = [docker, "run", "--rm", "--pull=never", *rights, "--entrypoint=sh", image, "-c"]
    answer = _ask([*start, script(steps)])
    found = {**outcomes(answer.out), **known}
    failed = [name for name in SHAPING if name not in found or not found[name].ok]
    if not failed:
        return Check(
            "container", OK, f"{image}: links are limited, both ways ({', '.join(SHAPING)})"
        )
    why = found[failed[0]].text if failed[0] in found else _first(answer.err)
    seen = f"{image}: no {', '.join(failed)}: {PURPOSE}; {why}"
    return Check("container", NOT_HERE, seen, ("see which of them this kernel has: above",))


def _ask(command: Sequence[str]) -> _Answer:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _Answer(124, "", f"no answer within {TIMEOUT_S:g} s")
    except OSError as exc:
        return _Answer(126, "", exc.strerror or str(exc))
    return _Answer(done.returncode, done.stdout, done.stderr)


def _parsed(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it said nothing")
