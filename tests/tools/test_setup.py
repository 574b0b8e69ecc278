"""The environment: made once, made whole, and never half there, whatever is killed and when."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import prerequisites
from tools.build import TORCH_INDEX_URL, torch_attempts
from tools.commands import Attempt
from tools.environment import Choice
from tools.errors import FrontDoorError
from tools.prerequisites import Interpreter

if TYPE_CHECKING:
    from conftest import Checkout

PINNED = "torch==2.13.0+cpu"
HOLDS = {"STUB_HOLDS": "click"}  # pip stops in the middle: torch is there, the rest is not


def wait_until(happened: Callable[[], object], what: str) -> None:
    for _ in range(600):
        if happened():
            return
        time.sleep(0.05)
    pytest.fail(f"after 30 s still not: {what}")


def started(checkout: Checkout, *words: str) -> int:
    """Start a set-up that stops in the middle; the process id of its front door."""
    make = checkout.start(*words, **HOLDS)
    wait_until(lambda: len(checkout.pip()) >= 2, "pip asked for the packages")
    return front_of(make.pid)


def front_of(make: int) -> int:
    """The process make started: it became the front door."""
    return int(Path(f"/proc/{make}/task/{make}/children").read_text().split()[0])


def pip_processes(checkout: Checkout) -> list[int]:
    """Processes that run from the checkout's unfinished environments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if str(checkout.root / ".venvs") in words and "pip" in words.split("\0"):
            found.append(int(entry.name))
    return found


def torch_asked(checkout: Checkout) -> list[tuple[str, str]]:
    """What pip was asked for as torch, and at which index ("" for its own sources)."""
    asked = []
    for words in checkout.pip():
        if "--no-deps" in words and "--editable" not in words:
            index = [w.partition("=")[2] for w in words if w.startswith("--index-url=")]
            asked.append((words[-1], index[0] if index else ""))
    return asked


def test_it_is_made_at_first_need_and_only_then(checkout: Checkout) -> None:
    done = checkout.make("cluster-status")
    assert done.returncode == 0, done.stderr
    assert "PyTorch for CPU, about 190 MB" in done.stderr
    assert checkout.calls() == [["status"]]
    torch, packages, ddplab = checkout.pip()
    assert torch_asked(checkout) == [(PINNED, "")]
    assert {"click>=8.1", "torch>=2.6", "setuptools>=77"} <= set(packages)
    assert "--constraint" in packages
    assert "pytest>=8" not in packages
    assert "--index-url" not in " ".join(torch + packages + ddplab)
    assert ddplab[-2:] == ["--editable", "."]
    again = checkout.make("cluster-status")
    assert again.stderr == ""
    assert len(checkout.pip()) == 3
    assert (checkout.root / ".venv").readlink() == Path(".venvs/1")


@pytest.mark.parametrize("source", ["pyproject.toml", "constraints.txt"])
def test_it_is_made_anew_when_what_it_was_made_from_changes(ready: Checkout, source: str) -> None:
    with (ready.root / source).open("a") as file:
        file.write("# changed\n")
    (ready.root / "Makefile").touch()
    assert ready.make("runs").returncode == 0
    assert ready.environments() == ["2"]
    assert ready.make("runs").stderr == ""


def test_it_is_made_anew_in_another_place_and_for_the_checking_tools(ready: Checkout) -> None:
    ready.root = ready.root.rename(ready.root.with_name("moved lab"))
    assert ready.make("runs").returncode == 0
    assert ready.environments() == ["2"]
    ready.make("test")
    assert ready.environments() == ["3"]
    assert "pytest>=8" in ready.pip()[-2]
    assert ready.make("runs").stderr == ""


