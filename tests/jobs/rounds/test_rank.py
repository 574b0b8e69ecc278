"""Jobs that take turns in one set of ranks: real ranks over loopback, and what they leave."""

import copy
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from jobs.records import RankRecords
from jobs.rounds.order import baseline_blocks, turn_order
from jobs.spec import load_job
from tests.jobs.ranks import (
    RunRanks,
    arguments,
    assert_finished,
    failures,
    final_sums,
    records,
)

ROUNDS, TURN_STEPS = 2, 3
JOBS = ("ring", "hier")
FILE_LIMIT_BYTES = 42_500  # reached with the second step of a job that has a bucket a parameter
DROPOUT = """
from torch import nn

def build(context, width=16):
    return nn.Sequential(nn.Embedding(256, width), nn.Dropout(0.5), nn.Linear(width, 256))
"""


def turns(folder: Path, *jobs: str, sets: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The argument of each rank for these jobs in turn; each job's folder has its name."""
    steps = f"train.steps={ROUNDS * TURN_STEPS}"
    alone = {job: arguments(folder / job, job, steps, *sets) for job in jobs}
    listed = [
        {"run_dir": str(folder / job), "run_id": job, "job": ranks[0]["job"]}
        for job, ranks in alone.items()
    ]
    common = {"jobs": listed, "rounds": ROUNDS, "turn_steps": TURN_STEPS}
    return [{"rank": rank, **copy.deepcopy(common)} for rank in alone[jobs[0]]]


@pytest.fixture(scope="module")
def told(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, events of each rank) of ring and hier in turn."""
    folder = tmp_path_factory.mktemp("turns")
    ended = run_ranks(turns(folder, *JOBS))
    assert_finished(ended)
    return folder, [rank["events"] for rank in ended]


def ranks_of(folder: Path, job: str) -> list[RankRecords]:
    return records(folder / job)


def test_who_goes_first_changes_from_round_to_round() -> None:
    assert [turn_order(number, 3) for number in range(4)] == [
        [0, 1, 2],
        [1, 2, 0],
        [2, 0, 1],
        [0, 1, 2],
    ]


@pytest.mark.parametrize(
    ("steps", "rounds", "blocks"),
    [(20, 3, [10, 3, 3, 4]), (21, 2, [10, 5, 6]), (20, 1, [10, 10]), (20, 12, [10, 0, 1])],
)
def test_steps_without_network_are_spread_over_the_rounds(
    steps: int, rounds: int, blocks: list[int]
) -> None:
    found = baseline_blocks(steps, rounds)
    assert sum(found) == steps
    assert len(found) == rounds + 1
    assert found[: len(blocks)] == blocks


def test_jobs_take_turns_in_the_order_of_each_round(told: Any) -> None:
    folder, _ = told
    steps = [(step.t_ns, job, step.step) for job in JOBS for step in ranks_of(folder, job)[0].steps]
    order = [(job, [step for _, _, step in turn]) for job, turn in groupby(sorted(steps), _job)]
    assert order == [
        ("ring", [0, 1, 2]),
        ("hier", [0, 1, 2, 3, 4, 5]),  # last of the first round, first of the second
        ("ring", [3, 4, 5]),
    ]


def _job(step: tuple[int, str, int]) -> str:
    return step[1]


def test_all_jobs_are_in_the_same_processes(told: Any) -> None:
    folder, _ = told
    pids = [[rank.header["pid"] for rank in ranks_of(folder, job)] for job in JOBS]
    assert pids[0] == pids[1]
    assert len(set(pids[0])) == 2


def test_each_job_has_steps_without_network_of_its_own_in_every_round(told: Any) -> None:
    folder, _ = told
    for job in JOBS:
        for rank in ranks_of(folder, job):
            blocks = [entry.block for entry in rank.baseline]
            assert blocks == [0] * 10 + [1] * 5 + [2] * 5


def test_the_prediction_of_each_job_stands_before_its_first_counted_step(told: Any) -> None:
    folder, _ = told
    for job in JOBS:
        written_ns = (folder / job / "prediction.json").stat().st_mtime_ns
        first = ranks_of(folder, job)[0]
        assert first.header is not None
        wall_ns = first.steps[0].t_ns - first.header["monotonic_ns"] + first.header["wall_ns"]
        assert written_ns < wall_ns


def test_the_launcher_is_told_which_job_it_is(told: Any) -> None:
    _, ranks = told
    for events in ranks:
        for number in (0, 1):
            phases = [
                (event["phase"], event["done"])
                for event in events
                if event["kind"] == "phase" and event["job"] == number
            ]
            assert phases == [
                ("start", 1),
                ("warm_up", 1),
                *(("no_network", done) for done in range(1, 11)),
                ("warm_up", 2),
                *(("train", done) for done in range(1, 4)),
                *(("no_network", done) for done in range(11, 16)),
                ("warm_up", 3),
                *(("train", done) for done in range(4, 7)),
                *(("no_network", done) for done in range(16, 21)),
                ("finish", 1),
            ]
        assert [event["job"] for event in events if event["kind"] == "finished"] == [0, 1]


def test_a_job_learns_what_it_would_have_learnt_alone(
    told: Any, run_ranks: RunRanks, tmp_path: Path
) -> None:
    """The same steps, counted or not, on the same data: not a bit is different."""
    folder, _ = told
    uncounted = 1 + ROUNDS
    for job in JOBS:
        sets = (f"train.warmup_steps={uncounted}", f"train.steps={ROUNDS * TURN_STEPS}")
        assert_finished(run_ranks(arguments(tmp_path / job, job, *sets)))
        assert final_sums(folder / job) == final_sums(tmp_path / job)


def test_random_numbers_of_a_job_are_its_own(run_ranks: RunRanks, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DROPOUT)
    model = f'model={{import: "{tmp_path / "mine.py"}:build", context: 16}}'
    alone = (model, f"train.warmup_steps={1 + ROUNDS}", f"train.steps={ROUNDS * TURN_STEPS}")
    assert_finished(run_ranks(arguments(tmp_path / "alone", "hier", *alone)))
    (tmp_path / "turns").mkdir()
    ended = run_ranks(turns(tmp_path / "turns", *JOBS, sets=(model,)))
    assert_finished(ended)
    assert final_sums(tmp_path / "turns" / "hier") == final_sums(tmp_path / "alone")


def test_bytes_of_a_job_are_its_own(told: Any) -> None:
    folder, _ = told
    for job in JOBS:
        ends = [rank.end or {} for rank in ranks_of(folder, job)]
        first = ranks_of(folder, job)[0].steps[0].inter_node_bytes
        total = (1 + ROUNDS * (1 + TURN_STEPS)) * (first or 0)
        assert [end["inter_node_bytes"] for end in ends] == [total] * 2
        # loopback carries both ranks' bytes, and whatever else this machine sends to itself
        assert all(end["nic_tx_bytes"] >= 2 * total for end in ends)


@pytest.mark.parametrize("number", [0, 1])
def test_a_failure_in_a_jobs_turn_is_told_alike_by_all(
    run_ranks: RunRanks, tmp_path: Path, number: int
) -> None:
    """Rank 1 cannot write on in the turn of that job: its peers wait inside that very job."""
    asked = turns(tmp_path, *JOBS)
    for argument in asked:
        argument["jobs"][number]["job"]["ddp"]["per_parameter"] = True  # its records are longer
    asked[1]["test_file_limit_bytes"] = FILE_LIMIT_BYTES
    told = failures(run_ranks(asked))
    assert told[0] == told[1]
    assert told[0].startswith("rank 1: ")
    assert "File too large" in told[0]
    kept = {job: [len(rank.steps) for rank in records(tmp_path / job)] for job in JOBS}
    assert kept[JOBS[number]][1] == 1
    assert kept[JOBS[1 - number]] == [TURN_STEPS * number] * 2  # ring's turn came first


def test_a_job_that_cannot_be_set_up_ends_those_that_are(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("def build(context):\n    raise ValueError('no weights')\n")
    asked = turns(tmp_path, *JOBS)
    broken = load_job("hier", (f'model={{import: "{tmp_path / "mine.py"}:build"}}', "pace=null"))
    for argument in asked:
        argument["jobs"][1]["job"] = broken.model_dump(mode="json")
    told = failures(run_ranks(asked))
    assert all("no weights" in message and "mine.py:2" in message for message in told)
    assert [rank.header is None for rank in records(tmp_path / "ring")] == [False] * 2
