"""The commands of docs/compose-by-hand.md, typed one after the other, do what the text says.

The image that its first command would build is there already: test_image has Compose build one.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from cluster.compose.engine import Engine
from cluster.compose.image import ensure_image
from tests.live.lab import ROOT

TIMEOUT_S = 300
pytestmark = [pytest.mark.docker, pytest.mark.timeout(TIMEOUT_S + 30)]

NAME = "byhand"
PROJECT = f"ddplab-{NAME}"
SUBNET = "198.19.77.0/24"
BLOCKS = ("start", "look", "measure", "train", "slower", "end")
"""The document's blocks of commands, in its order."""
MARK = "=== what block {} printed"
BUILD = "docker compose build\n"
RANKS, FEWER = "--nproc-per-node=2", "--nproc-per-node=1"
"""One rank a node is enough here, and each imports torch."""
AS_ANYONE = "WHO=$(id -u):$(id -g)"
AS_ROOT = "WHO=65534:65534"


def clone(folder: Path) -> None:
    """What a fresh clone of this state of the project would hold."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def environment(image: str, home: Path, checkout: Path) -> dict[str, str]:
    """A person's, with the `ddplab` command; project and addresses are nobody else's."""
    command = home / "bin/ddplab"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m jobs.cli "$@" --lab {NAME}\n')
    command.chmod(0o755)
    (home / "state").mkdir(mode=0o700)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COMPOSE_", "DDPLAB_"))
    }
    return {
        **kept,
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PWD": str(checkout),
        "PYTHONPATH": str(checkout),
        "XDG_RUNTIME_DIR": str(home / "state"),
        "COMPOSE_PROJECT_NAME": PROJECT,
        "DDPLAB_IMAGE": image,
        "DDPLAB_SUBNET": SUBNET,
    }


def left() -> list[str]:
    """Containers and networks of the project that are there now."""
    by_label = ["--quiet", "--filter", f"label=com.docker.compose.project={PROJECT}"]
    listed = (["docker", "ps", "--all", *by_label], ["docker", "network", "ls", *by_label])
    answers = (subprocess.run(it, capture_output=True, text=True, check=True) for it in listed)
    return [word for answer in answers for word in answer.stdout.split()]


def typed(document: str) -> str:
    """All blocks as one script: what one sets, the next ones know."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(BLOCKS)
    script = "".join(
        f"echo '{MARK.format(name)}'\n{block}" for name, block in zip(BLOCKS, blocks, strict=True)
    )
    for known in (AS_ANYONE, AS_ROOT, BUILD, RANKS):
        assert known in script
    script = script.replace(BUILD, "").replace(RANKS, FEWER)
    return script.replace(AS_ANYONE, AS_ROOT) if os.geteuid() == 0 else script


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """What each block printed. The script ends at the first command that fails."""
    home = tmp_path_factory.mktemp("by_hand")
    checkout = home / "ddplab"
    clone(checkout)
    engine = Engine.connect()
    environ = environment(ensure_image(engine, nullcontext), home, checkout)
    engine.api.close()
    script = home / "typed.sh"
    script.write_text(typed((checkout / "docs/compose-by-hand.md").read_text()))
    ends = (["ddplab", "down"], ["docker", "compose", "down"])
    try:
        done = in_shell(["bash", "-e", str(script)], checkout, environ)
        assert done.returncode == 0, done.stdout[-4000:]
        parts = re.split(MARK.format(r"\w+") + "\n", done.stdout)[1:]
        yield dict(zip(BLOCKS, parts, strict=True))
    finally:
        for command in ends:
            in_shell(command, checkout, environ)


def in_shell(
    command: Sequence[str], folder: Path, environ: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Runs a command in a folder; what it prints, and what it complains of, in one text."""
    return subprocess.run(
        ["/usr/bin/env", *command],  # looks for it where `environ` says
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_two_nodes_are_healthy_and_their_links_are_limited(printed: Mapping[str, str]) -> None:
    look = printed["look"]
    assert len(re.findall(rf"{PROJECT}-node-[12] .*\(healthy\)", look)) == 2
    assert look.count("limited to 200mbit, out and in; read back") == 2
    assert re.findall(r"qdisc tbf \w+: dev (\w+) root .*rate 200Mbit", look) == ["eth0", "ifb0"]
    routes = [line for line in look.splitlines() if " dev eth0 " in line and "qdisc" not in line]
    assert len(routes) == 1 and routes[0].startswith(f"{SUBNET} ")


def test_the_nodes_are_taken_over_and_their_links_carry_what_was_asked(
    printed: Mapping[str, str],
) -> None:
    said = printed["measure"]
    assert re.findall(r"(node\d -> node\d) +200 .* ok\n", said) == [
        "node0 -> node1",
        "node1 -> node0",
    ]
    addresses = re.findall(r"node\d (198\.19\.77\.\d+)", said)  # those that were there
    assert len(set(addresses)) == 2


@pytest.mark.parametrize(("block", "rate"), [("train", "200mbit"), ("slower", "50mbit")])
def test_torchrun_trains_over_the_limited_link(
    printed: Mapping[str, str], block: str, rate: str
) -> None:
    said = printed[block]
    assert re.search(r"parameters equal on 2 ranks: \w{8}", said)
    sent = re.findall(r"node (\d): .* gradients ([\d.]+) MB, this node sent ([\d.]+) MB", said)
    assert sorted(node for node, _, _ in sent) == ["0", "1"]
    for _, gradients, out in sent:  # two nodes: each sends the gradients once
        assert 1.0 <= float(out) / float(gradients) < 1.12
    losses = [float(loss) for loss in re.findall(r"step +\d+ +loss ([\d.]+)", said)]
    assert losses[-1] < losses[0] / 2
    assert (f"limited to {rate}, out and in" in said) == (block == "slower")


def test_the_end_removes_nodes_and_network(printed: Mapping[str, str]) -> None:
    assert "Removed" in printed["end"]
    assert not left()
