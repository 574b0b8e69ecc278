"""The verb bench: what it prints for people and under --json, what it refuses, how it ends."""

import csv
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import cluster.lab
import jobs.bench.launcher
from cluster.lab import Lab
from jobs.rankplan import Program
from jobs.report.bench_live import LiveBench
from jobs.report.bench_screen import closing_screen
from jobs.report.text import plain
from jobs.underlay import Underlay
from tests.jobs.bench.samples import HIER, NATIVE, bench_spec, rows
from tests.jobs.command import call, valid
from tests.jobs.conftest import MakeLab
from tests.jobs.samples import flat
from tools.verbs import arguments

pytestmark = pytest.mark.usefixtures("own_folder")
Capture = pytest.CaptureFixture[str]
STAND_IN = Program("bench_stand_in:main", ("bench_stand_in",))
TABLE = """
  size S    algorithm     time      8 of 10  algbw  sent  of wire  times as fast  predicted
                            ms   rounds, ms   MB/s   / S    limit      as native     off by
  64 KiB    native        31.1  31.0 - 31.2   2.11  1.50     48 %      1               -4 %
            ring          21.1  21.0 - 21.2   3.11  1.00     71 %   1.47 +- 0.01       -5 %
            hierarchical  21.1  21.0 - 21.2   3.11  1.00     71 %   1.47 +- 0.01       -5 %
   4 MiB    native        31.1  31.0 - 31.2    135  1.50     48 %      1               -4 %
            ring          21.1  21.0 - 21.2    199  1.00     71 %   1.47 +- 0.01       -5 %
            hierarchical  21.1  21.0 - 21.2    199  1.00     71 %   1.47 +- 0.01       -5 %
"""
SHORT = ("--sizes", "64KiB 4MiB", "--iters", "3", "--warmup-iters", "1")


@pytest.fixture(autouse=True)
def _stood_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a bench are stood in for, on a lab of this machine's own processes."""
    del lab
    run_bench = jobs.bench.launcher.run_bench

    def stood_in(*given: Any) -> Any:
        return run_bench(*given, program=STAND_IN)

    monkeypatch.setattr(jobs.bench.launcher, "run_bench", stood_in)


def benched(capsys: Capture, *words: str, code: int = 0) -> dict[str, Any]:
    """The document of a bench under --json, which is bench.json as well."""
    found, out, err = call(capsys, "bench", "allreduce", *words, "--json")
    assert found == code, out + err
    document = valid(out, "bench")
    kept = Path("runs") / document["folder"] / "bench.json"
    assert json.loads(kept.read_text()) == document
    return document


def test_json_has_a_row_for_each_size_and_contender(capsys: Capture) -> None:
    found = benched(capsys, *SHORT)
    named = [(row["size_bytes"], row["algorithm"]) for row in found["rows"]]
    algorithms = ("native", "ring", "hierarchical")
    assert named == [(size, name) for size in (65_536, 4 << 20) for name in algorithms]
    native, ring, _ = found["rows"][:3]
    assert native["rounds_s"] == pytest.approx([0.031, 0.0311, 0.0312])
    assert native["time_s"]["median"] == pytest.approx(0.0311)
    assert native["payload_bytes_ratio"] == 1.5
    assert (native["payload_counted"], ring["payload_counted"]) == (False, True)
    assert ring["payload_bytes_ratio"] == 1.0
    assert ring["speedup_over_native"] == pytest.approx(0.0311 / 0.0211)
    assert ring["ceiling_over_native"] == 1.5
    assert ring["limit_ratio"] == pytest.approx(15 / 21.1)
    assert ring["predicted_error_ratio"] == pytest.approx(20 / 21.1 - 1)
    assert (found["rounds"], found["warmup_rounds"]) == (3, 1)
    assert found["lab"]["name"] == "default"
    assert found["check"] is None


