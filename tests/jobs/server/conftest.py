"""A folder for the state of labs, and stand-ins for labs whose exporters are real."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.server.process import end_unwanted
from tests.jobs.server_labs import Labs, eventually, exporters


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "state"))
    return tmp_path / "state" / "ddplab"


@pytest.fixture
def labs(state: Path) -> Iterator[Labs]:
    """Whatever a test leaves is ended after it."""
    made = Labs()
    yield made
    for name in made.holders:
        made.kill(name)
    end_unwanted()
    all_ended = eventually(lambda: exporters(state) == [])
    for pid in exporters(state):
        os.kill(pid, signal.SIGKILL)
    assert all_ended
