"""What the launcher keeps of links that change while a run goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema

from cluster.lab import Lab
from cluster.linklog import LinkChange, LinkRate, log_begun, log_settled
from cluster.state import LabDirectory
from jobs.launch import launch
from jobs.linkchanges import LinkChanges
from jobs.progress import PhaseProgress
from jobs.records import RankRecords
from jobs.runfolder import RunFolder, create_run
from jobs.spec import JobSpec
from tests.jobs.command import SCHEMAS
from tests.jobs.conftest import STAND_IN

ASKED = [LinkRate("node1", "out", 50_000_000), LinkRate("node1", "in", 50_000_000)]
STANDS = [LinkRate("node1", "out", None), LinkRate("node1", "inside", 8_000_000)]


def changes_in(folder: RunFolder) -> list[dict[str, Any]]:
    """`link_changes` of a run.json, held against its contract."""
    changes = (folder.read("run.json") or {})["link_changes"]
    jsonschema.validate(changes, json.loads((SCHEMAS / "link_changes.json").read_text()))
    found: list[dict[str, Any]] = changes
    return found


def test_every_run_of_a_set_is_told_as_it_happens(make_lab: Any, tmp_path: Path) -> None:
    lab = make_lab()
    place = LabDirectory.of(lab.name).path
    watcher = LinkChanges(lab)
    names = ("a", "b")
    with (
        create_run(tmp_path / "runs", "a", lambda run_id: {"run_id": run_id}) as one,
        create_run(tmp_path / "runs", "b", lambda run_id: {"run_id": run_id}) as other,
    ):
        runs = [
            (folder, {"run_id": name}) for folder, name in zip((one, other), names, strict=True)
        ]
        assert watcher.keep(runs) == ()
        assert "link_changes" not in (one.read("run.json") or {})
        log_begun(place, ASKED)
        (begun,) = watcher.keep(runs)
        assert begun.settled_ns is None
        assert watcher.keep(runs) == ()
        for folder in (one, other):
            assert [(it["node"], it["direction"]) for it in changes_in(folder)] == [
                ("node1", "out"),
                ("node1", "in"),
            ]
            assert {it["settled_ns"] for it in changes_in(folder)} == {None}
        log_settled(place, STANDS)
        (settled,) = watcher.keep(runs)
        for folder in (one, other):
            found = changes_in(folder)
            assert [it["configured_bits_per_second"] for it in found] == [None, 8_000_000]
            assert {it["t_ns"] for it in found} == {begun.t_ns} == {settled.t_ns}
            assert {it["settled_ns"] for it in found} == {settled.settled_ns}
        (place / "links.jsonl").unlink()  # the lab was taken down
        assert watcher.keep(runs) == ()
        assert len(changes_in(one)) == 2


def test_what_the_lab_was_read_with_is_no_change(make_lab: Any, tmp_path: Path) -> None:
    place = LabDirectory.of(make_lab().name).path
    log_begun(place, ASKED)
    position = log_settled(place, ASKED)
    lab = make_lab()
    object.__setattr__(lab, "link_position", position)
    with create_run(tmp_path / "runs", "a", lambda run_id: {"run_id": run_id}) as folder:
        assert LinkChanges(lab).keep([(folder, {})]) == ()


class Changing:
    """An observer under which a link is changed after the second step."""

    def __init__(self, lab: Lab) -> None:
        self._place = LabDirectory.of(lab.name).path
        self.seen: list[LinkChange] = []

    def begin(self, folder: RunFolder, run: Mapping[str, Any]) -> None:
        assert (folder.read("run.json") or {})["link_changes"] == run["link_changes"] == []

    def progress(self, phase: PhaseProgress, ranks: list[RankRecords]) -> None:
        del ranks
        if (phase.phase, phase.done) == ("train", 2):
            log_begun(self._place, ASKED)
            log_settled(self._place, ASKED)

    def tick(self, now_s: float) -> None: ...

    def links_changed(self, change: LinkChange) -> None:
        self.seen.append(change)

    def end(self) -> None: ...


def test_a_change_during_a_run_is_in_its_run_json(make_lab: Any, tmp_path: Path) -> None:
    lab = make_lab()
    observer = Changing(lab)
    job = JobSpec.model_validate({"name": "ok", "train": {"steps": 20}})
    result = launch(job, lab, tmp_path / "runs", observer, STAND_IN)
    assert result.error is None
    (change,) = observer.seen
    assert change.rates == tuple(ASKED)
    assert [it["configured_bits_per_second"] for it in changes_in(result.folder)] == [
        50_000_000
    ] * 2
    assert result.run["link_changes"] == changes_in(result.folder)