def test_kill_9_in_the_middle_leaves_nothing_half_there(checkout: Checkout) -> None:
    os.kill(started(checkout, "setup"), signal.SIGKILL)
    wait_until(lambda: not pip_processes(checkout), "pip ended with the set-up")
    assert not (checkout.root / ".venv").exists()
    assert checkout.environments() == ["1"]  # without what makes one finished
    done = checkout.make("runs")
    assert done.returncode == 0, done.stderr
    assert checkout.environments() == ["2"]
    assert checkout.calls() == [["runs"]]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_set_up_ends_with_make(checkout: Checkout, name: str) -> None:
    started(checkout, "setup")
    make = checkout.started[0]
    make.send_signal(signal.Signals[name])
    screen, _ = make.communicate(timeout=60)  # to its end: the last one who writes has ended
    assert make.returncode != 0
    assert "ddplab: stopped by SIGTERM. Nothing half-built was kept." in screen
    assert "Traceback" not in screen
    assert checkout.environments() == []
    assert not pip_processes(checkout)
    assert checkout.make("runs").returncode == 0
    assert checkout.calls() == [["runs"]]


def test_a_command_ends_with_make(ready: Checkout) -> None:
    make = ready.start("cluster-status", "LAB=busy")
    wait_until(ready.calls, "the command runs")
    make.kill()
    make.communicate(timeout=10)  # to its end: the command sleeps for a minute


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_stop_signal_says_so_and_removes_what_was_begun(checkout: Checkout, name: str) -> None:
    started(checkout, "setup")
    make = checkout.started[0]
    os.killpg(make.pid, signal.Signals[name])
    screen, _ = make.communicate(timeout=60)
    assert make.returncode != 0
    assert f"stopped by {'you' if name == 'SIGINT' else name}" in screen
    assert "Traceback" not in screen
    assert checkout.environments() == []
    assert not pip_processes(checkout)


