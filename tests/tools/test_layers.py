"""Which environment a word asks for: what Ray needs is installed for whoever asks for Ray."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tools.environment import LAYERS, higher

if TYPE_CHECKING:
    from conftest import Checkout


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [("run", "ray", "ray"), ("dev", "ray", "dev"), ("run", "", "run"), ("dev", "of old", "dev")],
)
def test_of_two_environments_one_does_what_both_do(one: str, other: str, both: str) -> None:
    assert higher(one, other) == higher(other, one) == both
    for small, large in pairwise(LAYERS):
        assert set(LAYERS[small]) < set(LAYERS[large])


def packages_asked(checkout: Checkout) -> list[str]:
    """What the last environment was made of, beside torch and this project."""
    wanted = [words for words in checkout.pip() if "--constraint" in words][-1]
    return wanted[wanted.index("--constraint") + 2 :]


def test_ray_is_installed_for_whoever_asks_for_it(ready: Checkout) -> None:
    assert ready.make("run", "JOB=hier").returncode == 0
    assert ready.environments() == ["1"]
    assert ready.pip() == []

    assert ready.make("run", "JOB=hier", "BACKEND=ray").returncode == 0
    assert ready.environments() == ["2"]
    assert {"uvicorn>=0.34", "docker>=7", "ray>=2.40", "nvidia-ml-py>=12"} <= set(
        packages_asked(ready)
    )
    assert "pytest>=8" not in packages_asked(ready)

    assert ready.make("run", "JOB=hier").returncode == 0  # it does what the smaller one did
    ready.make("check")  # there is nothing to check in this checkout
    assert ready.environments() == ["3"]
    assert {"ray>=2.40", "pytest>=8"} <= set(packages_asked(ready))
    assert ready.make("run", "JOB=hier", "BACKEND=ray").returncode == 0
    assert ready.environments() == ["3"]
