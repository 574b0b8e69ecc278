import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddp.timing import BucketTiming
from jobs.errors import RecordsError
from jobs.records import (
    RecordFile,
    RecordReader,
    StepRecord,
    file_writer,
    read_records,
    records_path,
)

STEP = StepRecord(
    step=4,
    t_ns=1_000,
    step_s=0.5,
    data_s=0.01,
    forward_s=0.1,
    backward_s=0.2,
    comm_exposed_s=0.15,
    optimizer_s=0.03,
    other_s=0.01,
    exposed=((1_200, 1_300), (1_400, 1_450)),
    buckets=(BucketTiming(0, 4096, 1_100, 1_110, 1_290), BucketTiming(1, 8, 1_300, 1_301, 1_440)),
    intra_node_bytes=10,
    inter_node_bytes=20,
    samples=8,
    loss=3.25,
)
KEYS = [
    "kind",
    "step",
    "t_ns",
    "step_s",
    "data_s",
    "forward_s",
    "backward_s",
    "comm_exposed_s",
    "optimizer_s",
    "other_s",
    "exposed",
    "buckets",
    "intra_node_bytes",
    "inter_node_bytes",
    "samples",
    "loss",
]


def lines(run_dir: Path, rank: int) -> list[dict]:
    return [json.loads(line) for line in records_path(run_dir, rank).read_text().splitlines()]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    counted = replace(STEP, step=5, nic_tx_bytes=7, nic_rx_bytes=9)
    unknown = replace(STEP, step=6, intra_node_bytes=None, inter_node_bytes=None, loss=None)
    with file_writer(tmp_path, 3) as writer:
        writer.header({"rank": 3, "node_name": "node1"})
        writer.baseline(0, replace(STEP, step=0))
        writer.step(STEP)
        writer.step(counted)
        writer.step(unknown)
        writer.end({"params_sha256": "ab"})
    records = read_records(records_path(tmp_path, 3))
    assert records.header is not None and records.end is not None
    assert records.header["node_name"] == "node1"
    assert {"wall_ns", "monotonic_ns"} <= records.header.keys()
    assert records.steps == [STEP, counted, unknown]
    assert [(entry.block, entry.record.step) for entry in records.baseline] == [(0, 0)]
    assert records.end["params_sha256"] == "ab"
    assert not records.incomplete


def test_the_keys_are_those_of_the_contract(tmp_path: Path) -> None:
    with file_writer(tmp_path, 0) as writer:
        writer.step(STEP)
        writer.step(replace(STEP, nic_tx_bytes=0, nic_rx_bytes=0))
    plain, counted = lines(tmp_path, 0)
    assert list(plain) == KEYS
    assert list(counted) == [*KEYS, "nic_tx_bytes", "nic_rx_bytes"]
    assert plain["exposed"] == [[1_200, 1_300], [1_400, 1_450]]
    assert plain["buckets"][0] == {
        "index": 0,
        "bytes": 4096,
        "ready_ns": 1_100,
        "start_ns": 1_110,
        "end_ns": 1_290,
    }


def test_a_line_cut_off_by_a_kill_is_left_and_the_rest_is_kept(tmp_path: Path) -> None:
    with file_writer(tmp_path, 0) as writer:
        writer.header({"rank": 0})
        writer.step(STEP)
    path = records_path(tmp_path, 0)
    path.write_bytes(path.read_bytes() + b'{"kind":"step","step":5,"t_')
    records = read_records(path)
    assert records.steps == [STEP]
    assert records.incomplete
    assert records.end is None


def test_a_growing_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    reader = RecordReader(records_path(tmp_path, 0))
    assert reader.poll().steps == []
    with file_writer(tmp_path, 0) as writer:
        for step in range(3):
            writer.step(replace(STEP, step=step))
            assert [record.step for record in reader.poll().steps] == list(range(step + 1))


def test_keys_and_kinds_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    path = records_path(tmp_path, 0)
    later = {"kind": "step", **STEP.to_json(), "gpu_s": 1.0}
    path.write_text(json.dumps(later) + '\n{"kind":"link","rate":5}\n')
    assert read_records(path).steps == [STEP]


@pytest.mark.parametrize("line", ["{nonsense", "[]", '{"no":"kind"}', '{"kind":"step","step":1}'])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = records_path(tmp_path, 0)
    path.write_text('{"kind":"header"}\n' + line + "\n")
    with pytest.raises(RecordsError, match=r"rank0\.jsonl:2: "):
        read_records(path)


def test_a_rank_that_runs_twice_is_refused(tmp_path: Path) -> None:
    with file_writer(tmp_path, 0), pytest.raises(RecordsError, match=r"rank0\.jsonl.*exists"):
        RecordFile(records_path(tmp_path, 0))


def test_a_missing_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match=r"gone/rank0\.jsonl"):
        RecordFile(records_path(tmp_path / "gone", 0))


def test_what_is_no_number_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with file_writer(tmp_path, 0) as writer, pytest.raises(ValueError, match="JSON"):
        writer.step(replace(STEP, loss=float("nan")))
    assert lines(tmp_path, 0) == []


def test_buckets_that_are_not_told_stay_so(tmp_path: Path) -> None:
    untold = replace(STEP, buckets=None)
    with file_writer(tmp_path, 0) as writer:
        writer.step(untold)
        writer.step(replace(STEP, buckets=()))
    assert [line["buckets"] for line in lines(tmp_path, 0)] == [None, []]
    assert read_records(records_path(tmp_path, 0)).steps == [untold, replace(STEP, buckets=())]


def test_a_plan_that_is_known_late_is_the_headers(tmp_path: Path) -> None:
    with file_writer(tmp_path, 0) as writer:
        writer.header({"rank": 0, "plan": None, "plan_sha256": None})
        writer.step(STEP)
        writer.plan({"plan": {"algorithm": "ring"}, "plan_sha256": "feed"})
    header = read_records(records_path(tmp_path, 0)).header
    assert header is not None
    assert (header["rank"], header["plan_sha256"]) == (0, "feed")
    assert header["plan"] == {"algorithm": "ring"}
