"""What is refused before anything is started, and what is kept of a lab's own Ray."""

from pathlib import Path

import pytest

from cluster.errors import NoLab, NoRay, RayError
from cluster.kept import Lab
from cluster.rayhosts.attach import RayAsked, attached
from cluster.rayhosts.kept import (
    RayKept,
    forget_cluster,
    make_word,
    read_cluster,
    require_cluster,
    write_cluster,
)
from cluster.spec import load_cluster
from cluster.state import LabDirectory
from tests.cluster.recorder import Recorder

KEPT = RayKept("198.18.0.10:6379", {"node0": (7, 70), "node1": (8, 80)}, "2.60.0", 5.0, 1.0)


@pytest.mark.parametrize(
    "address",
    ["auto", "local", "", "ray://10.0.0.4:10001", "10.0.0.4", "10.0.0.4:", " 10.0.0.4:6379", "h:x"],
)
def test_an_address_is_given_and_never_looked_for(address: str) -> None:
    with (
        pytest.raises(RayError, match="is no address of a Ray cluster"),
        attached(RayAsked(address=address, ranks_per_node=1)),
    ):
        pass


def test_a_lab_that_is_not_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(NoLab), attached(RayAsked(lab="nowhere")):
        pass


def test_what_is_kept_goes_with_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    lab = Lab("it", load_cluster("2x2"), "netns", Recorder(), None, 1.0)
    directory = LabDirectory.of("it")
    with directory.locked():
        assert read_cluster(lab) is None
        write_cluster(lab, KEPT)
        assert read_cluster(lab) == require_cluster(lab) == KEPT
        newer = Lab("it", load_cluster("2x2"), "netns", Recorder(), None, 2.0)
        assert read_cluster(newer) is None  # a lab of the same name, made later
        forget_cluster(lab)
        with pytest.raises(NoRay) as caught:
            require_cluster(lab)
        assert caught.value.fix[0] == "make ray-up LAB=it"
        write_cluster(lab, KEPT)
        directory.clear()
        assert read_cluster(lab) is None


def test_words_of_make_name_the_lab_where_it_is_not_the_usual_one() -> None:
    assert make_word("ray-up", "default") == "make ray-up"
    assert make_word("ray-up", "it") == "make ray-up LAB=it"
