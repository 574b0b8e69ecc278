"""The verb link, and how runs enter a lab whose links were changed; the nodes are stood in for."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cluster.links
from cluster.errors import ProbeFailed, ShapingError
from cluster.kept import Lab
from cluster.lab import LabEvent, OnEvent
from tests.jobs.command import call, valid

pytestmark = pytest.mark.usefixtures("own_folder")


class Changes:
    """Stands in for change_links: answers with the lab changed, measured or not."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.measured = True
        self.fault: BaseException | None = None
        self.asked: list[tuple[str, str, dict[str, str], bool]] = []

    def __call__(
        self, name: str, node: str, rates: Mapping[str, str], probe: bool, on_event: OnEvent
    ) -> Lab:
        self.asked.append((name, node, dict(rates), probe))
        on_event(LabEvent("limit"))
        on_event(LabEvent("limit", 0.04))
        if self.fault:
            raise self.fault
        report = self.lab.probe if self.measured else None
        spec = self.lab.spec.with_rates(node, rates)
        return replace(self.lab, spec=spec, probe=report, changed_at=7.0)


@pytest.fixture
def changes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Changes:
    stand_in = Changes(lab)
    monkeypatch.setattr(cluster.links, "change_links", stand_in)
    return stand_in


def test_shows_what_it_does_and_the_links_as_measured(
    capsys: pytest.CaptureFixture[str], changes: Changes
) -> None:
    code, out, err = call(capsys, "link", "--node", "node1", "--rate", "50mbit")
    assert (code, err) == (0, "")
    assert changes.asked == [("default", "node1", {"inter_node": "50mbit"}, True)]
    for words in (
        'Lab "default": 50 Mbit/s out of and into node1. About 6 s.',
        "  limit    50 Mbit/s out of and into node1; read back from the kernel: as asked",
        "node0 -> node1",
        "  next    make run JOB=hier",
        "  back    make link NODE=node1 RATE=200mbit",
    ):
        assert words in out


def test_prints_the_contract(capsys: pytest.CaptureFixture[str], changes: Changes) -> None:
    words = ("link", "--node", "all", "--rate", "1gbit", "--intra-rate", "2gbit", "--json")
    code, out, err = call(capsys, *words)
    assert code == 0
    answer = valid(out, "link")
    assert (answer["changed"], answer["proof"], answer["in_use"]) == (True, "probed", None)
    assert answer["cluster"]["links"]["inter_node"]["rate"] == "1gbit"
    assert answer["cluster"]["links"]["intra_node"]["rate"] == "2gbit"
    assert valid(answer["probe"], "probe")["ok"] is True
    assert "limit    1 Gbit/s out of and into every node; 2 Gbit/s inside every node" in err
    assert changes.asked[0][2] == {"inter_node": "1gbit", "intra_node": "2gbit"}

    changes.measured = False
    code, out, _ = call(
        capsys, "link", "--node", "all", "--rate", "200mbit", "--no-probe", "--json"
    )
    answer = valid(out, "link")
    assert (answer["changed"], answer["proof"], answer["probe"]) == (False, "stale", None)
    assert changes.asked[1][3] is False


