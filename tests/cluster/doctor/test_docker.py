"""Docker and Compose are asked through their command; a stand-in answers as the real ones do."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from cluster.doctor.checks import NOT_HERE, OK, SKIPPED, Check
from cluster.doctor.docker import SHAPING, docker_checks


class Says(NamedTuple):
    """What a stand-in writes, and how it ends."""

    out: str = ""
    err: str = ""
    status: int = 0


ENGINE = {"Version": "28.2.2", "Components": [{"Details": {"KernelVersion": "6.12"}}]}
GOOD = {"version": Says(json.dumps(ENGINE)), "compose": Says('{"version":"v2.26.1"}\n')}
DEAD = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?"
DENIED = "permission denied while trying to connect to the Docker daemon socket"
NO_COMPOSE = Says("", "docker: 'compose' is not a docker command.\n", 1)
IMAGE = Says("ddplab-node:1\n")
STUB = """\
#!/bin/sh
echo "$@" >> '{folder}/asked'
/bin/cat '{folder}'/$1.out
/bin/cat '{folder}'/$1.err >&2
exit $(/bin/cat '{folder}'/$1.status)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole search path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("cluster.doctor.trial.IFB_LOADED", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("cluster.doctor.docker.user_name", lambda: "mei")
    return tmp_path


def docker(folder: Path, **answers: Says) -> None:
    """A `docker` that answers by its first word; what it was asked is kept in `asked`."""
    program = folder / "docker"
    program.write_text(STUB.format(folder=folder))
    program.chmod(0o755)
    for word, says in answers.items():
        (folder / f"{word}.out").write_text(says.out)
        (folder / f"{word}.err").write_text(says.err)
        (folder / f"{word}.status").write_text(str(says.status))


def tried(**failed: str) -> Says:
    """What a container says of each step; `failed` ones with their text."""
    steps = [
        f"\x1e{name}\x1f{2 if name in failed else 0}\x1f{failed.get(name, '')}" for name in SHAPING
    ]
    return Says("".join(steps))


def checks() -> dict[str, Check]:
    return {check.name: check for check in docker_checks()}


def test_without_docker_one_line_says_what_it_is_for(machine: Path) -> None:
    del machine
    (check,) = docker_checks()
    assert (check.name, check.state) == ("docker", NOT_HERE)
    assert check.seen == "no docker: only needed for labs in containers"
    assert any("docker.io" in fix or "moby-engine" in fix for fix in check.fix)


@pytest.mark.parametrize(
    ("said", "fix"),
    [(DEAD, "sudo systemctl start docker"), (DENIED, "sudo usermod -aG docker mei")],
)
def test_an_engine_that_does_not_answer(machine: Path, said: str, fix: str) -> None:
    docker(machine, version=Says("null\n", said, 1), compose=GOOD["compose"])
    found = checks()
    assert found["docker"].state == NOT_HERE
    assert "only needed for labs in containers" in found["docker"].seen
    assert found["docker"].fix[0].startswith(fix)
    assert found["compose"].state == OK
    assert "container" not in found


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (Says('{"version":"1.29.2"}'), "Compose 1.29.2 is too old"),
        (NO_COMPOSE, "the engine's client has no Compose v2"),
    ],
)
def test_an_old_or_missing_compose_is_named(machine: Path, answer: Says, seen: str) -> None:
    docker(machine, version=GOOD["version"], compose=answer, image=Says())
    found = checks()
    assert found["docker"].state == OK
    assert found["docker"].seen == "engine 28.2.2, kernel 6.12"
    assert found["compose"].state == NOT_HERE
    assert found["compose"].seen == f"{seen}: only needed for labs in containers"
    assert any("docker-compose-v2" in fix for fix in found["compose"].fix)


def test_the_old_compose_program_does_not_do(machine: Path) -> None:
    docker(machine, version=GOOD["version"], compose=NO_COMPOSE, image=Says())
    (machine / "docker-compose").write_text("#!/bin/sh\n")
    (machine / "docker-compose").chmod(0o755)
    assert "an old docker-compose does not do" in checks()["compose"].seen


def test_without_an_image_of_ours_nothing_is_started(machine: Path) -> None:
    docker(machine, **GOOD, image=Says())
    assert checks()["container"].state == SKIPPED
    asked = [line.split() for line in (machine / "asked").read_text().splitlines()]
    assert [words[0] for words in asked] == ["version", "compose", "image"]
    assert "--filter=reference=ddplab*" in asked[-1]


def test_limits_are_tried_in_a_container_that_has_no_more_than_a_node(machine: Path) -> None:
    docker(machine, **GOOD, image=IMAGE, run=tried())
    check = checks()["container"]
    assert check.state == OK
    assert check.seen.startswith("ddplab-node:1: links are limited, both ways")
    asked = (machine / "asked").read_text().splitlines()
    started = next(line.split() for line in asked if line.startswith("run "))
    for word in ("--network=none", "--cap-drop=ALL", "--cap-add=NET_ADMIN", "--rm", "--pull=never"):
        assert word in started
    assert "--privileged" not in started


def test_what_a_container_cannot_do_is_named(machine: Path) -> None:
    docker(machine, **GOOD, image=IMAGE, run=tried(ifb="Error: Unknown device type."))
    check = checks()["container"]
    assert check.state == NOT_HERE
    assert check.seen.startswith("ddplab-node:1: no ifb: ")
    assert check.seen.endswith("Unknown device type.")


def test_a_container_that_does_not_start_is_told(machine: Path) -> None:
    docker(machine, **GOOD, image=IMAGE, run=Says("", "exec: sh: not found\n", 127))
    check = checks()["container"]
    assert check.state == NOT_HERE
    assert check.seen.endswith("exec: sh: not found")
