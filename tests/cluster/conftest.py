"""A lab whose nodes only remember their limits."""

from pathlib import Path

import pytest

import cluster.backends
import cluster.kept
import cluster.lab
from cluster.kept import Lab
from cluster.lab import bring_up
from cluster.nodes import Backend
from tests.cluster.remembered import GOOD, SPEC, Remembered


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remembered:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    remembered = Remembered()
    backend = Backend("netns", "", lambda *_: remembered, lambda *_: remembered, lambda _: ())  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(cluster.backends, "NETNS", backend)
    monkeypatch.setattr(cluster.kept, "BACKENDS", {"netns": backend})
    monkeypatch.setattr(cluster.lab, "run_probe", lambda *_: GOOD)
    return remembered


@pytest.fixture
def lab(nodes: Remembered) -> Lab:
    """A lab of two nodes at 200 Mbit/s, measured."""
    made = bring_up(SPEC)
    assert nodes.rates == [200, 200]
    return made
