"""What a lab adds to docker-compose.yml: the folder that was typed in, where nodes can have it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.compose.file import PROJECT, Filling
from cluster.compose.subnets import candidates
from cluster.spec import load_cluster

SPEC = load_cluster("2x2")


def volumes(work: Path, runs: Path | None = None) -> Any:
    """What nodes see besides the project and the folder of runs."""
    subnet = next(candidates())
    overlay = Filling(SPEC, Path("/h"), "image", subnet, runs or work / "runs", work).overlay()
    return None if overlay is None else yaml.safe_load(overlay)["services"]["node"]["volumes"]


@pytest.mark.parametrize(
    "folder", ["/home/mei/lab", "/tmp/lab", "/var/lib/lab", "/a b/$HOME", "/$"]
)
def test_the_folder_that_is_typed_in_is_seen_under_its_own_path(folder: str) -> None:
    (volume,) = volumes(Path(folder))
    assert volume.pop("read_only") is True
    as_compose_reads_it = {key: text.replace("$$", "$") for key, text in volume.items()}
    assert as_compose_reads_it == {"type": "bind", "source": folder, "target": folder}
    assert "$" not in volume["source"].replace("$$", "")


@pytest.mark.parametrize("folder", ["/", "/tmp", "/usr", "/opt", "/opt/ddplab", "/home", "/run"])
def test_what_containers_have_of_their_own_is_not_hidden(folder: str) -> None:
    assert volumes(Path(folder)) is None


def test_what_is_seen_already_is_not_mounted_again() -> None:
    assert volumes(PROJECT / "docs") is None
    assert volumes(Path("/data"), runs=Path("/data")) is None
