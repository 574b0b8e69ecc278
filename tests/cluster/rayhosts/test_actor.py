"""The actor on a node, as an object: what programs get and give, how they end. Needs no Ray."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cluster.rayhosts import actor, facts

LIMIT_S = 20
KEPT: list[actor.Host] = []
"""As on a node, where an actor lives as long as its process: with it pipes are closed that nobody
read to their end."""


@pytest.fixture
def host() -> Iterator[actor.Host]:
    made = actor.Host()
    KEPT.append(made)
    yield made
    made.end()


def read_all(host: actor.Host, key: str) -> tuple[str, str, int]:
    out = err = ""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        more_out, more_err, status = host.read(key)
        out, err = out + more_out, err + more_err
        if status is not None:
            return out, err, status
    raise AssertionError(f"{key} has not ended: {out!r} {err!r}")


def ended(
    host: actor.Host, *argv: str, env: Mapping[str, str] | None = None
) -> tuple[str, str, int]:
    host.start("it", argv, env or {}, None)
    host.end_input("it")
    return read_all(host, "it")


def test_input_output_errors_and_status(host: actor.Host) -> None:
    host.start("it", ["sh", "-c", "read word; echo got $word; echo odd >&2; exit 7"], {}, None)
    assert host.write("it", "a word\n")
    assert read_all(host, "it") == ("got a word\n", "odd\n", 7)


def test_bytes_stay_what_they_are(host: actor.Host) -> None:
    every = bytes(range(256)) * 1000
    host.start("it", ["cat"], {}, None)
    done: list[bool] = []

    def feed() -> None:
        done.append(host.write("it", every.decode("latin-1")))
        host.end_input("it")

    thread = threading.Thread(target=feed)
    thread.start()
    out, _, status = read_all(host, "it")
    thread.join(LIMIT_S)
    assert (out.encode("latin-1"), status, done) == (every, 0, [True])


def test_much_output_comes_in_parts_that_ray_sends_inline(host: actor.Host) -> None:
    host.start("it", [sys.executable, "-c", "print('x' * 300_000)"], {}, None)
    sizes = []
    while True:
        out, _, status = host.read("it")
        sizes.append(len(out))
        if status is not None:
            break
    assert sum(sizes) == 300_001
    assert max(sizes) <= actor.MOST_BYTES


def test_a_program_that_is_not_there(host: actor.Host) -> None:
    out, err, status = ended(host, "/nowhere/at-all")
    assert (out, status) == ("", 127)
    assert err == "/nowhere/at-all: No such file or directory\n"


def test_python_is_this_nodes_own(host: actor.Host) -> None:
    out, _, status = ended(
        host, "python", "-c", "import sys; print(sys.executable)", env={"PATH": "/nowhere"}
    )
    assert (out.strip(), status) == (sys.executable, 0)


def test_packages_come_from_where_the_node_has_them(host: actor.Host, tmp_path: Path) -> None:
    host.use(str(tmp_path))
    code = "import os; print(os.environ['PYTHONPATH'].split(':')[0], os.environ['PYTHONSAFEPATH'])"
    assert ended(host, "python", "-c", code, env={"A": "b"})[0] == f"{tmp_path} 1\n"


def test_a_signal_is_a_negative_status(host: actor.Host) -> None:
    assert ended(host, "sh", "-c", "kill -9 $$")[2] == -9


def test_what_a_program_leaves_running_does_not_keep_it(host: actor.Host) -> None:
    host.start("it", ["sh", "-c", "sleep 30 & echo on"], {}, None)
    assert read_all(host, "it") == ("on\n", "", 0)


def test_a_program_that_does_not_read_can_still_be_ended(host: actor.Host) -> None:
    """As an agent, whose guard sees the end of its input though it does not read."""
    host.start("it", ["sh", "-c", "exec sleep 30"], {}, None)
    writing = threading.Thread(target=host.write, args=("it", "x" * 1_000_000))
    writing.start()
    host.end_input("it")
    writing.join(LIMIT_S)
    assert not writing.is_alive()


def test_writing_to_what_has_ended_says_so(host: actor.Host) -> None:
    host.start("it", ["true"], {}, None)
    deadline = time.monotonic() + LIMIT_S
    while host.write("it", "x") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not host.write("it", "x")
    host.end_input("it")
    assert not host.write("it", "x")
    assert read_all(host, "it") == ("", "", 0)
    assert not host.write("it", "x")
    host.end_input("it")


def test_end_ends_every_program_that_takes_its_inputs_end_as_its_order(
    host: actor.Host, tmp_path: Path
) -> None:
    marks = [tmp_path / name for name in ("a", "b")]
    for mark in marks:
        host.start(mark.name, ["sh", "-c", f"cat; echo > {mark}"], {}, None)
    host.end()
    assert all(mark.exists() for mark in marks)


def test_without_a_beat_it_ends_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a process of its own: it would end this one."""
    mark = tmp_path / "ended"
    code = (
        "import time\nfrom cluster.rayhosts import actor\nactor.ALONE_S = 0.1\n"
        f"host = actor.Host()\nhost.start('it', ['sh', '-c', 'cat; echo > {mark}'], {{}}, None)\n"
        "time.sleep(30)"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    status = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code])
    assert (status, mark.exists()) == (1, True)


def test_what_a_node_sees(host: actor.Host, tmp_path: Path) -> None:
    assert host.sees(str(tmp_path), True) is None
    assert host.sees(str(tmp_path / "no"), False) == "is not there"


def test_facts_are_told_by_the_text_alone(host: actor.Host) -> None:
    host.use(str(Path(__file__).parents[3]))
    told = json.loads(host.facts(Path(facts.__file__).read_text()))
    assert told["python"] == ".".join(str(number) for number in sys.version_info[:3])
    assert ["lo", "127.0.0.1"] in told["nics"]
    assert told["folder"] == str(Path(__file__).parents[3])
    assert told["sources"] == facts.sources(told["folder"])


def test_facts_where_nothing_of_ours_is_installed(
    host: actor.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    told = json.loads(host.facts(Path(facts.__file__).read_text()))
    assert (told["folder"], told["ddplab"], told["sources"]) == (None, None, None)


def test_a_changed_line_changes_the_digest(tmp_path: Path) -> None:
    for package in facts.PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "it.py").write_text("a = 1\n")
    before = facts.sources(str(tmp_path))
    (tmp_path / "ddp" / "it.py").write_text("a = 2\n")
    changed = facts.sources(str(tmp_path))
    (tmp_path / "ddp" / "it.py").rename(tmp_path / "ddp" / "other.py")
    assert len({before, changed, facts.sources(str(tmp_path))}) == 3


def test_after_its_end_no_beat_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an actor that was ended in order, nothing ends the process that it was in."""
    code = (
        "import time\nfrom cluster.rayhosts import actor\nactor.ALONE_S = 0.1\n"
        "host = actor.Host()\nhost.end()\ntime.sleep(2.5)"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
