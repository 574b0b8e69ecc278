"""Limits that an engine left out are found, whichever container lacks them."""

from pathlib import Path
from typing import Any

import pytest

from cluster.compose.file import Filling
from cluster.compose.limits import require_limits
from cluster.compose.subnets import candidates
from cluster.errors import ShapingError
from cluster.spec import ClusterSpec, LimitsSpec, load_cluster

BOTH = LimitsSpec.model_validate({"cpus": 1.5, "memory": "2GB"})


def container(cpus: float, num_bytes: int) -> dict[str, Any]:
    return {"HostConfig": {"NanoCpus": round(cpus * 1e9), "Memory": num_bytes}}


def filled(**limits: object) -> dict[str, str]:
    spec = ClusterSpec.from_dict({**load_cluster("2x2").to_dict(), "limits": limits})
    subnet = next(candidates())
    return Filling(spec, Path("/h"), "image", subnet, Path("/r"), Path("/w")).environment()


def test_what_the_file_is_filled_in_with() -> None:
    assert (filled()["DDPLAB_CPUS"], filled()["DDPLAB_MEMORY"]) == ("0", "0")
    both = filled(cpus=1.5, memory="2GB")
    assert (both["DDPLAB_CPUS"], both["DDPLAB_MEMORY"]) == ("1.5", "2000000000")
    assert filled(cpus=1.2345678)["DDPLAB_CPUS"] == "1.2345678"


def test_limits_that_hold() -> None:
    require_limits(BOTH, [container(1.5, 2 * 10**9)] * 2)
    require_limits(LimitsSpec(), [container(0, 0), {"HostConfig": {}}])
    require_limits(LimitsSpec(cpus=1.2345), [container(1.234500096, 0)])  # as Compose makes it


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        (BOTH, container(0, 2 * 10**9)),
        (BOTH, container(1.5, 0)),  # a kernel without the memory controller
        (BOTH, container(1.5, 2 * 2**30)),
        (BOTH, container(1.501, 2 * 10**9)),
        (LimitsSpec(), container(1.5, 0)),  # of nodes that were started by hand
    ],
)
def test_limits_that_do_not_hold_are_told(asked: LimitsSpec, held: dict[str, Any]) -> None:
    good = container(asked.cpus or 0, asked.memory_bytes or 0)
    with pytest.raises(ShapingError) as caught:
        require_limits(asked, [good, held])
    assert caught.value.seen is not None and "held: " in caught.value.seen
    assert (asked.describe() or "nothing") in caught.value.message