def test_csv_has_a_line_for_each_row(capsys: Capture) -> None:
    found = benched(capsys, *SHORT)
    lines = (Path("runs") / found["folder"] / "bench.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))
    assert [row["algorithm"] for row in rows] == ["native", "ring", "hierarchical"] * 2
    assert float(rows[1]["time_median_s"]) == pytest.approx(0.0211)
    assert (rows[1]["n"], rows[1]["wrong"], rows[0]["speedup_over_native"]) == ("3", "0", "1.0")


@pytest.mark.parametrize("columns", ["80", "100", "120"])
@pytest.mark.parametrize(
    "more", [(), ("--busbw", "--placement", "contiguous interleaved"), ("--algorithms", "ring")]
)
def test_the_screen(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: str, more: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = call(capsys, "bench", "allreduce", *SHORT, *more)
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= int(columns), out
    words = flat(out)
    assert 'All-reduce of float32, no training. Lab "default": 2 nodes x 2 ranks' in words
    assert "3 rounds after 1 of warm-up; time of the slowest rank. About" in words
    assert "wrong: 0 (each sum on each rank in each round" in words
    assert "PASS" in words
    assert "at 100 % nothing can be faster on this link" in words
    assert ("interleaved" in words) == ("--placement" in more)
    assert ("it is no link's load" in words) == ("--busbw" in more)
    (folder,) = [path.name for path in Path("runs").iterdir()]
    assert "-bench-2x2-200mbit" in folder
    assert f"files runs/{folder}: bench.csv, bench.json" in words


def test_the_usual_table(capsys: Capture) -> None:
    _, out, _ = call(capsys, "bench", "allreduce", *SHORT)
    table = out[out.index("  size S") : out.index("  wrong")].splitlines()
    assert table == TABLE.strip("\n").splitlines()


def test_a_lab_of_one_node_has_no_columns_of_links(
    capsys: Capture, make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_lab(1, 2)
    monkeypatch.setattr(cluster.lab, "open_lab", lambda _: one)
    _, out, _ = call(capsys, "bench", "allreduce", *SHORT)
    head = out[out.index("  size S") :].splitlines()[0]
    assert head.split() == [
        *("size", "S", "algorithm", "time", "8", "of", "10", "algbw"),
        *("of", "memory", "times", "as", "fast", "predicted"),
    ]
    assert "nothing leaves the node" in out
    words = " ".join(out.split())
    assert "memory limit every rank at once adds up and writes" in words
    assert re.search(r"hierarchical 21\.\d .* 2[34] % ", words)  # 5 ms, of both ranks


def test_a_wrong_sum_fails(capsys: Capture) -> None:
    document = benched(capsys, *SHORT, "--dtype", "int32", code=1)
    assert [row["wrong"] for row in document["rows"]] == [3] * 6
    code, out, _ = call(capsys, "bench", "allreduce", *SHORT, "--dtype", "int32")
    assert code == 1
    assert "wrong: 18" in out and "FAIL" in out


def test_check_tells_each_floor_and_fails_below_one(capsys: Capture) -> None:
    code, out, err = call(capsys, "bench", "allreduce", "--check")
    assert (code, err) == (1, "")
    words = flat(out)
    assert "hierarchical, 32 MB: of wire limit 0.70 >= 0.95 >= 0.98 UNDER" in words
    assert "hierarchical over native, 32 MB 1.47 x >= 1.45 x >= 1.50 x passes" in words
    assert "hierarchical, 32 MB: sent over least 1.00 <= 1.01 <= 1.00 reached" in words
    assert "make cluster-up CLUSTER=2x4 RATE=1gbit LAB=2x4-1gbit && make bench CHECK=1" in words
    document = benched(capsys, "--check", code=1)
    assert document["check"]["ok"] is False
    assert document["check"]["figures"][0]["name"] == "hierarchical, 32 MB: of wire limit"


REFUSED = {
    ("--sizes", "0"): "0 bytes",
    ("--sizes", "-4M"): "no size",
    ("--sizes", ""): "SIZES is empty",
    ("--sizes", "4mb"): "bits or bytes",
    ("--sizes", "6"): "6 B of float32",
    ("--sizes", "1G"): "on the 4 ranks of one machine",
    ("--sizes", "1M", "--minbytes", "1M"): "SIZES with MINBYTES",
    ("--minbytes", "1M"): "MINBYTES alone",
    ("--stepfactor", "2"): "STEPFACTOR alone",
    ("--minbytes", "4M", "--maxbytes", "1M"): "MINBYTES=4 MiB, MAXBYTES=1 MiB",
    ("--minbytes", "1M", "--maxbytes", "4M", "--stepfactor", "1"): "STEPFACTOR=1",
    ("--algorithms", "ringg"): "unknown algorithm 'ringg'",
    ("--algorithms", "noop"): "noop adds nothing up",
    ("--dtype", "float8"): "DTYPE='float8'",
    ("--iters", "0"): "0 is not in the range",
    ("--warmup-iters", "-1"): "-1 is not in the range",
    ("--check", "--sizes", "1M"): "CHECK=1 with SIZES",
    ("--check", "--iters", "3"): "CHECK=1 with ITERS=3",
    ("--rate", "1gbit"): "RATE=1gbit, but lab",
}


@pytest.mark.parametrize(("words", "message"), REFUSED.items())
def test_what_is_refused(capsys: Capture, words: tuple[str, ...], message: str) -> None:
    code, out, err = call(capsys, "bench", "allreduce", *words)
    assert code in (1, 2) and out == ""
    assert message in err
    assert "\n  rule    " in err and "\n  fix     " in err
    assert not Path("runs").exists()


def test_only_all_reduces_are_timed(capsys: Capture) -> None:
    code, _, err = call(capsys, "bench", "broadcast")
    assert code == 2
    assert "fix     bench allreduce" in err


def test_a_rank_that_is_killed_is_the_cause(capsys: Capture) -> None:
    code, out, err = call(capsys, "bench", "allreduce", *SHORT, "--dtype", "int64")
    assert code == 1
    assert "rank 1 (node0) was killed by SIGKILL, after turn 1" in err
    assert "wrong:" not in out
    assert not Path("runs").exists()


def test_a_person_can_stop_it(capsys: Capture, lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveBench, "progress", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    code, _, err = call(capsys, "bench", "allreduce", *SHORT, "--dtype", "float64")
    assert code == 130
    assert "stopped by you; nothing is kept of a bench; the lab is still up" in flat(err)
    assert all(process.poll() is not None for process in lab.nodes.processes)
    assert not Path("runs").exists()


def test_links_that_change_meanwhile_end_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Underlay, "changes", lambda *_: ("a change",))
    code, _, err = call(capsys, "bench", "allreduce", *SHORT)
    assert code == 1
    assert "links of the lab were changed while the bench went on" in err


def test_make_says_it_as_the_command_does() -> None:
    given = {"SIZES": "64KiB 1MiB", "ITERS": "5", "ALGORITHMS": "native ring", "CHECK": "1"}
    assert arguments("bench", given) == [
        *("ddplab", "bench", "allreduce"),
        *("--sizes=64KiB 1MiB", "--iters=5", "--algorithms=native ring", "--check"),
    ]


def test_what_is_faster_than_the_limit_is_explained() -> None:
    short, long = (
        rows(bench_spec(NATIVE, HIER), [[[30.0] * 3, [20.0] * 3]], limit_ms=limit_ms)
        for limit_ms in (21.0, 19.0)
    )
    assert "let the first bytes pass at once" in flat(
        plain(closing_screen(short, None, False, 100))
    )
    assert "faster on this link" in flat(plain(closing_screen(long, None, False, 100)))