def test_while_a_job_runs_it_says_that_nothing_was_measured(
    capsys: pytest.CaptureFixture[str], changes: Changes, lab: Lab
) -> None:
    changes.measured = False
    with cluster.lab.in_use(lab, "run r1"):
        code, out, _ = call(capsys, "link", "--node", "node0", "--rate", "50mbit")
        _, told, _ = call(capsys, "link", "--node", "node0", "--rate", "50mbit", "--json")
    assert code == 0
    assert "Not measured: run r1 (process" in out
    assert "About" not in out
    assert "run r1" in json.loads(told)["in_use"]


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("words", "code", "kind", "fix"),
    [
        (("--node", "node1"), 2, "usage", "make link NODE=node1 RATE=50mbit"),
        (("--rate", "50mbit"), 2, "usage", "ddplab link --help"),
        (("--node", "node7", "--rate", "50mbit"), 1, "bad_value", "node0, node1"),
        (("--node", "all", "--rate", "50mbps"), 1, "bad_value", "50mbit"),
        (("--node", "all", "--intra-rate", "-5mbit"), 1, "bad_value", "5mbit"),
        (("--node", "all", "--rat", "50mbit"), 2, "usage", "ddplab link --rate"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_shown(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, kind: str, fix: str
) -> None:
    found, out, _ = call(capsys, "link", *words, "--json")
    assert found == code
    error = valid(out, "error")["error"]
    assert error["kind"] == kind
    assert fix in error["fix"]


def test_a_change_that_failed_is_told_and_its_exit_code_is_1(
    capsys: pytest.CaptureFixture[str], changes: Changes
) -> None:
    changes.fault = ShapingError("the links could not be changed: no", "as they were", "look")
    code, out, err = call(capsys, "link", "--node", "all", "--rate", "50mbit")
    assert code == 1
    assert "the links could not be changed: no" in err
    assert "node0 -> node1" not in out


def test_ctrl_c_says_what_stands(capsys: pytest.CaptureFixture[str], changes: Changes) -> None:
    changes.fault = KeyboardInterrupt()
    code, _, err = call(capsys, "link", "--node", "all", "--rate", "50mbit")
    assert code == 130
    assert 'The links of lab "default" are as they were (2x2: 2 nodes x 2 ranks, 200mbit).' in err
    assert "stopped by you" in err


def test_dry_run_prints_the_commands(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = ("tc -n node0 qdisc replace ...", "tc qdisc replace ...")
    monkeypatch.setattr(cluster.links, "plan_change", lambda *_: commands)
    assert call(capsys, "link", "--node", "all", "--rate", "50mbit", "--dry-run") == (
        0,
        "\n".join(commands) + "\n",
        "",
    )
    words = ("link", "--node", "all", "--rate", "50mbit", "--dry-run", "--json")
    assert json.loads(call(capsys, *words)[1]) == {"schema": 1, "commands": list(commands)}
    monkeypatch.setattr(cluster.links, "plan_change", lambda *_: ())
    assert call(capsys, "link", "--node", "all", "--rate", "50mbit", "--dry-run")[1] == ""
    assert lab.probe is not None


def test_a_run_on_changed_links_measures_them_first(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = replace(lab, changed_at=7.0)
    object.__setattr__(lab, "changed_at", 7.0)
    object.__setattr__(lab, "probe", None)

    def measure(name: str, on_event: OnEvent) -> Lab:
        assert name == "default"
        on_event(LabEvent("measure"))
        return measured

    monkeypatch.setattr(cluster.links, "measure", measure)
    code, out, err = call(capsys, "run", "hier", "--steps", "3")
    assert code == 0, err
    assert out.startswith("The links are measured first: they were changed at ")
    (folder,) = [it for it in _runs() if it.name != "latest"]
    run = json.loads((folder / "run.json").read_text())
    assert measured.probe is not None
    assert run["probe"] == measured.probe.to_json()


def test_a_run_on_links_that_do_not_carry_their_limits_is_refused(
    capsys: pytest.CaptureFixture[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab.probe is not None
    bad = replace(lab.probe.links[0], ratio=0.5)
    object.__setattr__(lab, "probe", replace(lab.probe, links=(bad,)))

    def measure(*_: Any) -> Lab:
        raise ProbeFailed("a link does not carry what was asked")

    monkeypatch.setattr(cluster.links, "measure", measure)
    code, _, err = call(capsys, "run", "hier")
    assert code == 1
    assert "a link does not carry what was asked" in err
    assert _runs() == []


def _runs() -> list[Path]:
    folder = Path("runs")
    return sorted(folder.iterdir()) if folder.exists() else []


def test_run_with_another_rate_names_link(capsys: pytest.CaptureFixture[str], lab: Lab) -> None:
    code, _, err = call(capsys, "run", "hier", "--rate", "50mbit")
    assert code == 1
    assert 'RATE=50mbit, but lab "default" runs at 200mbit.' in err
    assert "make link NODE=all RATE=50mbit && make run JOB=hier" in " ".join(err.split())
    object.__setattr__(lab, "spec", lab.spec.with_rates("node1", {"inter_node": "50mbit"}))
    for rate in ("200mbit", "50mbit"):
        code, _, err = call(capsys, "run", "hier", "--rate", rate)
        assert code == 1
        assert "runs at 200mbit, node1 at its own." in err
