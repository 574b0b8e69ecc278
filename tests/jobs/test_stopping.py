"""Stop signals and a terminal that is closed: every verb ends in order, once, and in words."""

import errno
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import cluster.lab
from cluster.errors import NoLab
from jobs.progress import PhaseProgress
from jobs.report import terminal
from jobs.stopping import Stopped, held_back, raising_stop_signals
from tests.jobs.command import call, valid
from tests.jobs.test_launch import Notes, job, run_it

pytestmark = pytest.mark.usefixtures("own_folder")


def test_an_impatient_second_ctrl_c_changes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(_name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    show = terminal.show

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        show(*arguments)

    monkeypatch.setattr(cluster.lab, "open_lab", twice)
    monkeypatch.setattr(terminal, "show", interrupted)
    code, _, err = call(capsys, "probe")
    assert (code, err.strip()) == (130, "ddplab: stopped by you")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_stop_signal_ends_a_verb_in_order_and_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    ended = []

    def stopped(_name: str) -> None:
        try:
            os.kill(os.getpid(), number)
        finally:  # what is put in order then is not disturbed by further ones
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            ended.append("in order")

    monkeypatch.setattr(cluster.lab, "open_lab", stopped)
    code, out, err = call(capsys, "run", "hier")
    who = "you" if name == "SIGINT" else name
    assert (code, out, err.strip()) == (130, "", f"ddplab: stopped by {who}")
    assert ended == ["in order"]
    assert signal.getsignal(number) == before
    code, out, _ = call(capsys, "run", "hier", "--json")
    assert (code, valid(out, "error")["error"]["kind"]) == (130, "stopped")


def test_a_signal_that_is_held_back_comes_afterwards_whoever_hears_it() -> None:
    """A second thread, whose signals are not blocked, hears it for the main one."""
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    done: list[str] = []
    try:
        with raising_stop_signals(), pytest.raises(Stopped, match="SIGTERM"):
            with held_back():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)
                done.append("inside")
            done.append("after")
    finally:
        over.set()
        other.join()
    assert done == ["inside"]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_a_stop_signal_that_is_ignored_stays_ignored(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hung_up(_name: str) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        raise NoLab("this far")

    monkeypatch.setattr(cluster.lab, "open_lab", hung_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert call(capsys, "run", "hier") == (1, "", "ddplab: this far\n")
    finally:
        signal.signal(signal.SIGHUP, before)


class Hangup(Notes):
    """A terminal that is closed at the third step: a signal, and nothing can be shown any more."""

    def end(self) -> None:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("told", [True, False])
def test_a_terminal_that_is_gone_keeps_what_was_done(
    make_lab: Any, tmp_path: Path, told: bool
) -> None:
    def hang_up(phase: PhaseProgress) -> None:
        if phase.phase == "train" and phase.done == 3:
            if told:
                os.kill(os.getpid(), signal.SIGHUP)
            raise OSError(errno.EIO, "Input/output error")

    spec = job("ok", train={"steps": 5000})
    result = run_it(make_lab(), tmp_path / "runs", spec, Hangup(hang_up))
    assert result.error is not None
    words = "stopped by SIGHUP at step" if told else "standard output: Input/output error"
    assert result.error.message.startswith(words)
    summary = json.loads((tmp_path / "runs/latest/summary.json").read_text())
    assert (summary["status"], summary["steps"] >= 3) == ("failed", True)