def test_a_set_up_that_fails_leaves_the_earlier_environment(ready: Checkout) -> None:
    with (ready.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    done = ready.make("runs", STUB_FAILS="click")
    assert done.returncode != 0
    assert "packages failed" in done.stderr
    assert "ERROR: No matching distribution found" in done.stderr
    assert ".venvs/setup.log" in done.stderr
    assert "Traceback" not in done.stderr
    assert ready.environments() == ["1"]
    assert ready.calls() == []


def test_of_two_at_once_one_makes_it_and_the_other_waits(checkout: Checkout) -> None:
    both = [checkout.start("cluster-status", f"LAB={name}") for name in ("a", "b")]
    screens = [make.communicate(timeout=60)[0] for make in both]
    assert [make.returncode for make in both] == [0, 0], screens
    assert len(checkout.pip()) == 3
    assert checkout.environments() == ["1"]
    assert sorted(checkout.calls()) == [["status", "--lab=a"], ["status", "--lab=b"]]


def test_an_environment_in_use_is_removed_by_a_later_set_up(ready: Checkout) -> None:
    busy = ready.start("cluster-status", "LAB=busy")
    wait_until(ready.calls, "the command runs")
    for number in (2, 3):
        with (ready.root / "constraints.txt").open("a") as file:
            file.write("# changed\n")
        assert ready.make("runs").returncode == 0
        assert str(number) in ready.environments()
        assert "1" in ready.environments()
    os.killpg(busy.pid, signal.SIGKILL)
    busy.wait()
    ready.make("test")
    assert ready.environments() == ["4"]


def test_torch_comes_from_pips_sources_else_from_its_own_index(checkout: Checkout) -> None:
    done = checkout.make("setup", STUB_FAILS=PINNED, STUB_EXCEPT="--index-url")
    assert done.returncode == 0, done.stderr
    assert torch_asked(checkout) == [(PINNED, ""), (PINNED, TORCH_INDEX_URL)]


def test_torch_from_nowhere_is_told_with_both_places(checkout: Checkout) -> None:
    done = checkout.make("run", "JOB=hier", STUB_FAILS=PINNED)
    assert done.returncode != 0
    assert f"{PINNED} comes from pip's own sources, else from {TORCH_INDEX_URL}" in done.stderr
    assert "make setup TORCH_INDEX_URL=" in done.stderr
    assert checkout.environments() == []


def test_a_chosen_torch_is_taken_from_there_or_not_at_all_and_remembered(ready: Checkout) -> None:
    mirror = "https://me:secret@mirror.example/whl/cpu"
    assert ready.make("setup", f"TORCH_INDEX_URL={mirror}", STUB_FAILS="torch").returncode != 0
    assert torch_asked(ready) == [(PINNED, mirror), ("torch==2.13.0", mirror)]
    assert "secret" not in (ready.root / ".venvs" / "setup.log").read_text()
    assert ready.environments() == ["1"]

    assert ready.make("setup", "TORCH=torch==2.12.0").returncode == 0
    pins = (ready.root / ".venv" / "constraints.txt").read_text()
    assert "torch==" not in pins
    assert "sympy==" not in pins
    assert "click==" in pins
    assert ready.make("setup").stderr.startswith("ddplab: .venv is ready.")
    with (ready.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    ready.make("runs")
    assert torch_asked(ready)[2:] == [("torch==2.12.0", "")] * 2
    ready.make("setup", "TORCH=default")
    assert torch_asked(ready)[-1] == (PINNED, "")


@pytest.mark.parametrize("torch", ["2.12.0", "--pre", "numpy", "torchvision==1", "torch-x"])
def test_a_torch_that_is_none_is_refused(torch: str) -> None:
    with pytest.raises(FrontDoorError) as raised:
        torch_attempts(Choice(torch), PINNED)
    assert f"  seen    TORCH={torch}\n" in raised.value.screen()


@pytest.mark.parametrize("torch", ["torch", "torch>=2.10", "torch @ https://x.example", "/a.whl"])
def test_what_pip_knows_as_torch_is_passed_on(torch: str) -> None:
    assert torch_attempts(Choice(torch, "https://i.example"), PINNED) == [
        Attempt(torch, "https://i.example")
    ]


def test_somebody_elses_venv_is_not_touched(checkout: Checkout) -> None:
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv" / "mine").touch()
    done = checkout.make("runs")
    assert done.returncode != 0
    assert "mv .venv .venv-mine" in done.stderr
    assert (checkout.root / ".venv" / "mine").exists()


def test_what_would_install_elsewhere_does_not_reach_pip(checkout: Checkout) -> None:
    names = {"PIP_TARGET": "/x", "PIP_USER": "1", "PYTHONPATH": "/y", "PIP_FIND_LINKS": "/z"}
    recorder = checkout.outside / "answers.py"
    seen = checkout.outside / "seen.json"
    recorder.write_text(
        recorder.read_text()
        + f"\nif 'pip' in words: json.dump(dict(os.environ), open({str(seen)!r}, 'w'))\n"
    )
    assert checkout.make("setup", **names).returncode == 0
    assert set(json.loads(seen.read_text())) & set(names) == {"PIP_FIND_LINKS"}


def test_missing_packages_are_one_line_for_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    debian = Interpreter("/usr/bin/python3", "3.11.2", "ensurepip")
    monkeypatch.setattr(prerequisites, "ask", lambda _: debian)
    monkeypatch.setattr(prerequisites, "_has", lambda command: command == "unshare")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(FrontDoorError) as raised:
        prerequisites.find("")
    screen = raised.value.screen()
    assert "  fix     sudo apt-get install python3-venv iproute2 util-linux\n" in screen
    assert "no ip tc nsenter on the search path" in screen
    assert "/usr/bin/python3 (3.11.2) has no module ensurepip" in screen


def test_an_old_python_is_passed_over_for_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "python3": Interpreter("/usr/bin/python3", "3.10.12"),
        "python3.12": Interpreter("/opt/python3.12", "3.12.1"),
    }
    monkeypatch.setattr(prerequisites, "ask", known.get)
    monkeypatch.setattr(prerequisites, "_has", lambda _: True)
    assert prerequisites.find("").path == "/opt/python3.12"
    with pytest.raises(FrontDoorError, match="new enough") as raised:
        prerequisites.find("python3")
    assert "/usr/bin/python3 (3.10.12)" in raised.value.screen()
    with pytest.raises(FrontDoorError, match="new enough") as raised:
        prerequisites.find("/no/python")
    assert "PYTHON=/no/python, which does not start" in raised.value.screen()
