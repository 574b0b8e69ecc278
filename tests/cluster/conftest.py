"""A lab whose nodes only remember their limits."""

from pathlib import Path

import pytest

import cluster.lab
from cluster.kept import Lab
from cluster.lab import bring_up
from tests.cluster.remembered import GOOD, SPEC, Remembered, backend_of, only


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remembered:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    remembered = Remembered()
    only(monkeypatch, backend_of("netns", lambda *_: remembered, lambda *_: remembered))
    monkeypatch.setattr(cluster.lab, "run_probe", lambda *_: GOOD)
    return remembered


@pytest.fixture
def lab(nodes: Remembered) -> Lab:
    """A lab of two nodes at 200 Mbit/s, measured."""
    made = bring_up(SPEC)
    assert nodes.rates == [200, 200]
    return made
